"""Rows of one operand, ahead of their use."""

import dataclasses

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.kllm.timing import row_reader
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kllm.engine import ROW, row_read
from hdl.kllm.function.job import RowWalk, row_walk_layout
from hdl.ports import In, Out, Payload
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmRowReaderConfig(Config):
    """Rows held."""

    depth: int = bounded(4, 2, 64, "rows requested before they are used")


class KllmRowReader(Block):
    """``o`` = the rows of ``walk`` from the vector memory, in order, or the rows of ``i``.

        row(t, k) = first + k + t * stride; in pairs row(t, k), then second + k + t * stride

    A row is requested only if a place in the queue is free for it: ``a_row`` is always ready. Up
    to ``depth`` rows are requested before their use. ``walk`` is ready when all rows of the walk
    before are requested. ``i`` is ready when in addition all of them have arrived, so rows leave
    in the order of walks and of ``i``.

    Latency: walk to the first request 1 cycle, a row in to the same row out 1 cycle. Throughput
    1 row per cycle if the memory answers within depth - 2 cycles. Nothing rounds. No
    combinational path leads from an input to an output. Golden: golden.kllm.phases.walk_rows.

    No other client of the memory waits for this one. A unit of ``width`` elements needs a row every
    16 / width cycles, which hides more than depth - 2 cycles.
    """

    tier = Tier.PART
    golden = "golden.kllm.phases:walk_rows"
    configs = FieldOf("kllm_functional_unit", "reader")

    def __init__(self, config: KllmRowReaderConfig):
        row = stream.Signature(Payload(word=(ROW, "16 FP16 words, element 0 first", FP16)))
        super().__init__(
            config,
            {
                "walk": In(
                    stream.Signature(row_walk_layout),
                    "Rows to read: tokens of steps, in pairs or one by one.",
                ),
                **row_read("a"),
                "i": In(row, "Rows from elsewhere."),
                "o": Out(row, "Rows of either kind, in order."),
            },
        )

    @property
    def timing(self) -> Timing:
        return row_reader(self.config.depth)

    def elaborate(self, platform) -> Module:
        m, depth = Module(), self.config.depth
        requested = Signal()
        given = Signal()
        rows = queue(m, "queue", self.o.p.shape(), depth)
        walk = RowWalk(
            m,
            "rows",
            start=self.walk.valid & self.walk.ready,
            payload=self.walk.payload,
            step=requested,
        )
        taken = Signal(range(depth + 1))  # places with a row in them, or on order
        m.d.sync += taken.eq(taken + (requested | (self.i.valid & self.i.ready)) - given)
        m.d.comb += [
            self.walk.ready.eq(walk.done),
            self.a_request.valid.eq(~walk.done & (taken != depth)),
            self.a_request.p.row.eq(walk.row),
            requested.eq(self.a_request.valid & self.a_request.ready),
            self.a_row.ready.eq(1),
            self.i.ready.eq(walk.done & (taken == rows.level) & (taken != depth)),
            rows.i.valid.eq(self.a_row.valid | (self.i.valid & self.i.ready)),
            Value.cast(rows.i.payload).eq(
                Mux(self.a_row.valid, Value.cast(self.a_row.payload), Value.cast(self.i.payload))
            ),
            self.o.valid.eq(rows.o.valid),
            Value.cast(self.o.payload).eq(Value.cast(rows.o.payload)),
            rows.o.ready.eq(self.o.ready),
            given.eq(self.o.valid & self.o.ready),
        ]
        return m
