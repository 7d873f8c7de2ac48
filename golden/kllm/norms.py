"""RMSNorm and LayerNorm statistics of quantized tokens from index counts, bit-true (docs/kllm.md).

Per token of K elements, with n_j the number of inliers of index j:
    A = sum_j n_j * c_j,      Q = sum_j n_j * c_j**2,             exact integers,
    X1 = sum over outliers x, X2 = sum over outliers x**2,        exact integers,
    sum_sq = fma32(s**2, rne32(Q), rne32(X2)),                    s**2 is exact in FP32,
    mean_sq = rne32(sum_sq / K).
RMSNorm:    mean = +0,  v = mean_sq.
LayerNorm:  sum = fma32(s, rne32(A), rne32(X1)),  mean = rne32(sum / K),
            v = max(+0, fma32(-mean, mean, mean_sq)).
Both:       rms_reciprocal = rsqrt32(rne32(v + epsilon)).

These roundings and no others. Q and X2 are on the grid 2**-48, A and X1 on 2**-24, so the order
of elements does not matter. v of LayerNorm is a difference of rounded terms: its relative error is
about 2**-23 * mean_sq / v. gamma and beta are folded into the layer that follows (``fold``).
Source: KLLM, section III-C2.
"""

import dataclasses

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.functions import divide, rsqrt
from golden.fp16.ops import (
    LIMB_BITS,
    add,
    convert,
    fixed_point,
    fma,
    from_fixed,
    from_int,
    mul,
    negate,
)
from golden.index.codebook import check_codebook
from golden.index.format import K_MAX
from golden.kllm.format import Status
from golden.kllm.records import Tokens

_PART = 20  # an FP16 magnitude on the grid 2**-24 is below 2**40: two parts
_GRID = FP16.grid_exponent
_GRID_SQUARE = 2 * FP16.grid_exponent


def _nonfinite(word: Tensor, format=FP16) -> Tensor:
    return word & format.infinity == format.infinity


def _sum_of_squares(value: Tensor) -> tuple[Tensor, Tensor]:
    """Exact sums of squares along the last axis as limbs (high, low); |value| < 2**40."""
    value = value.abs()
    high, low = value >> _PART, value & ((1 << _PART) - 1)
    part_0 = (low * low).sum(-1)
    part_1 = (2 * high * low).sum(-1) + (part_0 >> _PART)
    part_2 = (high * high).sum(-1) + (part_1 >> _PART)
    mask = (1 << _PART) - 1
    rest = LIMB_BITS - 2 * _PART
    below = (part_1 & mask) << _PART | part_0 & mask
    return part_2 >> rest, (part_2 & ((1 << rest) - 1)) << 2 * _PART | below


@dataclasses.dataclass(frozen=True)
class ExactSums:
    """The module's Q, X2, A, X1 of (T,) tokens, as integers.

    Q and X2 are on the grid 2**-48, A and X1 on the grid 2**-24. X2 is
    ``x2_high * 2**LIMB_BITS + x2``.
    """

    q: Tensor
    x2: Tensor
    x2_high: Tensor
    a: Tensor
    x1: Tensor

    def round(self) -> "Sums":
        return Sums(
            q=from_fixed(self.q, _GRID_SQUARE, FP32),
            x2=from_fixed(self.x2, _GRID_SQUARE, FP32, high=self.x2_high),
            a=from_fixed(self.a, _GRID, FP32),
            x1=from_fixed(self.x1, _GRID, FP32),
        )


def exact_sums(token: Tokens, codebook: Tensor) -> ExactSums:
    """The exact integers of ``token``: see the module's equations.

    - token.index: (T, K) integers below 2**n; those of outliers do not count
    - token.words: (T, K) FP16 words; those of inliers, and NaN and infinite ones do not count
    - codebook: (2**n,) FP16 words of magnitude at most 1
    """
    outlier, x = token.outlier.bool(), token.words.long()
    is_finite = outlier & ~_nonfinite(x)
    index = torch.where(outlier, 0, token.index.long())
    centroid = torch.where(outlier, 0, fixed_point(codebook)[index])
    value = torch.where(is_finite, fixed_point(torch.where(is_finite, x, 0)), 0)
    high, low = _sum_of_squares(value)
    return ExactSums(
        q=(centroid * centroid).sum(1),
        x2=low,
        x2_high=high,
        a=centroid.sum(1),
        x1=value.sum(1),
    )


@dataclasses.dataclass(frozen=True)
class Sums:
    """The module's Q, X2, A, X1, each rounded to FP32: (T,) words."""

    q: Tensor
    x2: Tensor
    a: Tensor
    x1: Tensor


