"""Readers that share a memory port: each has room for all words that it requests.

So no reader stalls the words of another, whichever of them waits for which.
"""

import dataclasses
from collections.abc import Callable

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.config import Config, bounded, power_of_two
from hdl.axi.read_port import AxiReadPort, AxiReadPortConfig
from hdl.axi.signature import Axi4Read, axi4_read
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.arbiter import arbiter
from hdl.stream.link import link
from hdl.stream.queue import queue

_FLIPFLOPS = 4  # words of a queue of flip-flops


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqReadBufferConfig(Config):
    """Widths, and the words that may be in flight."""

    address_bits: int = bounded(40, 32, 64, "of a byte address")
    data_bits: int = power_of_two(512, 64, 1024, "of a word")
    words: int = bounded(64, 4, 256, "requested and not yet taken")
    burst: int = 16  # words of the longest burst, 1..words

    def __post_init__(self) -> None:
        self._check_range("burst", 1, self.words)

    @property
    def axi_signature(self) -> Axi4Read:
        return axi4_read(self.address_bits, self.data_bits)

    @property
    def port(self) -> AxiReadPortConfig:
        return AxiReadPortConfig(
            address_bits=self.address_bits, data_bits=self.data_bits, burst_beats=self.burst,
            outstanding=min(16, -(-self.words // self.burst) + 1), buffered=False,
        )  # fmt: skip


class VqReadBuffer(Block):
    """A request of ``inner`` passes when there is room for its words; ``axi.r`` never waits."""

    def __init__(self, config: VqReadBufferConfig):
        super().__init__(
            config,
            {
                "inner": In(config.axi_signature, "The reader."),
                "axi": Out(config.axi_signature, "AXI4 manager."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        ar, r = self.axi.ar, self.inner.r
        storage = "flipflop" if config.words <= _FLIPFLOPS else "memory"
        words = queue(m, "words", r.p.shape(), config.words, storage=storage)
        link(m, self.axi.r, words.i)
        link(m, words.o, r)
        held = Signal(range(config.words + 1))
        room = Signal()
        asks = Signal(range(config.words + 1))
        gives = Signal()
        m.d.comb += [
            ar.p.eq(self.inner.ar.p),
            room.eq(held + self.inner.ar.p.len < config.words),
            ar.valid.eq(self.inner.ar.valid & room),
            self.inner.ar.ready.eq(ar.ready & room),
            asks.eq(Mux(ar.valid & ar.ready, ar.p.len + 1, 0)),
            gives.eq(r.valid & r.ready),
        ]
        m.d.sync += held.eq(held + asks - gives)
        return m


class VqReader(Block):
    """The words from byte ``address`` on, for each command; several bursts are in flight."""

    def __init__(self, config: VqReadBufferConfig):
        r = config.axi_signature.members["r"].signature.members["payload"].shape
        super().__init__(
            config,
            {
                "command": In(stream.Signature(config.port.command_layout), "What to read."),
                "o": Out(stream.Signature(r), "The words; last of a command, not of a burst."),
                "axi": Out(config.axi_signature, "AXI4 manager."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        port = add(m, "port", AxiReadPort(config.port))
        buffer = add(m, "buffer", VqReadBuffer(config))
        link(m, self.command, port.command)
        link(m, port.axi.ar, buffer.inner.ar)
        link(m, buffer.inner.r, port.axi.r)
        link(m, buffer.axi.ar, self.axi.ar)
        link(m, self.axi.r, buffer.axi.r)
        r = buffer.inner.r.p
        m.d.comb += [
            self.o.valid.eq(port.o.valid),
            port.o.ready.eq(self.o.ready),
            self.o.p.data.eq(port.o.p.data),
            # The port passes a word on in the cycle in which it comes.
            self.o.p.resp.eq(Mux(port.o.p.error, r.resp, 0)),
            self.o.p.last.eq(port.o.p.last),
        ]
        return m


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqPortShareConfig(Config):
    """Readers and widths."""

    readers: int = bounded(4, 1, 64, "read clients")
    address_bits: int = bounded(40, 32, 64, "of a byte address")
    data_bits: int = power_of_two(512, 64, 1024, "of a word")
    bursts: int = bounded(64, 2, 256, "in flight")

    @property
    def axi_signature(self) -> Axi4Read:
        return axi4_read(self.address_bits, self.data_bits)


class VqPortShare(Block):
    """Requests of the readers in turn; words go back in the order of the requests.

    The readers must take every word that comes. A word that nobody requested is dropped.
    """

    def __init__(self, config: VqPortShareConfig):
        super().__init__(
            config,
            {
                "reader": In(config.axi_signature, "Reader {0}.").array(config.readers),
                "axi": Out(config.axi_signature, "AXI4 manager."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        asks = arbiter(m, "asks", self.axi.ar.p.shape(), config.readers)
        routes = queue(m, "routes", range(max(2, config.readers)), config.bursts)
        for reader, i in zip(self.reader, asks.i, strict=True):
            link(m, reader.ar, i)
        m.d.comb += routes.i.p.eq(asks.source)
        pass_bursts(m, asks.o, asks.o.p, self.axi, routes)
        words_back(m, self.axi.r, routes, self.reader, lambda k: routes.o.p == k)
        return m


def pass_bursts(m: Module, requests, request, axi, routes) -> None:
    """Each request to the manager, as far as ``routes`` has room for where its words go."""
    m.d.comb += [
        axi.ar.p.eq(request),
        axi.ar.valid.eq(requests.valid & routes.i.ready),
        requests.ready.eq(axi.ar.ready & routes.i.ready),
        routes.i.valid.eq(axi.ar.valid & axi.ar.ready),
    ]


def words_back(m: Module, r, routes, readers, goes_to: Callable) -> None:
    """Each word to the readers k with ``goes_to(k)``; a word that nobody requested is dropped."""
    m.d.comb += [r.ready.eq(1), routes.o.ready.eq(r.valid & r.p.last)]
    for k, reader in enumerate(readers):
        m.d.comb += [
            reader.r.p.eq(r.p),
            reader.r.valid.eq(r.valid & routes.o.valid & goes_to(k)),
        ]
