"""Centroid indices by thresholds scaled once per token, no division per element."""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import fixed_point, float_from_bits, from_fixed, mul
from golden.index.codebook import check_codebook


def midpoints(codebook: Tensor) -> Tensor:
    """``rne16((c_i + c_{i+1}) / 2)``: (2**n - 1,) int64 FP16 words, computed offline.

    codebook: ascending FP16 words of magnitude <= 1; ConfigError otherwise. The sign of a zero is
    that of IEEE 754: -0 between two words -0, +0 otherwise.
    """
    check_codebook(codebook)
    fixed = fixed_point(codebook)
    if bool((fixed.diff() < 0).any()):
        raise ConfigError("codebook must be ascending")
    middle = from_fixed(fixed[:-1] + fixed[1:], FP16.grid_exponent - 1, FP16)
    is_minus_zero = codebook.long() == FP16.sign_bit
    return torch.where(is_minus_zero[:-1] & is_minus_zero[1:], FP16.sign_bit, middle)


def thresholds(scale: Tensor, codebook: Tensor) -> Tensor:
    """``rne16(s * midpoint_i)``: (T, 2**n - 1) int64 FP16 words from (T,) scale words."""
    return mul(scale[:, None], midpoints(codebook)[None, :])


def cluster(x: Tensor, scale: Tensor, codebook: Tensor) -> Tensor:
    """``index = number of i with x > rne16(s * rne16((c_i + c_{i+1}) / 2))``: (T, K) int64.

    x: (T, K) and scale: (T,) FP16 words; the comparison is that of IEEE 754 (-0 equals +0, and a
    NaN on either side gives index 0). Scale 0 gives index 0 to every zero. Both roundings are
    written above. Source: the clustering unit of KLLM, section IV-A.
    """
    return cluster_by_midpoints(x, scale, midpoints(codebook))


def cluster_by_midpoints(x: Tensor, scale: Tensor, midpoint: Tensor) -> Tensor:
    """``index = number of i with x > rne16(s * midpoint_i)``: what the clustering unit gives.

    x: (T, K), scale: (T,) and midpoint: (2**n - 1,) FP16 words, any of them, in any order; infinite
    and NaN operands of both operations follow IEEE 754-2019. Returns (T, K) int64.
    """
    bounds = float_from_bits(mul(scale[:, None], midpoint[None, :]), FP16)
    values = float_from_bits(x, FP16)
    index = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for bound in bounds.unbind(dim=1):
        index += values > bound[:, None]
    return index


def nearest(x: Tensor, scale: Tensor, codebook: Tensor) -> Tensor:
    """``argmin over i of |x - s * c_i|``, exact, the lower index on a tie: (T, K) int64.

    s * (c_i + c_{i+1}) / 2 has at most 38 bits, so float64 holds it exactly.
    """
    c, s = float_from_bits(codebook, FP16), float_from_bits(scale, FP16)
    bounds = s[:, None] * (c[:-1] + c[1:]) / 2
    index = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for bound in bounds.unbind(dim=1):
        index += float_from_bits(x, FP16) > bound[:, None]
    return index


def mismatch(x: Tensor, scale: Tensor, codebook: Tensor, inlier: Tensor | None = None) -> float:
    """Share of (inlier) elements whose ``cluster`` index is not the ``nearest`` one."""
    differs = cluster(x, scale, codebook) != nearest(x, scale, codebook)
    return float((differs if inlier is None else differs[inlier]).double().mean())
