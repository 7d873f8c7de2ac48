"""Sums of weighted values by histograms.

A value is ``2**e * C[m][code_m]`` in each subspace m. The weights of the keys with one code are
added first, then each row of the codebook is multiplied once:

    sum_k w_k * C[m][code_km] = sum_j C[m][j] * H[m][j],  H[m][j] = sum of w_k with code_km = j

Both are sums of integers, so any order of the keys gives the same bits.
"""

import torch
from torch import Tensor

from golden.fp16.limbs import Limbs, from_shifted
from golden.fp16.ops import fixed_point
from golden.index.histogram import bank_histogram

_PIECE = 14  # bits of a bin that one product in float64 takes: 2**(14 + 24) * 4096 < 2**53
_PIECES = 3


def value_bins(weight: Tensor, code: Tensor, entries: int) -> Tensor:
    """``H[m, j, l] = sum over keys with code_m = j of w_l`` in units of 2**-24: (M, entries, L).

    weight : (L, n) FP16 words of 0..1; code : (n, M), one of ``entries`` or above counts nothing
    """
    return bank_histogram(code, fixed_point(weight).T, entries)


def value_sums(weight: Tensor, code: Tensor, codebook: Tensor) -> Limbs:
    """``N = sum over keys of w * C[m][code_m]`` in units of 2**-48: (L, d).

    weight : (L, n) FP16 words of 0..1; code : (n, M); codebook : (M, entries, d / M) FP16 words of
    magnitude at most 1. N is exact, |N| <= 2**63 for 32,768 keys. Without keys it is 0. A code of
    ``entries`` or above adds nothing in its subspace.
    """
    bins = value_bins(weight, code, codebook.shape[1]).transpose(1, 2)  # (M, L, entries)
    entry = fixed_point(codebook).to(torch.float64)
    terms = []
    for number in range(_PIECES):
        piece = bins >> _PIECE * number & (1 << _PIECE) - 1
        product = (piece.to(torch.float64) @ entry).to(torch.int64)  # (M, L, d / M)
        terms.append((product.transpose(0, 1).flatten(1), _PIECE * number))
    return from_shifted(terms)
