"""The activation entries of one MATMUL."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream

from golden.kllm.isa import ROW_ELEMENTS
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kllm.engine import SLOT_LENGTH_BITS, slot_read
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.matmul.config import FIRST_REQUEST
from hdl.kllm.matmul.payloads import matmul_work_layout
from hdl.ports import In, Out
from hdl.walk import Walk


class KllmEntryWalk(Block):
    """Gives, for each group and each token, entries of slot + t, ``elements`` per beat of ``a``.

        =======  =================  =========================================
        work     value              outlier, within the length
        =======  =================  =========================================
        K-Means  of the slot        of the slot
        integer  of the slot        none
        direct   0                  every element; the walk reads no slot
        void     0                  none; the walk reads no slot
        =======  =================  =========================================

    The walk begins in the cycle after ``start``. ``work`` must not change until ``done``. Requests
    run ahead of the beats, as far as the slots take them.

    Latency: ``start`` to the first request 1 cycle, a row to its first beat 0 cycles. Throughput 1
    beat per cycle. ``entries.ready`` depends combinationally on ``a.ready``.
    Golden: golden.kllm.walks.entry_beats.

    Elements beyond the length keep the values of the slot. Their mask bits are 0.
    """

    tier = Tier.PART
    golden = "golden.kllm.walks:entry_beats"
    configs = FieldOf("kllm_accelerator", "lane", ("table1", "small"))

    def __init__(self, config: KllmPeLaneConfig):
        client = slot_read("slot", config.bits_a, config.integer_bits)
        super().__init__(
            config,
            {
                "start": In(1, "A walk begins."),
                "work": In(matmul_work_layout, "The command that runs."),
                "done": Out(1, "Every beat was taken."),
                "entry_request": client["slot_entry_request"],
                "entries": client["slot_entries"],
                "a": Out(stream.Signature(config.a_layout), "Activation entries of the jobs."),
            },
        )

    # The memory's latency is not included.
    timing = Timing(
        latency=0,
        start="a row of entries",
        end="a",
        unit="beat",
        delays=(FIRST_REQUEST, ("from start to the first beat, if direct", 1)),
    )

    def elaborate(self, platform) -> Module:
        m, work, elements = Module(), self.work, self.config.elements
        no_slot = work.direct | work.void
        asks = Walk(m, "asks", groups=work.groups, tokens=work.tokens, rows=work.rows)
        m.d.comb += [
            asks.start.eq(self.start & ~no_slot),
            self.entry_request.valid.eq(~asks.done),
            self.entry_request.p.slot.eq(work.slot + asks.at.tokens),
            self.entry_request.p.row.eq(asks.at.rows),
            asks.step.eq(self.entry_request.valid & self.entry_request.ready),
        ]

        walk = Walk(m, "walk", groups=work.groups, tokens=work.tokens, beats=work.beats)
        beat, is_last = walk.at.beats, walk.last.beats
        row_beats = ROW_ELEMENTS // elements
        part = beat[: (row_beats - 1).bit_length()]  # of the row
        entries = self.entries.p
        value_bits = len(entries.value[0])
        here = Signal(SLOT_LENGTH_BITS + 1)  # position of the beat's first element
        inside = Cat(here + e < work.length for e in range(elements))
        values, mask = Cat(entries.value), entries.outlier
        is_row_end = Const(1)
        if row_beats > 1:
            values = values.word_select(part, elements * value_bits)
            mask = mask.word_select(part, elements)
            is_row_end = is_last | part.all()
        every = (1 << elements) - 1
        outlier = Mux(work.integer | work.void, 0, Mux(work.direct, every, mask))
        m.d.comb += [
            walk.start.eq(self.start),
            walk.step.eq(self.a.valid & self.a.ready),
            self.done.eq(walk.done),
            here.eq(beat * elements),
            self.a.valid.eq(~walk.done & (no_slot | self.entries.valid)),
            self.a.p.value.as_value().eq(Mux(no_slot, 0, values)),
            self.a.p.outlier.eq(outlier & inside),
            self.a.p.last.eq(is_last),
            self.entries.ready.eq(~walk.done & ~no_slot & self.a.ready & is_row_end),
        ]
        return m
