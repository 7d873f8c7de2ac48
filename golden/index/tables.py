"""Tables of the products of vectors with the entries of codebooks: exact sums, one rounding."""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import LIMB_BITS, fixed_point, from_fixed, is_special
from golden.index.format import GRID_PRODUCT_EXACT, SCALE_EXPONENT_MAX, SCALE_EXPONENT_MIN

_HALF = 20  # bits of the low part of a query's element: products of both parts fit 62 bits


def tables(q: Tensor, codebook: Tensor, exponent: int) -> tuple[Tensor, Tensor]:
    """``T[m][j] = rne16(2**exponent * sum_i q[m][i] * C[m][j][i])`` and which queries are bad.

    q: (L, d) words; codebook: (M, E, d / M) words of magnitude at most 1. Returns (L, M, E) words
    and (L,) booleans. A query is bad if an entry of its is infinite, or an element of its is NaN
    or infinite. The sum is exact, on the grid 2**-48.

    ConfigError: the exponent is out of range, or the sizes differ.
    """
    if not SCALE_EXPONENT_MIN <= exponent <= SCALE_EXPONENT_MAX:
        allowed = f"{SCALE_EXPONENT_MIN}..{SCALE_EXPONENT_MAX}"
        raise ConfigError(f"exponent must be {allowed}, not {exponent}")
    subspaces, _, sub = codebook.shape
    if q.shape[-1] != subspaces * sub:
        raise ConfigError(f"a query must have {subspaces * sub} elements, not {q.shape[-1]}")
    parts = fixed_point(q).reshape(len(q), subspaces, 1, sub)
    entries = fixed_point(codebook)
    upper = ((parts >> _HALF) * entries).sum(-1)  # below 2**(21 + 24 + 6)
    lower = ((parts & ((1 << _HALF) - 1)) * entries).sum(-1)
    # upper * 2**20 + lower as two limbs of 62 bits
    rest = LIMB_BITS - _HALF
    high, low = upper >> rest, ((upper & ((1 << rest) - 1)) << _HALF) + lower
    words = from_fixed(low, GRID_PRODUCT_EXACT + exponent, FP16, high=high)
    bad = is_special(words).flatten(1).any(-1) | is_special(q.to(torch.int64)).any(-1)
    return words, bad
