"""Exact sums of rows that are added up, kept from job to job, and given when they are final."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value

from hdl.children import add
from hdl.index.stages import Stage
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.stream.queue import queue
from hdl.vqllm.row.config import SumsConfig


class Totals:
    """Terms of rows are added to the sums so far; final sums wait in the queue ``o``.

    stages: of the beats, the last one in the cycle of ``terms``. Their flags have row, begins,
    ends, first, final, last, bad. wrong: bits of a row, or of each vector of it, that any beat
    sets. config: a SumsConfig.

    Set by the parent: ``begins``, a beat with a final sum enters the pipeline. It waits for
    ``room``. latency: cycles from there to ``o``.
    """

    def __init__(
        self, m: Module, config: SumsConfig, stages: list[Stage], terms, wrong: Value, latency: int
    ):
        early, at = stages[-2], stages[-1]
        memory = add(m, "partials", Memory1R1W(config.partials))
        total = Signal(config.sums_layout, reset_less=True)
        forward = Signal()
        before = Signal(config.sums_layout)
        added = Signal(config.sums_layout)
        total_wrong = Signal(len(wrong), reset_less=True)  # of the row so far
        wrong_now = Signal(len(wrong))
        so_far = _by_group(m, config, early, at, total, added) if config.has_groups else total
        begun_before = Mux(forward, Cat(total, total_wrong), memory.read_data)
        read = Mux(at.flags.begins, begun_before, Cat(so_far, total_wrong))
        slot_early, slot = (
            Cat(stage.flags.group, stage.flags.row) if config.has_groups else stage.flags.row
            for stage in (early, at)
        )
        starts = at.flags.begins & at.flags.first
        ends = Signal()
        m.d.comb += [
            memory.read_en.eq(early.valid & early.flags.begins),
            memory.read_addr.eq(slot_early),
            memory.write_en.eq(at.valid & at.flags.ends & ~at.flags.final),
            memory.write_addr.eq(slot),
            memory.write_data.eq(Cat(added, wrong_now)),
            before.eq(read[: -len(wrong)]),
            wrong_now.eq((read[-len(wrong) :] & ~starts.replicate(len(wrong))) | wrong),
            ends.eq(at.valid & at.flags.ends & at.flags.final),
        ]
        # A job of one row reads the sum that the job before it writes in that cycle.
        m.d.sync += forward.eq(memory.write_en & (slot_early == slot))
        for b, term in enumerate(terms):
            m.d.comb += added[b].eq(Mux(starts, 0, before[b]) + term)
        with m.If(at.valid):
            m.d.sync += [total.eq(added), total_wrong.eq(wrong_now)]

        size = latency + 2
        sums = queue(m, "sums", config.sum_layout, size, storage="memory")
        is_sum = Signal()
        held = Signal(range(size + 1))
        kept = Signal(at.flags.shape(), reset_less=True)
        self.begins = Signal()
        self.room = Signal()
        self.o = sums.o
        m.d.sync += [
            is_sum.eq(ends),
            kept.eq(at.flags),
            held.eq(held + self.begins - (sums.o.valid & sums.o.ready)),
        ]
        times = config.batch // len(wrong)
        m.d.comb += [
            self.room.eq(held != size),
            sums.i.valid.eq(is_sum),
            sums.i.p.value.eq(total),
            sums.i.p.bad.eq(kept.bad | total_wrong.replicate(times)),
            sums.i.p.last.eq(kept.last),
        ]
        if config.has_groups:
            m.d.comb += sums.i.p.row_end.eq(kept.row_end)


def _by_group(m: Module, config, early: Stage, at: Stage, total, added) -> Signal:
    """The sum so far of the row and of the beat's group."""
    memory = add(m, "totals", Memory1R1W(config.totals))
    again = Signal()
    so_far = Signal(config.sums_layout)
    m.d.comb += [
        memory.read_en.eq(early.valid),
        memory.read_addr.eq(early.flags.group),
        memory.write_en.eq(at.valid),
        memory.write_addr.eq(at.flags.group),
        memory.write_data.eq(added),
        Value.cast(so_far).eq(Mux(again, Value.cast(total), memory.read_data)),
    ]
    # A job of one group reads the sum that is written in that cycle.
    m.d.sync += again.eq(at.valid & (early.flags.group == at.flags.group))
    return so_far
