"""Packets of the lanes of other number formats: beats to FP32 words. Exact up to one rounding.

A packet is a list of beats (a, w): ``a[e]`` of each element and ``w[c][e]`` of each column. The
words of a packet are the sums of all columns, column 0 first. A model multiplies them by its
scales afterwards.
"""

from collections.abc import Sequence

from golden.fp16.format import FP16, FP32
from golden.fp16.ops import LIMB_BITS, from_fixed
from golden.lanes.format import GROUP

Beat = tuple[Sequence[int], Sequence[Sequence[int]]]


def rounded(total: int, exponent: int = 0) -> int:
    """rne32 of ``total * 2**exponent``, as an FP32 word. |total| < 2**120."""
    low, high = total & (1 << LIMB_BITS) - 1, total >> LIMB_BITS
    return int(from_fixed(low, exponent, FP32, high))


def integer_sum(beats: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
    """``sum over beats and elements of a[e] * w[e]`` of one column, exact."""
    return sum(x * y for a, w in beats for x, y in zip(a, w, strict=True))


def integer_packet(packet: Sequence[Beat]) -> list[int]:
    """``rne32(sum over beats and elements of a[e] * w[c][e])`` of each column c."""
    columns = range(len(packet[0][1]))
    return [rounded(integer_sum([(a, w[c]) for a, w in packet])) for c in columns]


def _parts(word: int) -> tuple[int, int, int]:
    """(sign, exponent, significand) of an FP16 word: its value is ``significand * 2**(exp - 25)``.

    A subnormal word has exponent 1. There is no infinity and no NaN: 31 is an exponent like others.
    """
    exponent, fraction = word >> FP16.frac_bits & FP16.exp_max, word & (1 << FP16.frac_bits) - 1
    hidden = (exponent > 0) << FP16.frac_bits
    return word >> FP16.bits - 1, max(exponent, 1), fraction | hidden


def fp16_sum(beats: Sequence[tuple[Sequence[int], Sequence[int]]], guard_bits: int):
    """(integer, exponent of its grid): the sum of ``a[e] * w[e]`` of one column, aligned.

    Each product is exact. X is the largest exponent of a product so far. The grid is ``guard_bits``
    below the last bit of a product of exponent X. A product is truncated to the grid, towards
    zero. Where X grows, the sum so far is truncated to the new grid, towards minus infinity. The
    sums of truncated products are exact.
    """
    total, top = 0, 0
    for a, w in beats:
        products = []
        for x, y in zip(map(_parts, a), map(_parts, w), strict=True):
            products.append((x[0] ^ y[0], x[1] + y[1], x[2] * y[2] << guard_bits))
        before, top = top, max(top, *(exponent for _, exponent, _ in products))
        total >>= top - before
        for negative, exponent, magnitude in products:
            aligned = magnitude >> top - exponent
            total += -aligned if negative else aligned
    return total, top + 2 * (FP16.grid_exponent - 1) - guard_bits


def fp16_packet(packet: Sequence[Beat], guard_bits: int) -> list[int]:
    """rne32 of ``fp16_sum`` of each column: its one rounding to nearest. Words are FP16."""
    columns = range(len(packet[0][1]))
    return [rounded(*fp16_sum([(a, w[c]) for a, w in packet], guard_bits)) for c in columns]


def w4a16_packet(packet: Sequence[Beat], table: Sequence[int], guard_bits: int) -> list[int]:
    """``fp16_packet`` with weight ``table[w[c][e]]``, FP16 words by index."""
    looked_up = [(a, [[table[index] for index in column] for column in w]) for a, w in packet]
    return fp16_packet(looked_up, guard_bits)


def table_entries(a: Sequence[int]) -> list[int]:
    """Entry j of a table: the last of GROUP activations, plus or minus each other one.

    Bit n of j set: activation n counts positive, else negative.
    """
    *others, last = a
    return [
        last + sum(x if j >> n & 1 else -x for n, x in enumerate(others))
        for j in range(2 ** (GROUP - 1))
    ]


def table_sum(beats: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> int:
    """The exact sum of one column: a beat is (a, words), ``words[g]`` of ``plane_words``.

    Equal to ``sum over beats and elements of a[e] * weight_value(code)``.
    """
    total = 0
    for a, words in beats:
        for g, planes in enumerate(words):
            entries = table_entries(a[GROUP * g : GROUP * (g + 1)])
            for place, word in enumerate(planes):
                entry = entries[word % 2 ** (GROUP - 1)]
                total += (-entry if word >> GROUP - 1 else entry) << place
    return total


def table_packet(packet: Sequence) -> list[int]:
    """rne32 of ``table_sum`` of each column: a beat is (a, words of each column)."""
    columns = range(len(packet[0][1]))
    return [rounded(table_sum([(a, w[c]) for a, w in packet])) for c in columns]
