"""One element of a weighted sum of decoded values, exact."""

import dataclasses

from amaranth import Module, Mux, Signal, signed
from amaranth.lib import data

from golden.config import Config, bounded
from golden.fp16.format import FP16
from hdl.block import Block
from hdl.index.reducer import centroid_parts
from hdl.ports import In, Out

_PRODUCT_BITS = 2 * FP16.precision
_SHIFT_MAX = 14 + 14  # of a weight and of an entry, both at most 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionDecodeSumConfig(Config):
    """Products per cycle, and bits of the sum."""

    keys: int = bounded(1, 1, 4, "products per cycle")
    sum_bits: int = bounded(65, 52, 65, "bits of a sum")


class MillionDecodeSum(Block):
    """``sum`` = the exact sum of weight * c, on the grid 2**-48; new products in every cycle.

    0 <= weight <= 1, |c| <= 1. ``step``: the products of the cycle before are added; with ``first``
    they begin a new sum. Slots of ``skips`` have no product. No combinational path, no reset.
    """

    def __init__(self, config: MillionDecodeSumConfig):
        words = data.ArrayLayout(FP16.bits, config.keys)
        super().__init__(
            config,
            {
                "weight": In(words, "weight of each key", FP16),
                "c": In(words, "its element", FP16),
                "skips": In(config.keys, "keys that add nothing"),
                "step": In(1, "add the products of the cycle before"),
                "first": In(1, "with step: to 0"),
                "sum": Out(signed(config.sum_bits), "the sum"),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        terms = []
        for p in range(config.keys):
            _, significand, shift = centroid_parts(self.weight[p])
            sign, entry, entry_shift = centroid_parts(self.c[p])
            product = Signal(signed(_PRODUCT_BITS + 1), name=f"product_{p}", reset_less=True)
            place = Signal(range(_SHIFT_MAX + 1), name=f"place_{p}", reset_less=True)
            factor = Mux(self.skips[p], 0, Mux(sign, -entry, entry))
            m.d.sync += [product.eq(significand * factor), place.eq(shift + entry_shift)]
            term = Signal(signed(_PRODUCT_BITS + 1 + _SHIFT_MAX), name=f"term_{p}")
            m.d.comb += term.eq(product << place)
            terms.append(term)
        total = Signal(signed(config.sum_bits), reset_less=True)
        with m.If(self.step):
            m.d.sync += total.eq(Mux(self.first, 0, total) + sum(terms[1:], terms[0]))
        m.d.comb += self.sum.eq(total)
        return m
