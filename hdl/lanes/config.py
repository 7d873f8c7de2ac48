"""Sizes of the lanes, and what their columns hold."""

import dataclasses

from amaranth import signed
from amaranth.lib import data

from golden.config import Config, bounded, choice
from golden.fp16.format import FP16, FP32
from golden.index.format import K_MAX
from golden.lanes.format import GROUP
from hdl.fp16.from_fixed import FixedToFloatConfig
from hdl.kinds import BITS, NUMBER, index_of
from hdl.ports import Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneConfig(Config):
    """The numbers that all lanes have in common. A subclass says what a beat and a sum are."""

    elements: int = bounded(16, 1, 16, "elements of the reduction axis per beat")
    columns: int = bounded(32, 1, 64, "output columns")
    k_max: int = bounded(11008, 1, K_MAX, "longest reduction")

    @property
    def stages(self) -> int:
        """Registers between a beat and the accumulators."""
        return 1

    @property
    def longest(self) -> int:
        """Elements of a longest packet, its last beat whole."""
        return -(-self.k_max // self.elements) * self.elements

    @property
    def sum_bits(self) -> int:
        """Bits of a signed sum of ``longest`` elements."""
        raise NotImplementedError

    @property
    def beat(self) -> dict:
        """Fields ``a`` and ``w`` of a beat."""
        raise NotImplementedError

    @property
    def grid_exponents(self) -> tuple[int, ...]:
        """Weights that the last bit of a sum may have."""
        return (0,)

    @property
    def i_layout(self) -> Payload:
        return Payload(**self.beat, last=(1, "the final beat of a packet"))

    @property
    def o_layout(self) -> Payload:
        return Payload(y=(FP32.bits, "sum of a column, FP32 word", FP32))

    @property
    def held_layout(self) -> Payload:
        """The word that a column holds and its chain moves: a sum, and its grid if of several."""
        several = len(self.grid_exponents) > 1
        grid = {"grid": (range(len(self.grid_exponents)), "place of its grid")} if several else {}
        return Payload(value=(signed(self.sum_bits), "sum"), **grid)

    @property
    def rounder_config(self) -> FixedToFloatConfig:
        return FixedToFloatConfig(
            width=self.sum_bits, grid_exponents=self.grid_exponents, o=FP32, stages=1
        )

    def cycles(self, length: int) -> int:
        """The cycles of a packet of ``length`` elements in steady state: adding overlaps giving."""
        return max(-(-length // self.elements), self.columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneIntegerConfig(LaneConfig):
    """Elaboration-time parameters of an integer lane."""

    bits_a: int = bounded(8, 2, 8, "bits of a signed activation")
    bits_w: int = bounded(8, 2, 8, "bits of a signed weight")

    @property
    def sum_bits(self) -> int:
        """The largest product is that of the two lowest integers."""
        return (self.longest << self.bits_a + self.bits_w - 2).bit_length() + 1

    @property
    def tree_bits(self) -> int:
        """Bits of a beat's sum of partial products, all ones."""
        largest = (2**self.bits_a - 1) * (2**self.bits_w - 1)
        return (self.elements * largest).bit_length()

    @property
    def a_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(signed(self.bits_a), self.elements)

    @property
    def w_layout(self) -> data.ArrayLayout:
        """Weights of one column."""
        return data.ArrayLayout(signed(self.bits_w), self.elements)

    @property
    def beat(self) -> dict:
        return {
            "a": (self.a_layout, "activations, two's complement", NUMBER),
            "w": (
                data.ArrayLayout(self.w_layout, self.columns),
                "weights of each column's elements, two's complement",
                NUMBER,
            ),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneFp16Config(LaneConfig):
    """Elaboration-time parameters of an FP16 lane."""

    guard_bits: int = bounded(4, 0, 40, "bits kept below the last bit of a beat's largest product")

    @property
    def stages(self) -> int:
        """Products, then the tree of the aligned ones."""
        return 2

    @property
    def product_bits(self) -> int:
        return 2 * FP16.precision

    @property
    def word_bits(self) -> int:
        """Bits of the magnitude of an aligned product."""
        return self.product_bits + self.guard_bits

    @property
    def sum_bits(self) -> int:
        largest = (2**FP16.precision - 1) ** 2 << self.guard_bits
        return (self.longest * largest).bit_length() + 1

    @property
    def tree_bits(self) -> int:
        """Bits of a beat's sum of aligned products, with their inverted signs."""
        return (self.elements * 2 ** (self.word_bits + 1)).bit_length()

    @property
    def grid_exponents(self) -> tuple[int, ...]:
        """The grids by exponent of the largest product: two exponents of 1..31 added, less 2."""
        lowest = 2 * FP16.grid_exponent - self.guard_bits
        return tuple(range(lowest, lowest + 2 * FP16.exp_max - 1))

    @property
    def a_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16.bits, self.elements)

    @property
    def parts_layout(self) -> data.ArrayLayout:
        """Activations as a lane decodes them, once for all columns."""
        parts = Payload(
            sign=(1, "sign bit"),
            exponent=(FP16.exp_bits, "biased; 1 for zero and subnormals", NUMBER),
            significand=(FP16.precision, "hidden bit on top", NUMBER),
        )
        return data.ArrayLayout(parts, self.elements)

    @property
    def w_layout(self) -> data.ArrayLayout:
        """Weights of one column."""
        return data.ArrayLayout(FP16.bits, self.elements)

    @property
    def beat(self) -> dict:
        return {
            "a": (self.a_layout, "activations, FP16 words", FP16),
            "w": (
                data.ArrayLayout(self.w_layout, self.columns),
                "weights of each column's elements, FP16 words",
                FP16,
            ),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneW4a16Config(LaneFp16Config):
    """Elaboration-time parameters of a lane of FP16 activations and weights by a table."""

    bits_w: int = bounded(4, 2, 4, "bits of a weight index")

    @property
    def w_layout(self) -> data.ArrayLayout:
        """Weight indices of one column."""
        return data.ArrayLayout(self.bits_w, self.elements)

    @property
    def beat(self) -> dict:
        return super().beat | {
            "w": (
                data.ArrayLayout(self.w_layout, self.columns),
                "weight indices of each column's elements",
                index_of("entries of the table"),
            ),
        }

    @property
    def entry_layout(self) -> Payload:
        return Payload(
            index=(range(2**self.bits_w), "entry of the table"),
            word=(FP16.bits, "its weight", FP16),
        )

    @property
    def table_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16.bits, 2**self.bits_w)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneLutConfig(LaneConfig):
    """Elaboration-time parameters of a lane of tables of activations."""

    elements: int = choice(16, (4, 8, 12, 16), "elements of the reduction axis per beat")
    bits_a: int = bounded(8, 2, 16, "bits of a signed activation")
    bits_w: int = bounded(4, 1, 8, "bit planes of a weight")

    @property
    def stages(self) -> int:
        """Tables, then the tree of the entries."""
        return 2

    @property
    def groups(self) -> int:
        """Tables of a beat."""
        return self.elements // GROUP

    @property
    def entry_bits(self) -> int:
        """Bits of a signed sum of GROUP activations, the last one positive."""
        return self.bits_a + 2

    @property
    def sum_bits(self) -> int:
        """The largest product is that of the lowest activation and the lowest weight."""
        return (self.longest * (2**self.bits_w - 1) << self.bits_a - 1).bit_length() + 1

    @property
    def tree_bits(self) -> int:
        """Bits of a beat's sum of entries, their sign bits inverted, with the ones that negate."""
        return (self.groups * (2**self.bits_w - 1) << self.entry_bits).bit_length()

    @property
    def a_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(signed(self.bits_a), self.elements)

    @property
    def table_layout(self) -> data.ArrayLayout:
        """The tables of a beat."""
        entries = data.ArrayLayout(signed(self.entry_bits), 2 ** (GROUP - 1))
        return data.ArrayLayout(entries, self.groups)

    @property
    def w_layout(self) -> data.ArrayLayout:
        """Words of one column: of each group, and of each bit plane."""
        return data.ArrayLayout(data.ArrayLayout(GROUP, self.bits_w), self.groups)

    @property
    def beat(self) -> dict:
        return {
            "a": (self.a_layout, "activations, two's complement", NUMBER),
            "w": (
                data.ArrayLayout(self.w_layout, self.columns),
                "golden.lanes.format.plane_words of each column's groups",
                BITS,
            ),
        }
