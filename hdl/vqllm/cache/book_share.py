"""Codebooks that several cores load are read once."""

import dataclasses

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data

from golden.config import Config, bounded, power_of_two
from hdl.axi.signature import Axi4Read, axi4_read
from hdl.block import Block
from hdl.ports import In, Out
from hdl.stream.arbiter import arbiter
from hdl.stream.queue import queue
from hdl.vqllm.memory_port import pass_bursts, words_back


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqBookShareConfig(Config):
    """Readers, widths, and how long a burst waits for others."""

    readers: int = bounded(2, 2, 16, "read clients")
    address_bits: int = bounded(40, 32, 64, "of a byte address")
    data_bits: int = power_of_two(512, 64, 1024, "of a word")
    bursts: int = bounded(64, 2, 256, "in flight")
    patience: int = bounded(32, 0, 255, "cycles that a first burst waits for others")
    mate_patience: int = bounded(
        255, 0, 255, "cycles that a later one waits for those who shared the last"
    )

    @property
    def axi_signature(self) -> Axi4Read:
        return axi4_read(self.address_bits, self.data_bits)


class VqBookShare(Block):
    """One burst for all readers that request the same one; its words go to each of them.

    A reader's first burst after ``clear`` waits for the readers that have requested nothing since
    then, at most ``patience`` cycles. A later one waits for those that shared its last one, at most
    ``mate_patience`` cycles. A reader that requests another burst is never waited for. So no reader
    waits for ever, whatever the others do.

    The bursts of a reader keep their order. The readers must take every word that comes, in the
    cycle in which it comes. A request waits a cycle in a queue, so no combinational path leads from
    a reader to the manager.
    Source: VQ-LLM, section V; decision 0217.
    """

    def __init__(self, config: VqBookShareConfig):
        super().__init__(
            config,
            {
                "reader": In(config.axi_signature, "Reader {0}.").array(config.readers),
                "axi": Out(config.axi_signature, "AXI4 manager."),
                "clear": In(1, "The next burst of each reader is its first one."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        count, burst = config.readers, self.axi.ar.p.shape()
        asks = arbiter(m, "asks", burst, count)
        layout = data.StructLayout({"ar": burst, "readers": count})
        bursts = queue(m, "bursts", layout, 2)
        routes = queue(m, "routes", count, config.bursts)

        first = asks.o.p
        valid = Cat(each.ar.valid for each in self.reader)
        same = Cat(each.ar.valid & (each.ar.p == first) for each in self.reader)
        is_first = Signal(count, init=(1 << count) - 1)
        mates = Array(Signal(count, name=f"mates_{k}") for k in range(count))  # of the last burst
        waits = Signal()
        mate_waits = Signal()
        missing = Signal()
        takes = Signal()
        waited = Signal(range(max(2, config.patience + 1, config.mate_patience + 1)))
        patient, mate_patient = (
            waited < limit if limit else Const(0)
            for limit in (config.patience, config.mate_patience)
        )
        m.d.comb += [
            waits.eq(is_first.bit_select(asks.source, 1) & (is_first & ~valid).any() & patient),
            mate_waits.eq((mates[asks.source] & ~valid).any() & mate_patient),
            missing.eq(waits | mate_waits),
            bursts.i.valid.eq(asks.o.valid & ~missing),
            bursts.i.p.ar.eq(first),
            bursts.i.p.readers.eq(same),
            takes.eq(bursts.i.valid & bursts.i.ready),
            asks.o.ready.eq(takes),
        ]
        with m.If(asks.o.valid):
            m.d.sync += waited.eq(Mux(takes, 0, waited + missing))
        for k, (reader, i) in enumerate(zip(self.reader, asks.i, strict=True)):
            m.d.comb += [
                i.valid.eq(reader.ar.valid),
                i.p.eq(reader.ar.p),
                reader.ar.ready.eq(takes & same[k]),
            ]
            with m.If(takes & same[k]):
                m.d.sync += [mates[k].eq(same), is_first[k].eq(0)]
        with m.If(self.clear):
            m.d.sync += [is_first.eq(-1), *(each.eq(0) for each in mates)]
        m.d.comb += routes.i.p.eq(bursts.o.p.readers)
        pass_bursts(m, bursts.o, bursts.o.p.ar, self.axi, routes)
        words_back(m, self.axi.r, routes, self.reader, lambda k: routes.o.p[k])
        return m
