"""Numbers and statuses of attention on exact rows. Pure Python.

Widths of exact sums follow from their longest sums. On the grid 2**-24 a finite FP16 word is at
most ``LARGEST`` in magnitude, 65504 * 2**24, which lies below 2**40. A product of two such words
lies below 2**80 on the grid 2**-48. A weight is at most 1.0, 2**24 on its grid, so that a product
with one lies below 2**64. One more bit is the sign.
"""

import enum

LARGEST = 2047 << 29  # the largest finite word in units of 2**-24
WEIGHT_GRID = -24  # softmax weights and their sums
PRODUCT_GRID = -48  # products of two FP16 words
PRODUCT_BITS = 80  # of the magnitude of a product of two words
WEIGHTED_BITS = 64  # of one with a weight


class Status(enum.IntEnum):
    """The end of a job; the first that applies, in this order."""

    OK = 0
    LENGTH = 1  # no row, or more than the configuration has
    DATA = 2  # a row that came with ``error``
    NONFINITE = 3  # NaN or infinity in q, K or V
    OVERFLOW = 4  # a score above FP16, or all scores below it


def score_bits(head_dim: int) -> int:
    """Bits of a signed sum of ``head_dim`` products of two words."""
    return (head_dim * LARGEST**2).bit_length() + 1


def value_bits(rows: int) -> int:
    """Bits of a signed sum of ``rows`` words, each times a weight."""
    return (rows * LARGEST << -WEIGHT_GRID).bit_length() + 1


def total_bits(rows: int) -> int:
    """Bits of a sum of ``rows`` weights."""
    return (rows << -WEIGHT_GRID).bit_length()
