"""Rows of K and V for attention: part of oaken_attention."""

from amaranth import Const, Module, Signal, Value
from amaranth.lib import stream

from hdl.bits import after, let
from hdl.block import Block
from hdl.oaken.attention_config import OakenAttentionConfig
from hdl.ports import In, Out


class OakenAttentionRows(Block):
    """Rows of each ``stretch``, from the words ``i`` of its READ, after those that it skips.

    Rows of zeros with ``error`` take the place of those that the READ does not give. Rows beyond
    the stretch are discarded. All rows of a READ that gives another number have ``error``. A beat
    per cycle, with no cycle between stretches.
    """

    def __init__(self, config: OakenAttentionConfig):
        super().__init__(
            config,
            {
                "stretch": In(stream.Signature(config.stretch_layout), "Stretches of rows."),
                "i": In(stream.Signature(config.cache_engine.o_layout), "Decoded groups."),
                "rows": Out(stream.Signature(config.stream.rows_layout), "Rows."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        stretch = self.stretch.p
        beats = config.stream.heads * config.stream.steps
        beat = Signal(range(max(2, beats)))
        row = Signal.like(stretch.rows)
        is_last = let(m, "is_last", (beat == beats - 1) & (row == stretch.rows - 1))
        has_ended = Signal()  # the READ has given its last word
        discards = Signal()  # what the READ gives beyond the stretch before
        passes = let(m, "passes", stretch.has_words & ~has_ended)
        is_open = let(m, "is_open", self.stretch.valid & ~discards)
        moves = let(m, "moves", self.rows.valid & self.rows.ready)
        ends = let(m, "ends", self.i.valid & self.i.ready & self.i.p.last)
        skips, drops = self._skip(m, stretch, is_open & passes, moves & is_last, beat == beats - 1)
        m.d.comb += [
            self.rows.valid.eq(is_open & ~skips & (self.i.valid | ~passes)),
            self.rows.p.error.eq(stretch.differs),
            self.i.ready.eq(discards | (is_open & passes & (self.rows.ready | skips))),
            self.stretch.ready.eq(moves & is_last),
        ]
        with m.If(passes):
            m.d.comb += [
                self.rows.p.x.eq(self.i.p.x),
                self.rows.p.error.eq(self.i.p.error | stretch.differs),
            ]
        with m.If(ends):
            m.d.sync += [discards.eq(0), has_ended.eq(~discards)]
        with m.If(moves | drops):
            m.d.sync += beat.eq(after(beat, beats))
        with m.If(moves):
            with m.If(beat == beats - 1):
                m.d.sync += row.eq(row + 1)
            with m.If(is_last):
                m.d.sync += [row.eq(0), has_ended.eq(0), discards.eq(passes & ~ends)]
        return m

    def _skip(self, m: Module, stretch, is_due, ends, ends_row) -> tuple[Value, Value]:
        """(rows of the READ are skipped now, a beat of them is taken)."""
        if not self.config.cache.windows:
            return Const(0, 1), Const(0, 1)
        skipped = Signal.like(stretch.skip, name="skipped")
        skips = let(m, "skips", is_due & (skipped != stretch.skip))
        drops = let(m, "drops", skips & self.i.valid)
        with m.If(ends):
            m.d.sync += skipped.eq(0)
        with m.Elif(drops & ends_row):
            m.d.sync += skipped.eq(skipped + 1)
        return skips, drops
