"""Weighted sums from products: part of attention_stream."""

import itertools

from amaranth import Cat, Module, Mux, Signal, signed
from amaranth.lib import stream

from golden.attention.format import WEIGHTED_BITS
from hdl.attention.stream_config import AttentionStreamConfig, term_ports
from hdl.bits import let
from hdl.block import Block
from hdl.ports import In, Out
from hdl.walk import Walk


class AttentionStreamSums(Block):
    """``sum`` = sum over the rows of w * v of each element and query, once all rows are added.

    A row passes once: each product has a ring of exact sums, one per cycle of a row. ``claim``
    takes the sums for a job, and ``room`` returns when the last one is taken. A sum that leaves
    is replaced by 0, with which the next job begins.
    """

    def __init__(self, config: AttentionStreamConfig):
        super().__init__(
            config,
            {
                **term_ports(config, In),
                "claim": In(1, "Rows of a job begin."),
                "room": Out(1, "No job has the sums."),
                "sum": Out(
                    stream.Signature(config.sum_layout),
                    "Sums: for each beat of a row, for each query.",
                ),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        busy = Signal()
        full = Signal()
        adds = let(m, "adds", self.flags.is_value)
        takes = let(m, "takes", self.sum.valid & self.sum.ready)
        cells = config.macs // config.width
        walk = Walk(m, "walk", words=config.words, cells=cells)
        turns = let(m, "turns", takes & walk.last.cells)
        one = Signal(config.macs, reset_less=True)  # that the complement of a term lacks
        m.d.sync += one.eq(self.sign)
        oldest = []
        for n in range(config.macs):
            bits = signed(config.value_bits)
            ring = [Signal(bits, name=f"total_{n}_{k}") for k in range(config.words)]
            term = Cat(self.term[n][:WEIGHTED_BITS], self.term[n][-1])
            # The one is the carry into the sum.
            pair = Cat(one[n], ring[-1]).as_signed() + Cat(one[n], term).as_signed()
            added = let(m, f"added_{n}", pair[1 : config.value_bits + 1])
            with m.If(adds | turns):
                m.d.sync += ring[0].eq(Mux(adds, added, 0))
                m.d.sync += [b.eq(a) for a, b in itertools.pairwise(ring)]
            oldest.append(ring[-1])
        bits = config.value_bits * config.width
        m.d.comb += [
            self.room.eq(~busy),
            self.sum.valid.eq(full),
            self.sum.p.value.eq(Cat(oldest).word_select(walk.at.cells, bits)),
            walk.start.eq(self.claim),
            walk.step.eq(takes),
        ]
        with m.If(takes & walk.is_last):
            m.d.sync += [full.eq(0), busy.eq(0)]
        with m.If(adds & self.flags.phase_last):
            m.d.sync += full.eq(1)
        with m.If(self.claim):
            m.d.sync += busy.eq(1)
        return m
