"""One element of the sums of values: bin times codebook entry, added for each query."""

import dataclasses
from itertools import pairwise

from amaranth import Module, Mux, Signal, signed

from golden.config import Config
from golden.fp16.format import FP16
from hdl.block import Block
from hdl.index.reducer import centroid_parts
from hdl.kinds import fixed
from hdl.ports import In, Out


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionValueLaneConfig(Config):
    """Widths; MillionValueEngineConfig derives them."""

    bin_bits: int = 40  # of a bin
    sum_bits: int = 65  # of a sum
    queries: int = 4  # sums that take turns


class MillionValueLane(Block):
    """``sum = sum of bin * word``; ``queries`` sums take turns, one product per cycle.

    With ``multiply`` the product is taken. With ``add`` the product before it is added to the sum
    whose turn it is, or replaces it with ``first``. With ``give`` in addition, ``sum`` shows the
    result from the next cycle on. |word| <= 1. No reset, no combinational path.
    """

    def __init__(self, config: MillionValueLaneConfig):
        super().__init__(
            config,
            {
                "word": In(FP16.bits, "entry of the codebook", FP16),
                "bin": In(range(1 << config.bin_bits), "sum of weights", fixed(-24)),
                "multiply": In(1, "take the product of word and bin"),
                "add": In(1, "add the product, and turn to the next sum"),
                "first": In(1, "the sum begins with the product"),
                "give": In(1, "the sum is complete with the product"),
                "sum": Out(signed(config.sum_bits), "sum that was given", fixed(-48)),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        sign, significand, shift = centroid_parts(self.word)
        magnitude = Signal(signed(config.bin_bits + 12), reset_less=True)
        places = Signal(4, reset_less=True)
        ring = [
            Signal(signed(config.sum_bits), name=f"ring_{n}", reset_less=True)
            for n in range(config.queries)
        ]
        total = Signal(signed(config.sum_bits))
        given = Signal(signed(config.sum_bits), reset_less=True)
        m.d.comb += [
            total.eq(Mux(self.first, 0, ring[0]) + (magnitude << places)),
            self.sum.eq(given),
        ]
        with m.If(self.multiply):
            m.d.sync += [
                magnitude.eq(self.bin * Mux(sign, -significand, significand)),
                places.eq(shift),
            ]
        with m.If(self.add):
            m.d.sync += ring[-1].eq(total)
            m.d.sync += [before.eq(after) for before, after in pairwise(ring)]
            with m.If(self.give):
                m.d.sync += given.eq(total)
        return m
