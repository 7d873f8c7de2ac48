"""One score from table entries in fixed point: the rival of MillionScoreLane, for its area."""

import dataclasses

from amaranth import Module, Mux, Signal, signed
from amaranth.lib import data

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.index.timing import TERMS, adder_levels
from golden.million.format import DISTANCE_BITS, WEIGHT_GRID
from golden.million.timing import SCORE_ROUNDING
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.index.sums import add_signed, grid_parts
from hdl.kinds import NUMBER
from hdl.ports import In, Out

_RANGE_BITS = 17  # FP16 words lie within -2**16..2**16


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionFixedLaneConfig(Config):
    """Entries of a score, and bits of each."""

    subspaces: int = bounded(64, 1, 128, "entries that are added")
    bits: int = bounded(12, 4, 16, "of an entry, two's complement")

    @property
    def scale_max(self) -> int:
        """Largest scale: the entry of most magnitude is that of FP16."""
        return _RANGE_BITS - self.bits - WEIGHT_GRID

    @property
    def entries_bits(self) -> int:
        return self.bits + (self.subspaces - 1).bit_length()

    @property
    def sum_bits(self) -> int:
        """The entries at the largest scale, and slope * distance."""
        bias = 2047 * ((1 << DISTANCE_BITS) - 1) << 29
        return ((1 << self.entries_bits - 1 + self.scale_max) + bias).bit_length() + 1


class MillionFixedLane(Block):
    """``y = rne16(2**(scale - 24) * sum of word + slope * distance)``; a score in every cycle.

    Infinite and NaN slopes give an unspecified ``y``. Latency 1 + adder_levels + 3 +
    SCORE_ROUNDING cycles from ``word``; slope, distance and scale belong to the word that came 3
    cycles before. No combinational path, no reset. It has no bench: tests/million simulates it.
    """

    def __init__(self, config: MillionFixedLaneConfig):
        words = data.ArrayLayout(signed(config.bits), config.subspaces)
        super().__init__(
            config,
            {
                "word": In(words, "table entries", NUMBER),
                "scale": In(range(config.scale_max + 1), "of the query's entries", NUMBER),
                "slope": In(FP16.bits, "slope of the query", FP16),
                "distance": In(range(1 << DISTANCE_BITS), "from the key to the query"),
                "y": Out(FP16.bits, "score", FP16),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        terms = []
        for k in range(config.subspaces):
            term = Signal(signed(config.bits), name=f"term_{k}", reset_less=True)
            m.d.sync += term.eq(self.word[k])
            terms.append(term)
        for level in range(adder_levels(config.subspaces)):
            bits = len(terms[0]) + (min(TERMS, len(terms)) - 1).bit_length()
            terms = [
                add_signed(m, f"sum_{level}_{k}", terms[k : k + TERMS], bits)
                for k in range(0, len(terms), TERMS)
            ]
        entries = add_signed(m, "entries", terms, config.entries_bits)

        sign, significand, shift = grid_parts(self.slope)
        product = Signal(signed(FP16.precision + 1 + DISTANCE_BITS), reset_less=True)
        product_shift = Signal(len(shift), reset_less=True)
        scaled = Signal(signed(config.entries_bits + config.scale_max), reset_less=True)
        bias = let(m, "bias", product << product_shift)
        m.d.sync += [
            product.eq(self.distance * Mux(sign, -significand, significand)),
            product_shift.eq(shift),
            scaled.eq(entries << self.scale),
        ]
        total = add_signed(m, "total", [scaled, bias.as_signed()], config.sum_bits)
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
