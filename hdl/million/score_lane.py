"""One score: the exact sum of M table entries and of slope * distance, rounded once."""

import dataclasses

from amaranth import Cat, Module, Signal, signed
from amaranth.lib import data

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.index.timing import adder_levels
from golden.million.format import DISTANCE_BITS, WEIGHT_GRID
from golden.million.timing import SCORE_ROUNDING
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.index.sums import add_signed, add_tree, grid_parts, word_terms
from hdl.ports import In, Out

_BIAS_BITS = 58  # of slope * distance


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionScoreLaneConfig(Config):
    """Number of table entries of a score."""

    subspaces: int = bounded(64, 1, 128, "entries that are added")

    @property
    def sum_bits(self) -> int:
        """|term| <= 2047 * 2**29, and slope * distance is at most 2**17 - 1 of these."""
        return (2047 * (self.subspaces + (1 << DISTANCE_BITS) - 1) << 29).bit_length() + 1


class MillionScoreLane(Block):
    """``y = rne16(sum of word + slope * distance)``; a new score in every cycle, never stalled.

    Infinite and NaN words or slopes give an unspecified ``y``. Latency 1 + adder_levels + 1 +
    SCORE_ROUNDING cycles (golden.million.timing). No combinational path, no reset.
    """

    def __init__(self, config: MillionScoreLaneConfig):
        super().__init__(
            config,
            {
                "word": In(data.ArrayLayout(FP16.bits, config.subspaces), "table entries", FP16),
                "slope": In(FP16.bits, "slope of the query", FP16),
                "distance": In(range(1 << DISTANCE_BITS), "from the key to the query"),
                "y": Out(FP16.bits, "score", FP16),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        terms, signs = word_terms(m, self.word)

        # slope * distance, a cycle ahead of the sum that takes it
        sign, significand, shift = grid_parts(self.slope)
        product = Signal(FP16.precision + DISTANCE_BITS, reset_less=True)
        product_shift = Signal(len(shift), reset_less=True)
        product_sign = Signal(reset_less=True)
        bias_sign = Signal(reset_less=True)
        bias = Signal(signed(_BIAS_BITS), reset_less=True)
        magnitude = let(m, "bias_magnitude", (product << product_shift)[: _BIAS_BITS - 1])
        # A negative one is complemented; its one is added with the sum.
        complemented = Cat(magnitude ^ product_sign.replicate(len(magnitude)), product_sign)
        m.d.sync += [
            product.eq(self.distance * significand),
            product_shift.eq(shift),
            product_sign.eq(sign),
            bias.eq(complemented.as_signed()),
            bias_sign.eq(product_sign),
        ]

        levels = adder_levels(config.subspaces)
        sums = add_tree(m, "sum", terms, signs, levels)
        for level in range(levels - 1):
            later = Signal.like(bias, name=f"bias_{level}", reset_less=True)
            sign = Signal(name=f"bias_sign_{level}", reset_less=True)
            m.d.sync += [later.eq(bias), sign.eq(bias_sign)]
            bias, bias_sign = later, sign
        total = add_signed(m, "total", [*sums, bias, bias_sign], config.sum_bits)

        shape = FixedToFloatConfig(
            width=config.sum_bits, grid_exponents=(WEIGHT_GRID,), o=FP16, stages=SCORE_ROUNDING
        )
        rounder = add(m, "rounder", FixedToFloat(shape))
        m.d.comb += [
            rounder.i.valid.eq(1),
            rounder.i.p.value.eq(total),
            rounder.o.ready.eq(1),
            self.y.eq(rounder.o.p.y),
        ]
        return m
