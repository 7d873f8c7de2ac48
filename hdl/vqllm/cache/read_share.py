"""One AXI4 read port for several readers, each with room for what it requests."""

import dataclasses

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value

from golden.config import Config, bounded, power_of_two
from hdl.axi.signature import Axi4Read, axi4_read
from hdl.bits import any_of
from hdl.block import Block
from hdl.ports import In, Out
from hdl.stream.queue import queue
from hdl.stream.skid import skid


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqReadShareConfig(Config):
    """Readers, and the port."""

    readers: int = bounded(2, 1, 8, "read clients")
    room: int = bounded(64, 1, 4096, "words that each reader can hold, the longest burst or more")
    outstanding: int = bounded(16, 1, 64, "bursts requested ahead")
    address_bits: int = bounded(40, 32, 64, "of a byte address")
    data_bits: int = power_of_two(256, 8, 1024, "of a word")

    @property
    def axi_signature(self) -> Axi4Read:
        return axi4_read(self.address_bits, self.data_bits)


class VqReadShare(Block):
    """Bursts of the readers in turn, the first reader first; their words by the order of bursts.

    A burst is requested when its reader has room for all its words. So no reader ever stalls the
    port. ``gone``: a word has left the reader's room.
    """

    def __init__(self, config: VqReadShareConfig):
        super().__init__(
            config,
            {
                "reader": In(config.axi_signature, "Reader {0}.").array(config.readers),
                "gone": In(config.readers, "A word has left the room of the reader."),
                "axi": Out(config.axi_signature, "AXI4 manager."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        readers = [self.reader[k] for k in range(config.readers)]
        requests = skid(m, "requests", self.axi.ar.payload.shape())
        order = queue(m, "order", range(max(2, config.readers)), config.outstanding)
        can_issue = Signal()
        some = Signal()
        chosen, before = [], []
        for k, reader in enumerate(readers):
            held = Signal(range(config.room + 1), name=f"held_{k}")
            beats = Signal(range(257), name=f"beats_{k}")
            is_next = Signal(name=f"is_next_{k}")
            fits = reader.ar.valid & (held + beats <= config.room)
            m.d.comb += [
                beats.eq(reader.ar.p.len + 1),
                is_next.eq(fits & ~any_of(before) if before else fits),
                reader.ar.ready.eq(is_next & can_issue),
            ]
            m.d.sync += held.eq(held + Mux(is_next & can_issue, beats, 0) - self.gone[k])
            chosen.append(is_next)
            before.append(is_next)
        m.d.comb += [
            can_issue.eq(requests.i.ready & order.i.ready),
            some.eq(any_of(chosen)),
            requests.i.valid.eq(some & order.i.ready),
            order.i.valid.eq(some & requests.i.ready),
            order.i.p.eq(any_of(Mux(is_next, k, 0) for k, is_next in enumerate(chosen))),
            Value.cast(requests.i.p).eq(
                any_of(
                    Mux(is_next, Value.cast(reader.ar.p), 0)
                    for reader, is_next in zip(readers, chosen, strict=True)
                )
            ),
            self.axi.ar.valid.eq(requests.o.valid),
            Value.cast(self.axi.ar.p).eq(Value.cast(requests.o.p)),
            requests.o.ready.eq(self.axi.ar.ready),
        ]
        r = self.axi.r
        takes = [order.o.valid & (order.o.p == k) for k in range(config.readers)]
        for reader, take in zip(readers, takes, strict=True):
            m.d.comb += [
                reader.r.valid.eq(r.valid & take),
                Value.cast(reader.r.p).eq(Value.cast(r.p)),
            ]
        ready = Cat(
            take & reader.r.ready for reader, take in zip(readers, takes, strict=True)
        ).any()
        m.d.comb += [
            r.ready.eq(ready | ~order.o.valid),  # a beat that no burst requested is dropped
            order.o.ready.eq(r.valid & ready & r.p.last),
        ]
        return m
