"""K and V of a token to rows of the window."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream

from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import index_of
from hdl.million.encode_control import row_layout
from hdl.million.layouts import RING_BITS, beat_layout, slot_bits
from hdl.million.query_splitter import is_nonfinite
from hdl.million.shapes import SMALL_CACHE, SMALL_RATE, SMOLLM2_CACHE, LayerConfig
from hdl.ports import In, Out, Payload
from hdl.walk import Walk


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionKvWriterConfig(LayerConfig):
    """Size of a token's K and V, and of a beat."""

    @property
    def job_layout(self) -> Payload:
        return Payload(
            discard=(1, "the token is refused: its K and V are taken and not given"),
            slot=(slot_bits(self.cache), "window of KV head 0", index_of("slots")),
            row=(RING_BITS + 1, "row of the window", index_of("rows")),
        )

    @property
    def kv_layout(self) -> Payload:
        return Payload(word=beat_layout(self.rate.lanes).parts["word"])


class MillionKvWriter(Block):
    """One token's K, then its V: all KV heads of ``kv`` to the same row of their windows.

    Per head a ``row``, then head_dim / lanes beats ``x``. ``done`` comes once per job, one cycle
    after the last beat. Its ``nonfinite`` says that an element was NaN or infinite. Such words are
    written as they are. A job with ``discard`` takes the beats and gives no row.

    One beat per cycle, one more cycle per head for ``row``. ``x`` depends combinationally on
    ``kv``, and ``kv.ready`` on ``x.ready``.
    Golden: golden.million.split.rows.

    Head h goes to window ``job.slot + h``. A job takes a cycle, and ``done`` another one. ``done``
    judges the beats of a discarded job too.
    """

    tier = Tier.PART
    golden = "golden.million.split:rows"
    default = MillionKvWriterConfig()
    configs: ClassVar = {
        "smollm2": MillionKvWriterConfig(cache=SMOLLM2_CACHE),
        "small": MillionKvWriterConfig(cache=SMALL_CACHE, rate=SMALL_RATE),
    }

    def __init__(self, config: MillionKvWriterConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Tokens."),
                "kv": In(
                    stream.Signature(config.kv_layout),
                    "K of all KV heads, then V, head_dim / lanes beats each.",
                ),
                "row": Out(stream.Signature(row_layout(config.cache)), "Rows to write."),
                "x": Out(stream.Signature(beat_layout(config.rate.lanes)), "Elements of the rows."),
                "done": Out(
                    stream.Signature(Payload(nonfinite=(1, "an element is NaN or infinite"))),
                    "End of each token.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """A token: its job, then 2 * heads rows of one cycle and their beats, then the answer."""
        rows, beats = 2 * self.config.cache.head.heads, self._beats
        return Timing(
            latency=0,
            interval=Fraction(2 + rows * (1 + beats), rows * beats),
            start="kv",
            end="x",
            unit="beat",
            delays=(
                ("from job to the first row", 1),
                ("from row to its first beat", 1),
                ("from the last beat of a token to done", 1),
            ),
            words=(("kv", 1), ("x", 1)),
        )

    @property
    def _beats(self) -> int:
        return self.config.cache.pq.head_dim // self.config.rate.lanes

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        heads = config.cache.head.heads
        job = Signal(config.job_layout, reset_less=True)
        walk = Walk(m, "walk", kv=2, heads=heads, beats=self._beats)
        wrong = Signal()
        moves = Signal()
        m.d.comb += [
            self.row.p.slot.eq(job.slot + walk.at.heads),
            self.row.p.row.eq(job.row),
            self.row.p.kv.eq(walk.at.kv),
            self.x.p.word.eq(self.kv.p.word),
            self.x.p.last.eq(walk.last.beats),
            self.done.p.nonfinite.eq(wrong),
            walk.step.eq(moves),
        ]
        finds = Cat(is_nonfinite(word) for word in self.kv.p.word).any()
        with m.If(moves):
            m.d.sync += wrong.eq(Mux(finds, 1, wrong))
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.job.ready.eq(1), walk.start.eq(self.job.valid)]
                m.d.sync += [job.eq(self.job.p), wrong.eq(0)]
                with m.If(self.job.valid):
                    m.next = "ROW"
                    with m.If(self.job.p.discard):
                        m.next = "DISCARD"
            with m.State("ROW"):
                m.d.comb += self.row.valid.eq(1)
                with m.If(self.row.ready):
                    m.next = "BEATS"
            with m.State("BEATS"):
                m.d.comb += [
                    self.x.valid.eq(self.kv.valid),
                    self.kv.ready.eq(self.x.ready),
                    moves.eq(self.kv.valid & self.x.ready),
                ]
                with m.If(moves & walk.last.beats):
                    m.next = "ROW"
                    with m.If(walk.is_last):
                        m.next = "DONE"
            with m.State("DISCARD"):
                m.d.comb += [self.kv.ready.eq(1), moves.eq(self.kv.valid)]
                with m.If(moves & walk.is_last):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.done.valid.eq(1)
                with m.If(self.done.ready):
                    m.next = "IDLE"
        return m
