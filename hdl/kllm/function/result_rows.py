"""Results gathered into rows, and written."""

import dataclasses

from amaranth import Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, choice, power_of_two
from golden.fp16.format import FP16
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.timing import result_rows
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kllm.engine import ROW, row_write_layout
from hdl.kllm.function.job import RowWalk, result_walk_layout
from hdl.kllm.function.pipeline import FUNCTIONS
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmResultRowsConfig(Config):
    """Words per beat."""

    width: int = power_of_two(8, 1, 16, "words per beat of i")
    functions: int = choice(1, FUNCTIONS, "words per transfer of element")


class KllmResultRows(Block):
    """16 / width beats of ``i``, or 16 / functions of ``element``, are one row of ``write``.

    The rows go to the places of ``walk``, in its order. Elements after the last of a token are
    +0: those from ``tail`` on in its last row. A ``tail`` of 0 keeps them all, as does a walk in
    pairs. A ``single`` walk takes from ``element``, another from ``i``; neither is ready without
    a walk. ``walk`` is ready when the last row has gone to the output register. ``idle`` says in
    addition that it was taken.

    Latency: the last word of a row to its row 1 cycle. Throughput 1 beat of either per cycle.
    ``i.ready`` and ``element.ready`` depend combinationally on ``write.ready``. Nothing rounds.
    Golden: golden.kllm.phases.result_rows.
    """

    tier = Tier.PART
    golden = "golden.kllm.phases:result_rows"
    configs = FieldOf("kllm_functional_unit", "results")

    def __init__(self, config: KllmResultRowsConfig):
        beat = Payload(
            word=(
                data.ArrayLayout(FP16.bits, config.width),
                "FP16 words, the first element first",
                FP16,
            )
        )
        element = Payload(
            y=(
                data.ArrayLayout(FP16.bits, config.functions),
                "FP16 words, the first element first",
                FP16,
            )
        )
        super().__init__(
            config,
            {
                "walk": In(stream.Signature(result_walk_layout), "Rows to write."),
                "i": In(stream.Signature(beat), "Words of rows, width at a time."),
                "element": In(stream.Signature(element), "Words of rows, functions at a time."),
                "write": Out(stream.Signature(row_write_layout), "Rows of results."),
                "idle": Out(1, "Every row of every walk was taken."),
            },
        )

    @property
    def timing(self) -> Timing:
        return result_rows(self.config.width, self.config.functions)

    def elaborate(self, platform) -> Module:
        m, width, functions = Module(), self.config.width, self.config.functions
        start = Signal()
        row_done = Signal()
        tail = Signal(4, reset_less=True)
        single = Signal(reset_less=True)
        walk = RowWalk(m, "rows", start=start, payload=self.walk.p.rows, step=row_done)
        with m.If(start):
            m.d.sync += [tail.eq(self.walk.p.tail), single.eq(self.walk.p.single)]

        place = Signal(4)  # of the next element within the row
        result = Signal(ROW, reset_less=True)
        write = Signal(row_write_layout, reset_less=True)
        write_valid = Signal()
        put = Signal()
        put_ready = Signal()
        row_end = Signal()
        last_place = Mux(single, ROW_ELEMENTS - functions, ROW_ELEMENTS - width)
        m.d.comb += [
            start.eq(self.walk.valid & self.walk.ready),
            self.walk.ready.eq(walk.done),
            row_end.eq(place == last_place),
            put_ready.eq(~walk.done & (~row_end | ~write_valid | self.write.ready)),
            self.i.ready.eq(put_ready & ~single),
            self.element.ready.eq(put_ready & single),
            put.eq(Mux(single, self.element.valid, self.i.valid) & put_ready),
            row_done.eq(put & row_end),
            self.write.valid.eq(write_valid),
            self.write.payload.eq(write),
            self.idle.eq(walk.done & ~write_valid),
        ]
        written = Signal(ROW)
        for e in range(ROW_ELEMENTS):
            word = Signal(FP16.bits, name=f"word_{e}")
            m.d.comb += word.eq(result[e])
            first, first_single = e // width * width, e // functions * functions
            with m.If(Mux(single, place == first_single, place == first)):
                m.d.comb += word.eq(
                    Mux(single, self.element.p.y[e % functions], self.i.p.word[e % width])
                )
            with m.If(put):
                m.d.sync += result[e].eq(word)
            # Position 15 is never before a tail.
            within = tail > e if e < ROW_ELEMENTS - 1 else Const(0, 1)
            beyond = walk.last_step & ~walk.pair & (tail != 0) & ~within
            m.d.comb += written[e].eq(Mux(beyond, 0, word))
        with m.If(put):
            m.d.sync += place.eq(Mux(row_end, 0, place + Mux(single, functions, width)))
        with m.If(self.write.ready):
            m.d.sync += write_valid.eq(0)
        with m.If(row_done):
            m.d.sync += [write_valid.eq(1), write.row.eq(walk.row), write.word.eq(written)]
        return m
