"""Exact sums of the rows of a matrix with vectors (docs/blocks/vq_row_sums.md)."""

from typing import ClassVar

from amaranth import Cat, Const, Module, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.timing import Timing
from golden.vqllm import timing
from hdl.block import Block
from hdl.children import add
from hdl.index.dot_product import IndexDotProduct
from hdl.index.stages import delay
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.operands import VqOperands
from hdl.vqllm.row.config import SMALL_SUMS, VqRowSumsConfig
from hdl.vqllm.totals import Totals
from hdl.walk import Walk


class VqRowSums(Block):
    """``sum[r][b] = sum over columns k of w[r][k] * x[b][k]``, exact, on the grid 2**-48.

    A job covers ``rows`` rows and ``beats`` beats of each: all of row 0, then of row 1, and so on.
    Beat 0 of a row meets word ``offset`` of x. Jobs on other columns of the same rows follow each
    other. Such a job adds to what the one before it left, and ``first`` begins with 0. The sums of
    a job with ``final`` leave, the others stay. Beyond the end of a row there are words of 0.

    x comes in buffers of up to ``batch * groups`` vectors: a packet each, and ``end`` with the last
    one. ``batch`` neighbours are a group. A beat is held while the groups of a job pass, one in a
    cycle. So a row has a sum for each group, and ``row_end`` is with the last of them.

    A job with ``next_x`` waits for the next buffer and uses it, and so do the jobs after it. The
    first job has ``next_x``. One more buffer is filled meanwhile.

    ``bad``: vectors with a NaN or an infinity, and all vectors of a row with ``wrong`` in any beat
    of its jobs. Their sums have no meaning, nor have those of vectors that the buffer lacks. All
    vectors of a buffer are ``bad`` if they differ in length, are too long or too many. With
    ``states_words`` each job states how many words they have. Another length makes them ``bad``,
    too, and ``uneven`` tells of each such buffer.

    A beat and group per cycle, jobs without a pause. Latency golden.vqllm.timing.row_sums, from the
    last beat of a row. No combinational path leads from an input to an output.
    Contract: |w| <= largest; offset + beats, group + groups and rows within the configuration;
    beats, groups and rows at least 1. All jobs of a buffer have the same ``words``.
    Source: VQ-LLM, section II. Golden: golden.vqllm.product.exact_sums.
    """

    golden = "golden.vqllm.product:exact_sums"
    reference = "tests/vqllm/test_product.py: test_by_dequantizing"
    default = VqRowSumsConfig()
    configs: ClassVar = {
        "smollm2": VqRowSumsConfig(macs=32, columns=1536, rows=1536),
        "gptvq2": VqRowSumsConfig(macs=64, largest=1, columns=11264),
        "groups": VqRowSumsConfig(groups=64, columns=1536),
        "small": SMALL_SUMS,
    }

    def __init__(self, config: VqRowSumsConfig):
        uneven = {"uneven": Out(1, "A job takes a buffer with vectors of another length.")}
        super().__init__(
            config,
            {
                **(uneven if config.states_words else {}),
                "x": In(stream.Signature(config.x_layout), "Vectors, one after another."),
                "job": In(stream.Signature(config.job_layout), "Which rows and columns."),
                "w": In(stream.Signature(config.w_layout), "Rows of the matrix."),
                "sum": Out(stream.Signature(config.sum_layout), "Sums of final jobs, row by row."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.row_sums(self.config.macs)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        operands = add(m, "operands", VqOperands(config))
        link(m, self.x, operands.x)
        jobs = queue(m, "jobs", config.job_layout, 2)
        link(m, self.job, jobs.i)

        # Which beat is taken
        job = Signal(config.job_layout, reset_less=True)
        begin = Signal()
        go = Signal()
        room = Signal()
        may = Signal()
        has_groups = config.groups > 1
        walk = Walk(
            m, "walk", rows=job.rows, beats=job.beats, groups=job.groups if has_groups else 1
        )
        group = Signal(config.group_bits, name="group") if has_groups else Const(0, 0)
        now = Signal(config.flags_layout)
        bad = Signal(config.batch * config.groups, reset_less=True)
        m.d.comb += [
            begin.eq(
                jobs.o.valid
                & (walk.done | (go & walk.is_last))
                & (~jobs.o.p.next_x | operands.ready)
            ),
            jobs.o.ready.eq(begin),
            walk.start.eq(begin),
            walk.step.eq(go),
            may.eq(~walk.done & (room | ~now.final | ~now.ends)),
            go.eq(self.w.valid & may),
            self.w.ready.eq(may & walk.last.groups),
            operands.swap.eq(begin & jobs.o.p.next_x),
            operands.read.eq(go),
            operands.place.eq(Cat(group, job.offset + walk.at.beats)),
            now.row.eq(walk.at.rows),
            now.begins.eq(walk.at.beats == 0),
            now.ends.eq(walk.last.beats),
            now.first.eq(job.first),
            now.final.eq(job.final),
            now.last.eq(walk.is_last),
            now.bad.eq(bad.word_select(group, config.batch) if has_groups else bad),
            now.wrong.eq(self.w.p.wrong),
        ]
        if has_groups:
            m.d.comb += [
                group.eq(job.group + walk.at.groups),
                now.group.eq(group),
                now.row_end.eq(walk.last.groups),
            ]
        is_other = Const(0, 1)
        if config.states_words:
            is_other = operands.length != jobs.o.p.words
            m.d.comb += self.uneven.eq(operands.swap & is_other)
        with m.If(begin):
            m.d.sync += [job.eq(jobs.o.p), bad.eq(operands.bad | is_other.replicate(len(bad)))]

        depth = self.timing.latency - 3  # cycles from a beat to its dot product
        word = Signal(config.beat_layout, reset_less=True)
        m.d.sync += word.eq(self.w.p.word)
        stages = delay(m, go, now, depth)
        dots = []
        for b in range(config.batch):
            dot = add(m, f"dot_{b}", IndexDotProduct(config.dot))
            m.d.comb += [
                Value.cast(dot.x).eq(Value.cast(operands.word[b])),
                Value.cast(dot.c).eq(Value.cast(word)),
            ]
            dots.append(dot.sum)
        sums = Totals(m, config, stages, dots, stages[-1].flags.wrong, self.timing.latency)
        m.d.comb += [sums.begins.eq(go & now.ends & now.final), room.eq(sums.room)]
        link(m, sums.o, self.sum)
        return m
