"""The exact sum of products of a few FP16 words with codebook entries."""

import dataclasses

from amaranth import Cat, Module, Signal, signed
from amaranth.lib import data

from golden.config import Config, bounded, power_of_two
from golden.fp16.format import FP16
from golden.index.format import GRID_PRODUCT_EXACT
from golden.index.timing import tree_levels
from hdl.bits import let
from hdl.block import Block
from hdl.index.reducer import centroid_parts
from hdl.index.sums import add_tree, grid_parts
from hdl.kinds import fixed
from hdl.ports import In, Out


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexDotProductConfig(Config):
    """Number of products, and the range of one factor."""

    terms: int = bounded(2, 1, 256, "products")
    largest: int = power_of_two(1, 1, 8, "|c| is at most this: entries of as many stages added")

    @property
    def c_bits(self) -> int:
        """|c| <= 2**c_bits on the grid 2**-24."""
        return 24 + (self.largest - 1).bit_length()

    @property
    def term_bits(self) -> int:
        """|x| < 2**41, a NaN's or an infinity's word included."""
        return 41 + self.c_bits + 1

    @property
    def sum_bits(self) -> int:
        return self.term_bits + (self.terms - 1).bit_length()


class IndexDotProduct(Block):
    """``sum of x * c`` on the grid 2**-48; a new sum in every cycle, never stalled.

    |c| <= largest. A NaN or an infinity in x reads as a number of the binade above the
    largest. Latency 2 + tree_levels(terms) cycles (golden.index.timing). No combinational path, no
    reset.
    """

    def __init__(self, config: IndexDotProductConfig):
        words = data.ArrayLayout(FP16.bits, config.terms)
        super().__init__(
            config,
            {
                "x": In(words, "FP16 words", FP16),
                "c": In(words, "entries of the codebook", FP16),
                "sum": Out(signed(config.sum_bits), "exact sum", fixed(GRID_PRODUCT_EXACT)),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        low = config.term_bits - 1
        parts_of_c = centroid_parts if config.largest == 1 else grid_parts
        terms, signs = [], []
        for k in range(config.terms):
            x_sign, x_significand, x_shift = grid_parts(self.x[k])
            c_sign, c_significand, c_shift = parts_of_c(self.c[k])
            product = Signal(2 * FP16.precision, name=f"product_{k}", reset_less=True)
            shift = Signal(range(30 + config.c_bits - 10 + 1), name=f"shift_{k}", reset_less=True)
            sign = Signal(name=f"sign_{k}", reset_less=True)
            term = Signal(signed(config.term_bits), name=f"term_{k}", reset_less=True)
            magnitude = let(m, f"magnitude_{k}", (product << shift)[:low])
            m.d.sync += [
                product.eq(x_significand * c_significand),
                shift.eq(x_shift + c_shift),
                sign.eq(x_sign ^ c_sign),
                # A negative one is complemented; its one is added with the sum.
                term.eq(Cat(magnitude ^ sign.replicate(low), sign).as_signed()),
            ]
            terms.append(term)
            signs.append(sign)
        (total,) = add_tree(m, "sum", terms, signs, tree_levels(config.terms))
        m.d.comb += self.sum.eq(total)
        return m
