"""Queries of a layer to groups that the engines take side by side."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.million.config import NAMED, RateShape
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.million.layouts import beat_layout, query_layout, slopes_layout
from hdl.million.shapes import SMALL, SMALL_RATE, VectorConfig
from hdl.ports import In, Out, Payload
from hdl.walk import Walk


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionQuerySplitterConfig(VectorConfig):
    """Size of a query, and how many are side by side."""

    @property
    def beats(self) -> int:
        """Beats of one query."""
        return self.pq.head_dim // self.rate.lanes

    @property
    def job_layout(self) -> Payload:
        return Payload(
            queries=(range(self.rate.queries + 1), "queries of the group, 1..queries"),
            discard=(1, "the request is refused: its queries are taken and not given"),
        )


class MillionQuerySplitter(Block):
    """``q`` = the next ``job.queries`` queries of ``query``, and zeros up to ``queries`` of them.

    The engines work on ``queries`` queries side by side, query 0 first. ``slopes`` follows the
    last beat. It has the slope of each query, +0 of a zero query. ``bad`` marks queries with a NaN
    or an infinity in an element or in the slope. Such words pass as they are. A job with
    ``discard`` takes its queries, and neither ``q`` nor ``slopes`` has a word for it.

    One beat per cycle, latency 0 from ``query`` to ``q``. ``slopes`` comes one cycle after the
    last beat, and the next job is taken with it. ``q.valid`` depends combinationally on
    ``query.valid``, ``query.ready`` on ``q.ready``, and ``job.ready`` on ``slopes.ready``.
    Golden: golden.million.split.groups.

    A group takes queries * head_dim / lanes cycles for its beats, and one for the next job.
    """

    tier = Tier.PART
    golden = "golden.million.split:groups"
    default = MillionQuerySplitterConfig()
    configs: ClassVar = {
        "smollm2": MillionQuerySplitterConfig(pq=NAMED["4b_64"], rate=RateShape(queries=3)),
        "small": MillionQuerySplitterConfig(pq=SMALL, rate=SMALL_RATE),
    }

    def __init__(self, config: MillionQuerySplitterConfig):
        rate = config.rate
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Groups of queries, in order."),
                "query": In(
                    stream.Signature(query_layout(rate.lanes)),
                    "Queries, head_dim / lanes beats each.",
                ),
                "q": Out(
                    stream.Signature(beat_layout(rate.lanes)),
                    "Queries of a group, query 0 first; last ends the group.",
                ),
                "slopes": Out(
                    stream.Signature(slopes_layout(rate.queries)), "After the queries of a group."
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """The beats of a group, and one cycle in which the next job is taken."""
        beats = self.config.rate.queries * self.config.beats
        return Timing(
            latency=0,
            interval=Fraction(beats + 1, beats),
            start="query",
            end="q",
            unit="beat",
            delays=(("from the last beat of a group to slopes", 1),),
            words=(("query", 1), ("q", 1)),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        queries = config.rate.queries
        walk = Walk(m, "walk", queries=queries, beats=config.beats)
        job = Signal(config.job_layout, reset_less=True)
        is_real = Signal()
        moves = Signal()
        m.d.comb += [
            self.job.ready.eq(walk.done & (~self.slopes.valid | self.slopes.ready)),
            walk.start.eq(self.job.valid & self.job.ready),
            is_real.eq(walk.at.queries < job.queries),
            walk.step.eq(moves),
        ]
        with m.If(walk.start):
            m.d.sync += job.eq(self.job.p)
        wrong = Cat(is_nonfinite(word) for word in self.query.p.word).any()
        slope_wrong = is_nonfinite(self.query.p.slope)
        m.d.comb += self.q.p.last.eq(walk.is_last)
        with m.If(is_real):
            m.d.comb += self.q.p.word.eq(self.query.p.word)
        with m.If(~walk.done):
            with m.If(job.discard):
                m.d.comb += [
                    self.query.ready.eq(is_real),
                    moves.eq(self.query.valid | ~is_real),
                ]
            with m.Else():
                m.d.comb += [
                    self.q.valid.eq(self.query.valid | ~is_real),
                    self.query.ready.eq(is_real & self.q.ready),
                    moves.eq(self.q.valid & self.q.ready),
                ]
        slopes = Signal(slopes_layout(queries), reset_less=True)
        m.d.comb += self.slopes.p.eq(slopes)
        with m.If(self.slopes.ready):
            m.d.sync += self.slopes.valid.eq(0)
        with m.If(moves & walk.is_last):
            m.d.sync += self.slopes.valid.eq(~job.discard)
        for k in range(queries):
            with m.If(walk.start):
                m.d.sync += [slopes.bad[k].eq(0), slopes.slope[k].eq(0)]
            with m.If(moves & is_real & (walk.at.queries == k)):
                m.d.sync += [
                    slopes.slope[k].eq(self.query.p.slope),
                    slopes.bad[k].eq(Mux(wrong | slope_wrong, 1, slopes.bad[k])),
                ]
        return m


def is_nonfinite(word):
    """An FP16 word is NaN or an infinity."""
    return word[FP16.frac_bits : FP16.bits - 1] == FP16.exp_max
