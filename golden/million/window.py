"""Exact attention on exact rows, the sinks and the recent tokens.

Words are int64 tensors of FP16 bit patterns, all finite, any device. Sums are exact, so the order
of rows never matters.
"""

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.limbs import Limbs, from_shifted
from golden.fp16.ops import fixed_point, from_fixed
from golden.million.format import PRODUCT_GRID

_HALF = 20  # bits of a low part; sums of products of parts are exact in float64
_MASK = (1 << _HALF) - 1


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of integers; exact while sums stay below 2**53, on a GPU too."""
    return (a.to(torch.float64) @ b.to(torch.float64)).to(torch.int64)


def window_scores(q: Tensor, k: Tensor, slope: Tensor, distances: Tensor) -> Tensor:
    """``s = rne16(sum_i q_i * k_i + slope * distance)``: (rows, L) words.

    q : (L, d) words; k : (rows, d) words; slope : (L,) words; distances : (rows,) integers
    The sum is exact, on the grid 2**-48. Beyond FP16 the score is an infinity.
    """
    query, key = fixed_point(q), fixed_point(k).T
    upper, lower = key >> _HALF, key & _MASK
    terms = [
        (_product(query >> _HALF, upper), 2 * _HALF),
        (_product(query >> _HALF, lower) + _product(query & _MASK, upper), _HALF),
        (_product(query & _MASK, lower), 0),
        (fixed_point(slope)[:, None] * distances.to(torch.int64), -FP16.grid_exponent),
    ]
    total = from_shifted(terms)
    return from_fixed(total.low, PRODUCT_GRID, FP16, high=total.high).T


def window_sums(weight: Tensor, v: Tensor) -> Limbs:
    """``W_i = sum over rows of w * v_i`` in units of 2**-48: (L, d), 0 without rows.

    weight : (L, rows) words of 0..1; v : (rows, d) words
    """
    w, value = fixed_point(weight), fixed_point(v)
    return from_shifted([(_product(w, value >> _HALF), _HALF), (_product(w, value & _MASK), 0)])


def key_rows(sinks: int, start: int, recent: int, first: int, places: int) -> list[int]:
    """Rows of the exact keys in their order: the sinks, then the recent tokens, oldest first.

    The ring of ``places`` rows begins at row ``first``; ``start`` is the place of the oldest.
    """
    return [*range(sinks), *(first + (start + n) % places for n in range(recent))]
