"""Numbers and statuses of attention on exact rows. Pure Python.

Widths of exact sums follow from their longest sums. On the grid 2**-24 a finite FP16 word is at
most ``LARGEST`` in magnitude, 65504 * 2**24, which lies below 2**40. A product of two such words
lies below 2**80 on the grid 2**-48. A weight is at most 1.0, 2**24 on its grid, so that a product
with one lies below 2**64. One more bit is the sign.
"""

import enum
import struct

from golden.fp16.format import FP16

LARGEST = 2047 << 29  # the largest finite word in units of 2**-24
WEIGHT_GRID = -24  # softmax weights and their sums
PRODUCT_GRID = -48  # products of two FP16 words
PRODUCT_BITS = 80  # of the magnitude of a product of two words
WEIGHTED_BITS = 64  # of one with a weight
NO_SINK = FP16.sign_bit | FP16.infinity  # a sink that weighs nothing


class Status(enum.IntEnum):
    """The end of a job; the first that applies, in this order."""

    OK = 0
    LENGTH = 1  # no row, or more than the configuration has
    DATA = 2  # a row that came with ``error``
    NONFINITE = 3  # NaN or infinity in q, K or V; NaN or +infinity in a sink
    OVERFLOW = 4  # a score above FP16, or all scores below it


CAP_RANGE = (2.0**-10, 2.0**14)  # of a cap: it and 2 / cap are normal FP16 numbers


def cap_operand(cap: float) -> int:
    """A cap c as commands have it: rne16(c) in bits 0..15, rne16(2 / c) in 16..31; 0: no cap.

    ValueError: c is neither 0 nor in ``CAP_RANGE``.
    """
    if not cap:
        return 0
    least, most = CAP_RANGE
    if not least <= cap <= most:
        raise ValueError(f"cap must be 0 or {least:g}..{most:g}, not {cap}")
    (word,) = struct.unpack("<H", struct.pack("<e", cap))
    (rounded,) = struct.unpack("<e", struct.pack("<e", cap))
    (factor,) = struct.unpack("<H", struct.pack("<e", 2 / rounded))
    return int(word | factor << 16)


def score_bits(head_dim: int) -> int:
    """Bits of a signed sum of ``head_dim`` products of two words."""
    return (head_dim * LARGEST**2).bit_length() + 1


def value_bits(rows: int) -> int:
    """Bits of a signed sum of ``rows`` words, each times a weight."""
    return (rows * LARGEST << -WEIGHT_GRID).bit_length() + 1


def total_bits(rows: int) -> int:
    """Bits of a sum of ``rows`` weights."""
    return (rows << -WEIGHT_GRID).bit_length()
