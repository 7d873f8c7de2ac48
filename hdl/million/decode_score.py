"""One score of a decoded key: the exact dot product and slope * distance, rounded once."""

import dataclasses

from amaranth import Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.index.timing import TERMS, adder_levels
from golden.million.format import (
    DISTANCE_BITS,
    EXPONENT_MIN,
    EXPONENTS,
    PRODUCT_GRID,
    WEIGHT_GRID,
)
from golden.million.timing import SCORE_ROUNDING
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.index.reducer import centroid_parts
from hdl.index.sums import add_signed, grid_parts
from hdl.million.layouts import EXPONENT_SHAPE
from hdl.ports import In, Out

_PRODUCT_BITS = 2 * FP16.precision + 1
_SHIFT_MAX = 30 + 14  # of a query's element, and of an entry, which is at most 1
_TERM_BITS = _PRODUCT_BITS + _SHIFT_MAX
_BIAS_BITS = FP16.precision + DISTANCE_BITS + 30 + WEIGHT_GRID - PRODUCT_GRID - EXPONENT_MIN + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionDecodeScoreConfig(Config):
    """Number of products of a score."""

    head_dim: int = bounded(128, 16, 256, "elements of a key")

    @property
    def sum_bits(self) -> int:
        return max(_TERM_BITS + self.head_dim.bit_length(), _BIAS_BITS) + 1


class MillionDecodeScore(Block):
    """``y = rne16(2**exponent * sum of q * c + slope * distance)``, each cycle, never stalled.

    |c| <= 1. NaN and infinity in ``q`` or ``slope`` give an unspecified ``y``. Latency 1 +
    adder_levels + 1 + SCORE_ROUNDING cycles (golden.million.timing). No combinational path, no
    reset.
    """

    def __init__(self, config: MillionDecodeScoreConfig):
        vector = data.ArrayLayout(FP16.bits, config.head_dim)
        super().__init__(
            config,
            {
                "q": In(vector, "elements of the query", FP16),
                "c": In(vector, "elements of the key", FP16),
                "exponent": In(EXPONENT_SHAPE, "log2 of the scale of c"),
                "slope": In(FP16.bits, "slope of the query", FP16),
                "distance": In(range(1 << DISTANCE_BITS), "from the key to the query"),
                "y": Out(FP16.bits, "score", FP16),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        levels = adder_levels(config.head_dim)

        # Products; then those of the first level of the tree at their places
        terms = []
        for k in range(config.head_dim):
            sign, significand, shift = grid_parts(self.q[k])
            entry_sign, entry, entry_shift = centroid_parts(self.c[k])
            product = Signal(signed(_PRODUCT_BITS), name=f"product_{k}", reset_less=True)
            place = Signal(range(_SHIFT_MAX + 1), name=f"place_{k}", reset_less=True)
            factor = Mux(sign ^ entry_sign, -entry, entry)
            m.d.sync += [product.eq(significand * factor), place.eq(shift + entry_shift)]
            term = Signal(signed(_TERM_BITS), name=f"term_{k}")
            m.d.comb += term.eq(product << place)
            terms.append(term)
        for level in range(levels):
            groups = [terms[k : k + TERMS] for k in range(0, len(terms), TERMS)]
            bits = max(len(term) for term in terms) + (TERMS - 1).bit_length()
            terms = [
                add_signed(m, f"sum_{level}_{k}", group, bits) for k, group in enumerate(groups)
            ]

        # slope * distance on the grid of the products, in step with their sum
        sign, significand, shift = grid_parts(self.slope)
        step = Signal(signed(FP16.precision + 1 + DISTANCE_BITS), reset_less=True)
        up = Signal(6, reset_less=True)  # 9..62
        bias = Signal(signed(_BIAS_BITS), reset_less=True)
        m.d.sync += [
            step.eq(self.distance * Mux(sign, -significand, significand)),
            up.eq(shift + (WEIGHT_GRID - PRODUCT_GRID) - self.exponent),
        ]
        for level in range(levels - 1):
            later = [Signal.like(each, name=f"{each.name}_{level}") for each in (step, up)]
            m.d.sync += [after.eq(each) for after, each in zip(later, (step, up), strict=True)]
            step, up = later
        m.d.sync += bias.eq(step << up)
        total = add_signed(m, "total", [*terms, bias], config.sum_bits)

        shape = FixedToFloatConfig(
            width=config.sum_bits,
            grid_exponents=tuple(PRODUCT_GRID + exponent for exponent in EXPONENTS),
            o=FP16,
            stages=SCORE_ROUNDING,
        )
        rounder = add(m, "rounder", FixedToFloat(shape))
        grid: Value = self.exponent - EXPONENT_MIN
        for level in range(levels + 2):
            later = Signal(rounder.i.p.grid.shape(), name=f"grid_{level}", reset_less=True)
            m.d.sync += later.eq(grid)
            grid = later
        m.d.comb += [
            rounder.i.valid.eq(1),
            rounder.i.p.value.eq(total),
            rounder.i.p.grid.eq(grid),
            rounder.o.ready.eq(1),
            self.y.eq(rounder.o.p.y),
        ]
        return m