def finish_statistics(
    sums: Sums, s: Tensor, length: Tensor, epsilon, layer_norm
) -> tuple[Tensor, Tensor]:
    """(mean, rms_reciprocal) FP32 words from FP32 words sums, length and epsilon, FP16 s.

    The floating-point part of the module's equations; layer_norm: bool, or a boolean tensor.
    """
    epsilon = torch.as_tensor(epsilon, device=s.device).to(torch.int64)
    layer_norm = torch.as_tensor(layer_norm, device=s.device).bool()
    wide_s = convert(s, FP16, FP32)
    square = mul(s, s, FP16, FP16, FP32)
    mean_sq = divide(fma(square, sums.q, sums.x2, FP32, FP32, FP32, FP32), length, FP32, FP32, FP32)
    total = fma(wide_s, sums.a, sums.x1, FP32, FP32, FP32, FP32)
    mean = torch.where(layer_norm, divide(total, length, FP32, FP32, FP32), 0)
    variance = fma(negate(mean, FP32), mean, mean_sq, FP32, FP32, FP32, FP32)
    variance = torch.where(variance >= FP32.sign_bit, 0, variance)
    v = torch.where(layer_norm, variance, mean_sq)
    return mean, rsqrt(add(v, epsilon, FP32), FP32, FP32)


def norm_statistics(
    token: Tokens, codebook: Tensor, epsilon, layer_norm=False, k_max: int = K_MAX
) -> tuple[Tensor, Tensor, Tensor]:
    """``(mean (T,), rms_reciprocal (T,), status (T,))``: FP32 words and ``Status`` bits, int64.

    - token.index: (T, K) integers below 2**n
    - codebook: (2**n,) FP16 words of magnitude at most 1
    - epsilon: FP32 word or (T,) of them
    - layer_norm: bool or (T,) bool

    Status bits:

        LENGTH_ZERO      both words are the canonical NaN
        LENGTH_TOO_LONG  beyond k_max; both words are the canonical NaN
        NONFINITE        s, epsilon or an outlier is NaN or infinite; both words are canonical NaN
        OVERFLOW         rms_reciprocal is infinite or NaN because v + epsilon is 0 or negative;
                         the words are as computed

    ConfigError: codebook or k_max. ValueError: an index out of range.
    """
    bits = check_codebook(codebook)
    if not 1 <= k_max <= K_MAX:
        raise ConfigError(f"k_max must be 1..{K_MAX}, not {k_max}")
    tokens, length = token.index.shape
    s, x = token.scale.long(), token.words.long()
    epsilon = torch.as_tensor(epsilon, device=s.device).to(torch.int64).expand(tokens)
    status = (_nonfinite(s) | _nonfinite(epsilon, FP32)).long() * int(Status.NONFINITE)
    nan = torch.full((tokens,), FP32.canonical_nan, dtype=torch.int64, device=s.device)
    if length == 0 or length > k_max:
        fault = Status.LENGTH_ZERO if length == 0 else Status.LENGTH_TOO_LONG
        return nan, nan.clone(), status | int(fault)
    outlier = token.outlier.bool()
    index = torch.where(outlier, 0, token.index.long())
    if not 0 <= int(index.min()) <= int(index.max()) < 1 << bits:
        raise ValueError(f"index must hold 0..{(1 << bits) - 1}")
    bad = outlier & _nonfinite(x)
    # A token refused by its scale or epsilon is not looked into, as in the hardware.
    status |= (bad.any(dim=1) & (status == 0)).long() * int(Status.NONFINITE)
    sums = exact_sums(token, codebook).round()
    elements = from_int(torch.tensor(length, device=s.device), FP32)
    mean, rms_reciprocal = finish_statistics(sums, s, elements, epsilon, layer_norm)
    silent = status != 0
    overflow = ~silent & _nonfinite(rms_reciprocal, FP32)
    status |= overflow.long() * int(Status.OVERFLOW)
    return torch.where(silent, nan, mean), torch.where(silent, nan, rms_reciprocal), status


@dataclasses.dataclass(frozen=True)
class Folded:
    """A linear layer that has taken in the norm before it.

    weight: (K, N) float64, ``gamma_k * W_kn``, to be quantized; offset: (N,) float64,
    ``sum_k beta_k * W_kn + bias_n``.
    """

    weight: Tensor
    offset: Tensor


def fold(
    weight: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None
) -> Folded:
    """Fold a norm's gamma and beta into the (K, N) weight of the layer that follows it.

    F is the folded weight:

        norm(x) @ W + bias = rms_reciprocal * (x @ F - mean * colsum(F)) + offset

    With F quantized, colsum is that of the quantized F. So a constant token gives exactly the
    offset.
    """
    weight = weight.double()
    offset = torch.zeros(weight.shape[1], dtype=torch.float64, device=weight.device)
    if beta is not None:
        offset = offset + beta.double() @ weight
    if bias is not None:
        offset = offset + bias.double()
    return Folded(weight=gamma.double()[:, None] * weight, offset=offset)


def normalise(
    y: Tensor, mean: Tensor, rms_reciprocal: Tensor, colsum: Tensor, offset: Tensor
) -> Tensor:
    """``rms_reciprocal * (y - mean * colsum) + offset`` in float64: (T, N).

    y: (T, N), the product of the token as it was, not normalised, with the folded weight; mean,
    rms_reciprocal: (T,) values; colsum, offset: (N,).
    """
    return rms_reciprocal[:, None] * (y - mean[:, None] * colsum) + offset
