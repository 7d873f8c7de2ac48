"""Scores from products: part of attention_stream."""

import itertools

from amaranth import Module, Mux, Signal, signed
from amaranth.lib import stream

from golden.attention.format import PRODUCT_GRID
from golden.fp16.format import FP16
from golden.index.timing import tree_levels
from hdl.attention.cap import CAP_BITS, CAP_TEXT, AttentionCap, AttentionCapConfig
from hdl.attention.products import delayed
from hdl.attention.stream_config import FLAGS, AttentionStreamConfig, term_ports
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.index.sums import add_tree
from hdl.kinds import BITS
from hdl.ports import In, Out

_ROUND_STAGES = 4


class AttentionStreamScores(Block):
    """``score`` = rne16(sum_i q_i * k_i) of each row of K, all queries of all heads together.

    Each engine adds the ``lanes`` products of a cycle by a tree. The sums of its queries take
    turns, and one rounding unit serves them, with ``caps`` and one unit of ``cap`` after it.
    ``score`` is never delayed: the softmax has taken the row before its first product, and takes a
    score in each cycle then. So ``cap`` is that of the row which the softmax has taken.
    """

    def __init__(self, config: AttentionStreamConfig):
        super().__init__(
            config,
            {
                **term_ports(config, In),
                **({"cap": In(CAP_BITS, CAP_TEXT, BITS)} if config.caps else {}),
                "score": Out(stream.Signature(config.weights.past_layout), "Scores, row by row."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        levels = tree_levels(config.lanes)
        adds, at = delayed(m, self.flags.is_key, self.flags, levels)
        complete = Signal()
        final = Signal(FLAGS, reset_less=True)
        m.d.sync += [complete.eq(adds & at.last), final.eq(at)]
        words = Signal(config.weights.past_layout["word"].shape)
        last = None
        for engine in range(config.engines):
            score = self._sum(m, engine, levels, adds, at)
            tag = 1 if engine == 0 else 0  # all engines move together
            shape = FixedToFloatConfig(
                width=config.score_bits, grid_exponents=(PRODUCT_GRID,), o=FP16,
                stages=_ROUND_STAGES, tag_bits=tag,
            )  # fmt: skip
            rounder = add(m, f"rounder_{engine}", FixedToFloat(shape))
            m.d.comb += [
                rounder.i.valid.eq(complete),
                rounder.i.p.value.eq(score),
                rounder.o.ready.eq(1),
            ]
            if tag:
                m.d.comb += rounder.i.p.tag.eq(final.row_last)
            made = self._capped(m, engine, rounder, tag) if config.caps else rounder.o
            last = made if tag else last
            # The words of turns and heads before wait for those of the last one.
            found = made.p.y
            for group in reversed(range(config.heads * config.turns)):
                m.d.comb += words[0][group * config.engines + engine].eq(found)
                if group:
                    word = Signal(FP16.bits, name=f"word_{group - 1}_{engine}", reset_less=True)
                    with m.If(made.valid):
                        m.d.sync += word.eq(found)
                    found = word
        m.d.comb += [
            self.score.valid.eq(last.valid & last.p.tag),
            self.score.p.word.eq(words),
        ]
        return m

    def _capped(self, m: Module, engine: int, rounder, tag: int):
        """The scores of an engine with their cap."""
        unit = add(m, f"cap_{engine}", AttentionCap(AttentionCapConfig(tag_bits=tag)))
        m.d.comb += [
            unit.cap.eq(self.cap),
            unit.i.valid.eq(rounder.o.valid),
            unit.i.p.s.eq(rounder.o.p.y),
            unit.o.ready.eq(1),
        ]
        if tag:
            m.d.comb += unit.i.p.tag.eq(rounder.o.p.tag)
        return unit.o

    def _sum(self, m: Module, engine: int, levels: int, adds, at) -> Signal:
        """The exact score of each row and query, in the cycle after its last sum."""
        config = self.config
        mine = slice(engine * config.lanes, (engine + 1) * config.lanes)
        terms = [self.term[n] for n in range(config.macs)][mine]
        signs = list(self.sign[mine])
        (partial,) = add_tree(m, f"products_{engine}", terms, signs, levels)
        # They are 0 before a row: the flag selects after the sum, so its fan-out delays nothing.
        bits = signed(config.score_bits)
        ring = [Signal(bits, name=f"ring_{engine}_{n}") for n in range(config.turns)]
        score = Signal(bits, name=f"score_{engine}", reset_less=True)
        total = let(m, f"total_{engine}", (ring[-1] + partial)[: config.score_bits].as_signed())
        with m.If(adds):
            m.d.sync += [score.eq(total), ring[0].eq(Mux(at.last, 0, total))]
            m.d.sync += [b.eq(a) for a, b in itertools.pairwise(ring)]
        return score
