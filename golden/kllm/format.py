"""KLLM words on the wire: index order, codebook packets, beats, status bits. Pure Python.

The one place where these layouts are written; generators, golden models and testbenches import it.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, localcontext
from enum import IntEnum, IntFlag

from golden.fp16.format import FP16
from golden.kllm.isa import Function

# Products in fixed point: bits of a word. Its grid has all of -1..1.
FIXED_PRODUCTS = {"fixed16": 16, "fixed12": 12}
PRODUCTS = ("rounded", *FIXED_PRODUCTS)  # the words of the product codebook that a packet carries
ALL_PRODUCTS = (*PRODUCTS, "exact")  # what golden computes with

# A position of the batch that no token has, with room for one after it in 21 bits.
FURTHEST = (1 << 21) - 2

NO_OP = 15  # an op of no request: the cache refuses it

# Draws of TOP_K (golden.kllm.top_k).
ID_BITS = 25  # of an operand of 24 bits and a position
KEY_ZERO = 1 << FP16.bits - 1  # the key of 0 in a rank
GRID_VALUE = 24  # fraction bits of an element
WEIGHT_BITS = 31  # fraction bits of a weight, which is 1 at most
WEIGHT_POWERS = 32  # 2**-32 and less has no weight
POWER_BITS = 16  # fraction bits of a power of two and of the table
STEP_BITS = 10  # of them, those between two entries
# 2**-f for f = 0, 1/64, ..., 1.
POWERS = tuple(
    round(2 ** (POWER_BITS - n / (1 << POWER_BITS - STEP_BITS)))
    for n in range((1 << POWER_BITS - STEP_BITS) + 1)
)
# Threefry-2x32: rotations of eight rounds, and what the third word of the key is made with.
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA

# The sparse sum is an integer times 2**grid.
GRID_SPARSE = -48  # FP16 activation times FP16 centroid


class Status(IntFlag):
    """Per-request fault bits, bit 0 first; several may be set together."""

    LENGTH_ZERO = 1 << 0  # K = 0: no output
    LENGTH_TOO_LONG = 1 << 1  # K beyond the configured maximum: no output
    CODEBOOK_MISSING = 1 << 2  # request before a codebook of its mode: no output
    NONFINITE = 1 << 3  # s_A or an outlier value is NaN or infinite: no output
    LAST_MISPLACED = 1 << 4  # `last` not on the beat that the length says: no output
    OUTLIER_COUNT = (
        1 << 5
    )  # more outliers than the configured maximum, or mask and list differ: no output
    SCALE_NONFINITE = 1 << 6  # some s_B is NaN or infinite: outputs follow IEEE 754
    OVERFLOW = 1 << 7  # finite t and finite s_B gave an infinity
    COLUMN_RANGE = 1 << 8  # last column beyond the lane's columns: no output


# Any of these bits: the request has no outputs.
NO_OUTPUT = (
    Status.LENGTH_ZERO
    | Status.LENGTH_TOO_LONG
    | Status.CODEBOOK_MISSING
    | Status.NONFINITE
    | Status.LAST_MISPLACED
    | Status.OUTLIER_COUNT
    | Status.COLUMN_RANGE
)


class TokenKind(IntEnum):
    """The source of a token's outliers and scale."""

    ONLINE = 0  # the trees of Orizuru
    OFFLINE = 1  # thresholds of the command
    INTEGER = 2  # its largest element
    CODEBOOK = 3  # two rows of a codebook


class Operation(IntEnum):
    """The operations that the vector lanes do on row a and row b, element by element."""

    COPY = 0  # rne16(a): a, with every NaN canonical
    SUM = 1  # rne16(scalar * a + b)
    PRODUCT = 2  # rne16(a * b)
    ROTATE = 3  # of two rows each: rne16(a cos - a' sin), then rne16(a' cos + a sin)
    SCORE = 4  # a itself, to ``score``
    DIFFERENCE = 5  # rne16(a - scalar)
    SCALE = 6  # rne16(weight * scale)
    ELEMENT = 7  # a itself, one element at a time, to ``element``
    MINIMUM = 8  # the lesser of a and b, with every NaN canonical
    MAXIMUM = 9  # the greater


