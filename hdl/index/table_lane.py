"""One entry of a table: an exact sum of products, rounded once."""

import dataclasses

from amaranth import Module
from amaranth.lib import data

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.index.format import GRID_PRODUCT_EXACT, SCALE_EXPONENTS
from golden.index.timing import TABLE_ROUNDING
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.index.dot_product import IndexDotProduct, IndexDotProductConfig
from hdl.ports import In, Out


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexTableLaneConfig(Config):
    """Elements of an entry of the codebook."""

    sub: int = bounded(2, 1, 64, "elements")

    @property
    def dot(self) -> IndexDotProductConfig:
        return IndexDotProductConfig(terms=self.sub)


class IndexTableLane(Block):
    """``y = rne16(2**e * sum of x * c)``; a new entry in every cycle, never stalled.

    Latency: golden.index.timing.table_lane. ``grid`` is the exponent's place in SCALE_EXPONENTS,
    and comes with the exact sum.
    """

    def __init__(self, config: IndexTableLaneConfig):
        words = data.ArrayLayout(FP16.bits, config.sub)
        super().__init__(
            config,
            {
                "x": In(words, "FP16 words of the vector", FP16),
                "c": In(words, "entries of the codebook", FP16),
                "grid": In(range(len(SCALE_EXPONENTS)), "the exponent less SCALE_EXPONENT_MIN"),
                "y": Out(FP16.bits, "entry of the table", FP16),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        dot = add(m, "dot", IndexDotProduct(config.dot))
        shape = FixedToFloatConfig(
            width=config.dot.sum_bits,
            grid_exponents=tuple(GRID_PRODUCT_EXACT + exponent for exponent in SCALE_EXPONENTS),
            o=FP16,
            stages=TABLE_ROUNDING,
        )
        rounder = add(m, "rounder", FixedToFloat(shape))
        m.d.comb += [
            dot.x.eq(self.x),
            dot.c.eq(self.c),
            rounder.i.valid.eq(1),
            rounder.i.p.value.eq(dot.sum),
            rounder.i.p.grid.eq(self.grid),
            rounder.o.ready.eq(1),
            self.y.eq(rounder.o.p.y),
        ]
        return m
