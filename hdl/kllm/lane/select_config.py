"""Sizes of a selecting lane, and what its blocks hand to each other."""

import dataclasses

from amaranth import signed
from amaranth.lib import data

from golden.config import Config, bounded, choice, flag
from golden.fp16.format import FP16
from golden.index.format import INT_BITS, K_MAX
from golden.kllm.format import (
    FIXED_PRODUCTS,
    PRODUCTS,
    integer_digits,
    integer_grid,
    product_bits,
    product_grid,
)
from golden.kllm.isa import ROW_ELEMENTS
from hdl.kinds import BITS, NUMBER, Kind, fixed, index_of, mask_of
from hdl.ports import Payload

CODINGS = ("gates", "sums")
PACKET_WORDS = (1, ROW_ELEMENTS)  # words of a codebook packet that come in a cycle


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmSelectConfig(Config):
    """Shape of the rows of products, and of the columns that select from them."""

    bits_a: int = bounded(4, 2, 4, "bits of an activation index")
    bits_b: int = bounded(4, 2, 4, "bits of a weight index")
    elements: int = bounded(16, 1, 16, "elements of the reduction axis per beat")
    columns: int = bounded(32, 1, 64, "output columns")
    k_max: int = bounded(11008, 1, K_MAX, "longest reduction")
    integer_bits: int = choice(
        8, (0, *INT_BITS), "Integer x K-Means mode: bits of an operand; 0: no such mode"
    )
    product: str = choice("rounded", PRODUCTS, "words of the table")
    antisymmetric: bool = flag(
        False, "C_B[j] = -C_B[last - j], so does C_V: rows have the lower half"
    )
    tag_bits: int = bounded(0, 0, 64, "sideband carried with each beat; 0: no such field")
    coding: str = choice("gates", CODINGS, "gates, or sums that a simulator evaluates faster")
    packet_words: int = choice(1, PACKET_WORDS, "words of a codebook packet per cycle")

    def __post_init__(self) -> None:
        # Rows of a packet hold products, or centroids, but not both.
        if self.rows * self.codes % self.packet_words:
            self._check_choice("packet_words", (1,))

    @property
    def rows(self) -> int:
        """Rows of the table of products: one per activation index, or per digit."""
        return 2**self.bits_a

    @property
    def row_index_bits(self) -> int:
        """Bits that select a word of a row: a weight index, or all but its sign."""
        return self.bits_b - int(self.antisymmetric)

    @property
    def codes(self) -> int:
        """Words of a row: one per weight index, or per pair of opposite ones."""
        return 2**self.row_index_bits

    @property
    def product_rows(self) -> int:
        """Rows of ``packet_words`` words that the products of a packet take."""
        return self.rows * self.codes // self.packet_words

    @property
    def digits(self) -> int:
        """Digits of ``bits_a`` bits of an integer: passes of a beat in integer mode."""
        return integer_digits(self.integer_bits, self.bits_a)

    @property
    def is_fixed(self) -> bool:
        """Packets carry words in fixed point, not in FP16."""
        return self.product in FIXED_PRODUCTS

    @property
    def grid(self) -> int:
        """Words of products are integers times 2**grid."""
        return product_grid(self.product)

    @property
    def integer_grid(self) -> int:
        """Multiples of centroids, in integer mode, are integers times 2**integer_grid."""
        return integer_grid(self.product, self.bits_a)

    @property
    def grids(self) -> tuple[int, ...]:
        """The grids of a sum, that of products first; each once."""
        if not self.integer_bits or self.grid == self.integer_grid:
            return (self.grid,)
        return self.grid, self.integer_grid

    @property
    def word_kind(self) -> Kind:
        """The kind of words and sums: with two grids the mode says which."""
        return fixed(self.grid) if len(self.grids) == 1 else NUMBER

    def row_bits(self, row: int) -> int:
        """Bits of a word of a row of the table: a product, or ``row`` times a centroid."""
        if self.is_fixed or not self.integer_bits:
            return product_bits(self.product)
        return (max(row, 1) << -self.integer_grid).bit_length() + 1

    @property
    def word_bits(self) -> int:
        """Bits of the widest word of the table."""
        return self.row_bits(self.rows - 1)

    @property
    def tree_bits(self) -> int:
        """Bits of the sum of one word of each element, sign bits inverted."""
        return (self.elements * (2**self.word_bits - 1)).bit_length()

    @property
    def sum_bits(self) -> int:
        """k_max products of 1, or k_max times the largest integer and a centroid of 1; a sign."""
        largest = max(1 << -self.grid, (2**self.integer_bits - 1) << -self.integer_grid)
        return (self.k_max * largest).bit_length() + 1

    @property
    def bias_bits(self) -> int:
        """Bits of a sum that the inverted sign bits change: those above a word's others."""
        return self.sum_bits - (self.word_bits - 1)

    @property
    def word_layout(self) -> tuple:
        """Shape, text and kind of a word of the table."""
        kind = self.word_kind if self.is_fixed else FP16
        return FP16.bits, "product of the two centroids, or centroid", kind

    @property
    def product_layout(self) -> Payload:
        if self.packet_words > 1:
            bits, text, kind = self.word_layout
            return Payload(
                row=(range(max(self.product_rows, 2)), "place of the words in the packet, a row"),
                word=(data.ArrayLayout(bits, self.packet_words), text, kind),
                multiply=(1, "centroids: row n of the table is n times the first words"),
            )
        return Payload(
            bin=(range(self.rows * self.codes), "activation index above weight index"),
            word=self.word_layout,
        )

    @property
    def value_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(max(self.bits_a, self.integer_bits), self.elements)

    @property
    def index_layout(self) -> data.ArrayLayout:
        """Weight indices of one column."""
        return data.ArrayLayout(self.bits_b, self.elements)

    @property
    def row_layout(self) -> data.ArrayLayout:
        """A row of the table for each element."""
        row = data.ArrayLayout(signed(self.word_bits), self.codes)
        return data.ArrayLayout(row, self.elements)

    @property
    def table_layout(self) -> data.StructLayout:
        """The words of each row, each in as many bits as its row needs."""
        return data.StructLayout(
            {
                f"row_{n}": data.ArrayLayout(signed(self.row_bits(n)), self.codes)
                for n in range(self.rows)
            }
        )

    @property
    def _shared(self) -> dict:
        """The fields that a beat carries through the look-up."""
        tag = {"tag": (self.tag_bits, "passes with its beat", BITS)} if self.tag_bits else {}
        return {
            "index": (
                data.ArrayLayout(self.index_layout, self.columns),
                "weight indices of each column's elements",
                index_of("weight centroids"),
            ),
            "last": (1, "the final beat of a packet"),
            **tag,
        }

    @property
    def passed_layout(self) -> data.StructLayout:
        """``index``, ``last`` and ``tag``."""
        return Payload(**self._shared)

    @property
    def beat_layout(self) -> Payload:
        """A beat before the look-up."""
        return Payload(
            value=(self.value_layout, "indices, or unsigned integers", NUMBER),
            inlier=(self.elements, "mask of the elements that count", mask_of("elements")),
            **self._shared,
        )

    @property
    def digit_parts(self) -> dict:
        """The field ``digit``, where integers have several."""
        if self.digits == 1:
            return {}
        return {"digit": (range(self.digits), "place of the digit, the lowest is 0")}

    @property
    def rows_layout(self) -> Payload:
        """A beat after the look-up, or one digit of it."""
        return Payload(
            row=(self.row_layout, "word of each element and weight index", self.word_kind),
            **self.digit_parts,
            **self._shared,
        )


# Rows and columns of the selecting lane.
SELECTS = {
    "table1": KllmSelectConfig(),
    "table1_w4a3": KllmSelectConfig(bits_a=3),
    "no_integer": KllmSelectConfig(integer_bits=0),
    "small": KllmSelectConfig(
        bits_a=2, bits_b=3, elements=4, columns=3, k_max=100, integer_bits=4, tag_bits=5
    ),
    "rows": KllmSelectConfig(packet_words=ROW_ELEMENTS),
}