class OrizuruStatus(IntFlag):
    """Fault bits of a token in kllm_orizuru, bit 0 first; any of them: no pops.

    LENGTH_ZERO is always the only bit; the others may be set together.
    """

    LENGTH_ZERO = 1 << 0  # length = 0: the token has no beats
    LENGTH_TOO_LONG = 1 << 1  # length beyond the configured maximum
    OUTLIER_COUNT = 1 << 2  # k_max + k_min >= length: nothing would be left
    NAN = 1 << 3  # a NaN among the words before `length`
    LAST_MISPLACED = 1 << 4  # `last` not on the beat that the length says


def product_index(index_a: int, index_b: int, bits_b: int) -> int:
    """``index_a * 2**bits_b + index_b``: the activation index concatenated above the weight's."""
    return index_a << bits_b | index_b


def product_bits(product: str) -> int:
    """Bits of a product of PRODUCTS in two's complement, on its grid."""
    return FIXED_PRODUCTS.get(product, 26)


def product_grid(product: str) -> int:
    """The grid 2**grid of a product of PRODUCTS: 1.0 is ``2**(bits - 2)``."""
    return 2 - product_bits(product)


def integer_grid(product: str, bits_a: int) -> int:
    """The grid 2**grid of C_V in a lane of PRODUCTS.

    In fixed point ``2**bits_a - 1`` centroids of 1.0 fit the word of a product. So words of both
    tables have the same width.
    """
    if product in FIXED_PRODUCTS:
        return bits_a + 1 - product_bits(product)
    return product_grid(product)


def kmeans_packet_length(bits_a: int, bits_b: int) -> int:
    """Words of a K-Means codebook packet.

    2**(bits_a+bits_b) product words in ``product_index`` order, then 2**bits_b FP16 words C_B.
    """
    return 2 ** (bits_a + bits_b) + 2**bits_b


def integer_packet_length(bits_b: int) -> int:
    """Words of an Integer codebook packet: 2**bits_b words C_V in index order."""
    return 2**bits_b


def word_fits(word: int, grid: int | None = None) -> bool:
    """Whether a word is in -1..1: of two's complement on 2**grid, or None: of FP16."""
    if grid is None:
        return word & FP16.sign_bit - 1 <= FP16.bias << FP16.frac_bits
    return abs((word ^ FP16.sign_bit) - FP16.sign_bit) <= 1 << -grid


def packet_fits(words: Sequence[int], bits_a: int, bits_b: int, product: str = "rounded") -> bool:
    """Whether the words of a packet of either mode are in -1..1; its length says the mode."""
    if product not in FIXED_PRODUCTS:
        return all(word_fits(word) for word in words)
    of_kmeans = len(words) == kmeans_packet_length(bits_a, bits_b)
    grid = product_grid(product) if of_kmeans else integer_grid(product, bits_a)
    end = 1 << bits_a + bits_b
    return all(word_fits(word, grid) for word in words[:end]) and all(map(word_fits, words[end:]))


