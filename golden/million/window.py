"""Exact attention on exact rows, the sinks and the recent tokens.

Words are int64 tensors of FP16 bit patterns, all finite, any device. Sums are exact, so the order
of rows never matters.
"""

import torch
from torch import Tensor

from golden.attention.exact import products
from golden.fp16.format import FP16
from golden.fp16.limbs import Limbs, from_shifted
from golden.fp16.ops import fixed_point, from_fixed
from golden.million.format import PRODUCT_GRID


def window_scores(q: Tensor, k: Tensor, slope: Tensor, distances: Tensor) -> Tensor:
    """``s = rne16(sum_i q_i * k_i + slope * distance)``: (rows, L) words.

    q : (L, d) words; k : (rows, d) words; slope : (L,) words; distances : (rows,) integers
    The sum is exact, on the grid 2**-48. Beyond FP16 the score is an infinity.
    """
    bias = fixed_point(slope)[:, None] * distances.to(torch.int64)
    total = products(q, k.T).plus(from_shifted([(bias, -FP16.grid_exponent)]))
    return from_fixed(total.low, PRODUCT_GRID, FP16, high=total.high).T


def window_sums(weight: Tensor, v: Tensor) -> Limbs:
    """``W_i = sum over rows of w * v_i`` in units of 2**-48: (L, d), 0 without rows.

    weight : (L, rows) words of 0..1; v : (rows, d) words
    """
    return products(weight, v)


def key_rows(sinks: int, start: int, recent: int, first: int, places: int) -> list[int]:
    """Rows of the exact keys in their order: the sinks, then the recent tokens, oldest first.

    The ring of ``places`` rows begins at row ``first``; ``start`` is the place of the oldest.
    """
    return [*range(sinks), *(first + (start + n) % places for n in range(recent))]
