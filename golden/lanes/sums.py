"""Packets of the lanes of other number formats: beats to FP32 words. Exact up to one rounding.

A packet is a list of beats (a, w): ``a[e]`` of each element and ``w[c][e]`` of each column. The
words of a packet are the sums of all columns, column 0 first. A model multiplies them by its
scales afterwards.
"""

from collections.abc import Sequence

from golden.fp16.format import FP32
from golden.fp16.ops import LIMB_BITS, from_fixed

__all__ = ["integer_packet", "integer_sum", "rounded"]

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