def integer_digits(integer_bits: int, bits_a: int) -> int:
    """Digits of ``bits_a`` bits of an integer, that select rows one after the other; at least 1."""
    return max(1, -(-integer_bits // bits_a))


def beats(length: int, elements: int) -> int:
    """``ceil(length / elements)``: element e of beat b is k = b * elements + e."""
    return -(-length // elements)


def groups(outputs: int, columns: int) -> int:
    """``ceil(outputs / columns)``: column c of group g is output n = g * columns + c."""
    return -(-outputs // columns)


def group_order(
    length: int, outputs: int, elements: int, columns: int
) -> Iterator[tuple[int, int]]:
    """(first output n, first element k) of each weight beat: all beats of a group, then the next.

    Padding elements (k >= length) and columns (n >= outputs) hold index 0 and are never counted.
    """
    for group in range(groups(outputs, columns)):
        for beat in range(beats(length, elements)):
            yield group * columns, beat * elements


def weight_beat_bits(columns: int, elements: int, bits_b: int) -> int:
    """Width of a weight beat in bits."""
    return columns * elements * bits_b


def weight_bit(column: int, element: int, elements: int, bits_b: int) -> int:
    """Lowest bit of a weight index within its beat: column-major."""
    return (column * elements + element) * bits_b


def activation_entry_bits(bits_a: int, int_bits: int) -> int:
    """``max(bits_a, int_bits)``: an entry holds an index or an unsigned integer, low-aligned."""
    return max(bits_a, int_bits)


def activation_bit(element: int, bits_a: int, int_bits: int) -> int:
    """Lowest bit of an activation entry within the entries of its beat."""
    return element * activation_entry_bits(bits_a, int_bits)


def outlier_mask_bit(element: int) -> int:
    """Bit of an element in the outlier mask that accompanies an activation beat; 1 = outlier."""
    return element


# The weight image: a matmul's weights as the memories of the weight ports store them.
#
# An array beat is one beat of each lane; a lane beat takes ``weight_lane_words`` port words, so an
# array beat has slots = lanes * weight_lane_words of them: slot l * weight_lane_words + w is word w
# of lane l. Output n = (group * lanes + lane) * columns + column. Each group is
# beats(length, elements) array beats of indices (bits: weight_bit) and weight_scale_beats array
# beats of scales: FP16 word of column c at bit 16 * c of these beats, the lowest bits in the first.
# What no weight fills is 0. Array beats are numbered through all groups.


@dataclasses.dataclass(frozen=True)
class WeightLayout:
    """The places of a weight image's words: the lanes' numbers and those of the ports."""

    lanes: int
    columns: int
    elements: int
    bits_b: int
    ports: int
    port_bits: int

    @property
    def group_outputs(self) -> int:
        """Output channels of a group."""
        return self.lanes * self.columns

    @property
    def lane_words(self) -> int:
        """Port words of a lane beat."""
        return weight_lane_words(self.columns, self.elements, self.bits_b, self.port_bits)

    @property
    def scale_beats(self) -> int:
        """Array beats of a group's scales."""
        return weight_scale_beats(self.columns, self.elements, self.bits_b, self.port_bits)


def weight_lane_words(columns: int, elements: int, bits_b: int, port_bits: int) -> int:
    """Port words of a lane beat, lowest bits in the first: room for its indices."""
    return -(-weight_beat_bits(columns, elements, bits_b) // port_bits)


def weight_scale_beats(columns: int, elements: int, bits_b: int, port_bits: int) -> int:
    """Lane beats that the scales of a group take: one if they are no longer than its indices."""
    beat_bits = weight_lane_words(columns, elements, bits_b, port_bits) * port_bits
    return -(-FP16.bits * columns // beat_bits)


def weight_word_place(array_beat: int, slot: int, slots: int, ports: int) -> tuple[int, int]:
    """(port, port words after the image's address) of slot ``slot`` of an array beat.

    Port i mod ports stores word number i = array_beat * slots + slot. Each port serves
    slots / gcd(slots, ports) slots in rotation.
    """
    number = array_beat * slots + slot
    return number % ports, number // ports


def weight_port_words(array_beats: int, slots: int, ports: int, port: int) -> int:
    """Words of an image of ``array_beats`` array beats that ``port`` stores."""
    return max(0, -(-(array_beats * slots - port) // ports))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactorTable:
    """w(u) of a function ``y = x * r``, where r is 1 - w(|x|), or w(|x|) for some negative x.

        TANH        w(u) = 1 - tanh(u) / u      r = 1 - w
        GELU_ERF    w(u) = Phi(-u)              r = w for x < 0, else 1 - w
        QUICK_GELU  w(u) = sigmoid(-1.702 u)    r = w for x < 0, else 1 - w

    Piece k is for u in k/16..(k+1)/16. With t the distance from its middle, in units of 2**-GRID:

        w = 2**-FRACTION * (c0 + ((c1 + ((c2 * t) >> CURVE_SHIFT)) * t >> SLOPE_SHIFT))

    After the last piece w is 0. There y is x, -0 or, of TANH, 1 with the sign of x.
    """

    GRID = 18  # fraction bits of u, cut off
    INDEX_BITS = 4  # fraction bits of u that number a piece
    WHOLE_BITS = 4  # other bits of u; from 16 on w is 0
    FRACTION = 30  # fraction bits of w
    SLOPE_SHIFT = 13
    CURVE_SHIFT = 13
    ALPHA = "1.702"  # of QUICK_GELU

    pieces: tuple[tuple[int, int, int], ...]  # c0, c1, c2 of each

    @property
    def end(self) -> int:
        """The least whole number from which on w is 0."""
        return len(self.pieces) >> self.INDEX_BITS


def _gauss_tail(u: Decimal) -> Decimal:
    """Phi(-u), by the series of the error function."""
    term = total = u
    n = 0
    while abs(term) > Decimal("1e-45"):
        n += 1
        term = -term * u * u / (2 * n)
        total += term / (2 * n + 1)
    return Decimal("0.5") - total / (2 * _pi()).sqrt()


@functools.cache
def _pi() -> Decimal:
    """Machin's formula, 16 atan(1/5) - 4 atan(1/239)."""

    def inverse_tangent(n: int) -> Decimal:
        terms = (Decimal((-1) ** k) / ((2 * k + 1) * n ** (2 * k + 1)) for k in range(40))
        return sum(terms, Decimal(0))

    return 16 * inverse_tangent(5) - 4 * inverse_tangent(239)


def _logistic_tail(u: Decimal) -> Decimal:
    return 1 / (1 + (Decimal(FactorTable.ALPHA) * u).exp())


def _tanh_loss(u: Decimal) -> Decimal:
    power = (2 * u).exp()
    return 1 - (power - 1) / (power + 1) / u


# Each w, and the least whole number from which on x * w has no effect on an FP16 result.
_FACTORS: dict[Function, tuple[Callable[[Decimal], Decimal], int]] = {
    Function.TANH: (_tanh_loss, 5),
    Function.GELU_ERF: (_gauss_tail, 6),
    Function.QUICK_GELU: (_logistic_tail, 12),
}


@functools.cache
def factor_table(function: Function) -> FactorTable:
    """The table of a function, by decimal series, so that no mathematical library has a say.

    A piece goes through w at its middle and at the two other Chebyshev nodes of a quadratic.
    KeyError: a function without a table.
    """
    w, end = _FACTORS[function]
    t = FactorTable
    one = 1 << t.FRACTION
    step = Decimal(1) / (1 << t.GRID)
    pieces = []
    with localcontext() as context:
        context.prec = 50
        half = Decimal(1) / (2 << t.INDEX_BITS)
        node = Decimal(3).sqrt() / 2 * half
        for k in range(end << t.INDEX_BITS):
            middle = (2 * k + 1) * half
            low, value, high = (w(middle + offset) for offset in (-node, Decimal(0), node))
            slope = (high - low) / (2 * node) * step
            curve = (high + low - 2 * value) / (2 * node * node) * step * step
            pieces.append((
                round(value * one),
                round(slope * one * (1 << t.SLOPE_SHIFT)),
                round(curve * one * (1 << t.SLOPE_SHIFT + t.CURVE_SHIFT)),
            ))  # fmt: skip
    return FactorTable(pieces=tuple(pieces))
