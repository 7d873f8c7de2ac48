"""The nearest entry of one subspace: exact distances, one after another."""

import dataclasses

from amaranth import Cat, Const, Module, Signal, signed, unsigned
from amaranth.lib import data

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.index.timing import tree_levels
from golden.million.format import EXPONENTS
from hdl.block import Block
from hdl.children import add
from hdl.index.dot_product import IndexDotProduct, IndexDotProductConfig
from hdl.index.reducer import centroid_parts
from hdl.index.sums import add_tree
from hdl.kinds import index_of
from hdl.ports import In, Out

_SQUARE_BITS = 50  # of c**2 on the grid 2**-48, |c| <= 1, and a sign
_TWICE = 9  # the distance is on the grid 2**-56, twice a product on 2**-48


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionNearestLaneConfig(Config):
    """Elements of a subspace, and entries."""

    sub: int = bounded(2, 1, 64, "elements")
    bits: int = bounded(8, 1, 12, "of an index")

    @property
    def dot(self) -> IndexDotProductConfig:
        return IndexDotProductConfig(terms=self.sub)

    @property
    def distance_bits(self) -> int:
        return self.dot.sum_bits + _TWICE + 1


class MillionNearestLane(Block):
    """The index of the least ``2**e * sum c * c - 2 * sum x * c``, the first of equal ones.

    That is the squared distance of x from 2**e * c, less the square of x, times 2**-e: exact, on
    the grid 2**-56. ``x`` and ``c`` may come in every cycle. ``scale`` is e + 8, and comes with
    the sums: 2 + tree_levels(sub) cycles after x and c. ``compare``, ``first`` and ``index`` come
    2 cycles after ``scale``. ``code`` shows the index a cycle later.
    """

    def __init__(self, config: MillionNearestLaneConfig):
        words = data.ArrayLayout(FP16.bits, config.sub)
        entries = index_of("entries of the codebook")
        super().__init__(
            config,
            {
                "x": In(words, "FP16 words", FP16),
                "c": In(words, "an entry of the codebook", FP16),
                "scale": In(range(len(EXPONENTS)), "the exponent less EXPONENT_MIN"),
                "compare": In(1, "a distance is there"),
                "first": In(1, "it is the first one"),
                "index": In(config.bits, "of the entry", entries),
                "code": Out(config.bits, "index of the nearest so far", entries),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        dot = add(m, "dot", IndexDotProduct(config.dot))
        m.d.comb += [dot.x.eq(self.x), dot.c.eq(self.c)]

        # The squares, as fast as the products
        squares = []
        for k in range(config.sub):
            _, significand, shift = centroid_parts(self.c[k])
            product = Signal(2 * FP16.precision, name=f"square_{k}", reset_less=True)
            double = Signal(len(shift) + 1, name=f"shift_{k}", reset_less=True)
            square = Signal(_SQUARE_BITS, name=f"shifted_{k}", reset_less=True)
            m.d.sync += [
                product.eq(significand * significand),
                double.eq(Cat(Const(0, 1), shift)),
                square.eq((product << double)[:_SQUARE_BITS]),
            ]
            squares.append(square)
        levels = tree_levels(config.sub)
        (norm,) = add_tree(m, "norm", squares, [Const(0, 1)] * config.sub, levels)

        scaled = Signal(unsigned(config.distance_bits - 1), reset_less=True)
        twice = Signal(signed(config.distance_bits), reset_less=True)
        distance = Signal(signed(config.distance_bits), reset_less=True)
        best = Signal(signed(config.distance_bits), reset_less=True)
        m.d.sync += [
            scaled.eq(norm.as_unsigned() << self.scale),
            twice.eq(dot.sum << _TWICE),
            distance.eq(scaled - twice),
        ]
        with m.If(self.compare & (self.first | (distance < best))):
            m.d.sync += [best.eq(distance), self.code.eq(self.index)]
        return m
