"""Exact sums of products of FP16 words, and quotients of such sums.

Words are int64 tensors of bit patterns, any device. Sums are exact, so order never matters. Each
rounding is to nearest even.
"""

import torch
from torch import Tensor

from golden.attention.format import PRODUCT_GRID
from golden.attention.softmax import reciprocal
from golden.fp16.format import FP16, FP32
from golden.fp16.limbs import Limbs, from_shifted
from golden.fp16.ops import fixed_point, from_fixed, mul

_HALF = 20  # bits of a low part
_MASK = (1 << _HALF) - 1
_TERMS = 1 << 12  # products of two parts, below 2**40, whose sum stays below 2**53


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of integers of up to 21 bits; exact in float64, on a GPU too."""
    total = a.new_zeros(a.shape[0], b.shape[1])
    for left, right in zip(a.split(_TERMS, dim=1), b.split(_TERMS, dim=0), strict=True):
        total += (left.to(torch.float64) @ right.to(torch.float64)).to(torch.int64)
    return total


def products(a: Tensor, b: Tensor) -> Limbs:
    """``a @ b`` in units of 2**-48: (m, k) and (k, n) finite words, k at most 2**20."""
    x, y = fixed_point(a), fixed_point(b)
    upper, lower = y >> _HALF, y & _MASK
    return from_shifted([
        (_product(x >> _HALF, upper), 2 * _HALF),
        (_product(x >> _HALF, lower) + _product(x & _MASK, upper), _HALF),
        (_product(x & _MASK, lower), 0),
    ])  # fmt: skip


def quotients(sums: Limbs, grid: int, total: Tensor, bad: Tensor) -> Tensor:
    """``rne16(rne32(W) * rne32(1 / rne32(S)))``: (L, d) words.

    sums : (L, d) W in units of 2**grid
    total : (L,) S in units of 2**-24, 0 only where bad
    bad : (L,) queries without a result, canonical NaN in all elements
    """
    value = from_fixed(sums.low, grid, FP32, high=sums.high)
    inverse = reciprocal(torch.where(bad, 1, total))
    words = mul(value, inverse[:, None], FP32, FP32, FP16)
    return torch.where(bad[:, None], FP16.canonical_nan, words)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """``s = rne16(sum_i q_i * k_i)``: (L, rows) words; beyond FP16 an infinity.

    q : (L, d) words; k : (rows, d) words
    """
    total = products(q, torch.as_tensor(k).T)
    return from_fixed(total.low, PRODUCT_GRID, FP16, high=total.high)
