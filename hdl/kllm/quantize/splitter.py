"""Rows to clustering or division, their outliers one by one."""

import dataclasses

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.index.format import K_MAX
from golden.kllm.format import TokenKind
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, FieldOf, Tier
from hdl.index.nearest import IndexNearestConfig
from hdl.kllm.engine import SLOT_LENGTH_BITS
from hdl.kllm.quantize.payloads import (
    STATUS_BITS,
    beat_layout,
    outlier_layout,
    split_row_layout,
    word_layout,
)
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue

_MAGNITUDE_BITS = FP16.bits - 1
_LARGEST_CODEBOOK_WORD = FP16.bias << FP16.frac_bits  # 1.0
_AHEAD = 4  # outliers that may wait for their slot, or for the statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmRowSplitterConfig(Config):
    """The limit of what a slot holds."""

    outliers_max: int = bounded(64, 1, K_MAX, "most outliers of a token")


class KllmRowSplitter(Block):
    """Each row of ``i`` as one word of ``beat``, and each of its outliers as a word of ``outlier``.

    The words that ``beyond`` marks leave one per cycle, lowest element first. Those of a token are
    numbered from 0. After the last one a ``mark`` has their number as position, and the status of
    the token as word:

        ==================================================  ==============
        condition, of all rows of the token                 status
        ==================================================  ==============
        ``nonfinite``                                       NONFINITE
        more than ``outliers_max`` bits of ``beyond``       CAPACITY
        of a codebook: a marked word beyond -1..1           RANGE
        ==================================================  ==============

    Words from number ``outliers_max`` on are not stored. With ``norm`` each marked word goes to
    ``x`` as well, stored or not. The marked words of a codebook are packets instead: those of row 0
    on ``centroids``, those of row 1 on ``midpoints``. A codebook has no beats. ``codebook_ok`` says
    that the latest codebook had no fault, with its mark; it is 0 after reset.

    Latency: i to beat 1 cycle, i to its first outlier 2 cycles. A row of o outliers takes
    max(1, o) cycles, and the last row of a token that has any 1 cycle more, for the mark.
    ``i.ready`` depends combinationally on ``beat.ready``, and through it on ``centroids.ready`` and
    ``midpoints.ready``. Nothing rounds. Golden: golden.kllm.quantizer_phases.split_rows.

    ``x`` has each marked word so that no stream waits for it.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer_phases:split_rows"
    configs = FieldOf("kllm_quantizer", "splitter", ("table1", "small"))

    def __init__(self, config: KllmRowSplitterConfig):
        packet = stream.Signature(IndexNearestConfig().midpoints_layout)
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(split_row_layout), "Rows with the mask of their outliers."
                ),
                "beat": Out(stream.Signature(beat_layout), "Rows to cluster or to divide."),
                "outlier": Out(
                    stream.Signature(outlier_layout),
                    "Outliers with their numbers; a mark after each token.",
                ),
                "x": Out(stream.Signature(word_layout), "Outliers for the statistics."),
                "centroids": Out(packet, "Centroids of a codebook."),
                "midpoints": Out(packet, "Midpoints of a codebook."),
                "codebook_ok": Out(1, "A codebook is loaded."),
            },
        )

    timing = Timing(latency=1, end="beat", unit="row", delays=(("from i to its first outlier", 2),))

    def elaborate(self, platform) -> Module:
        m = Module()
        outliers = queue(m, "outliers", outlier_layout, _AHEAD)
        x = queue(m, "norm_words", word_layout, _AHEAD)
        link(m, outliers.o, self.outlier)
        link(m, x.o, self.x)

        # The row, and which of its outliers are left, lowest position first.
        row = Signal(split_row_layout, reset_less=True)
        valid = Signal()
        left = Signal(ROW_ELEMENTS, reset_less=True)
        beat_sent = Signal()
        is_codebook = let(m, "is_codebook", row.kind == TokenKind.CODEBOOK)
        any_left = let(m, "any_left", left.any())
        after = let(m, "after", left & (left - 1)[:ROW_ELEMENTS])
        one_left = let(m, "one_left", any_left & ~after.any())
        lowest = let(m, "lowest", left & ~after)
        word = Signal(FP16.bits)
        m.d.comb += word.eq(
            Cat(
                Cat(row.word[e][bit] & lowest[e] for e in range(ROW_ELEMENTS)).any()
                for bit in range(FP16.bits)
            )
        )

        # Where the lowest goes.
        count = Signal(SLOT_LENGTH_BITS)
        full = let(m, "full", count == self.config.outliers_max)
        ready = Signal()
        packet = Mux(row.row == 0, self.centroids.ready, self.midpoints.ready)
        stored = (outliers.i.ready | full) & (x.i.ready | ~row.norm)
        beat_take = Signal()
        beat_done = Signal()
        word_take = Signal()
        mark_take = Signal()
        row_done = Signal()
        free = let(m, "free", ~valid | row_done)
        m.d.comb += [
            ready.eq(Mux(is_codebook, packet, stored)),
            self.beat.valid.eq(valid & ~beat_sent & ~is_codebook),
            beat_take.eq(self.beat.valid & self.beat.ready),
            beat_done.eq(beat_sent | is_codebook | beat_take),
            word_take.eq(valid & any_left & ready),
            mark_take.eq(valid & row.last & ~any_left & beat_done & outliers.i.ready),
            row_done.eq(
                Mux(row.last, mark_take, valid & beat_done & (~any_left | (one_left & word_take)))
            ),
            self.i.ready.eq(free),
        ]
        with m.If(free):
            m.d.sync += [
                valid.eq(self.i.valid),
                row.eq(self.i.payload),
                left.eq(self.i.p.beyond),
                beat_sent.eq(0),
            ]
        with m.Else():
            m.d.sync += beat_sent.eq(beat_sent | beat_take)
            with m.If(word_take):
                m.d.sync += left.eq(after)

        # What becomes of the token.
        # more than fit; a wrong word
        over = Signal()
        bad = Signal()
        too_large = any_left & (word[:_MAGNITUDE_BITS] > _LARGEST_CODEBOOK_WORD)
        wrong = let(m, "wrong", Mux(is_codebook, too_large, row.nonfinite))
        with m.If(mark_take):
            m.d.sync += [count.eq(0), over.eq(0), bad.eq(0)]
            with m.If(is_codebook):
                m.d.sync += self.codebook_ok.eq(~(bad | wrong))
        with m.Elif(valid):
            m.d.sync += bad.eq(bad | wrong)
            with m.If(word_take & ~is_codebook):
                m.d.sync += [count.eq(count + ~full), over.eq(over | full)]
        fault = Mux(is_codebook, int(CommandStatus.RANGE), int(CommandStatus.NONFINITE))
        status = let(
            m,
            "status",
            Mux(bad | wrong, fault, Const(0, STATUS_BITS))
            | Mux(over, int(CommandStatus.CAPACITY), 0),
        )
        self._outputs(m, row, outliers.i, x.i, word, status)
        m.d.comb += [
            outliers.i.valid.eq((word_take & ~is_codebook & ~full) | mark_take),
            outliers.i.p.mark.eq(~any_left),
            outliers.i.p.position.eq(count),
            x.i.valid.eq(word_take & ~is_codebook & row.norm),
            self.centroids.valid.eq(valid & is_codebook & any_left & (row.row == 0)),
            self.centroids.p.last.eq(one_left),
            self.midpoints.valid.eq(valid & is_codebook & any_left & (row.row != 0)),
            self.midpoints.p.last.eq(one_left),
        ]
        return m

    def _outputs(self, m: Module, row, outlier, x, word: Value, status: Value) -> None:
        """Payloads: the row, and the outlier, its number being set by the caller."""
        beat = self.beat.p
        is_mark = outlier.p.mark
        m.d.comb += [
            beat.integer.eq(row.kind == TokenKind.INTEGER),
            Value.cast(beat.word).eq(Value.cast(row.word)),
            beat.s.eq(row.s),
            beat.last.eq(row.last),
            beat.tag.slot.eq(row.slot),
            beat.tag.row.eq(row.row),
            beat.tag.outlier.eq(row.beyond),
            beat.tag.live.eq(row.live),
            beat.tag.norm.eq(row.norm),
            beat.tag.last.eq(row.last),
            outlier.p.slot.eq(row.slot),
            outlier.p.word.eq(Mux(is_mark, status, word)),
            *(each.p.word.eq(word) for each in (x, self.centroids, self.midpoints)),
        ]
