"""Weights and activations to centroid indices, and the codebooks that they need.

Weights: ``w_kn ~ s_B[n] * C_B[ib_kn]``, s_B the largest magnitude of output channel n.
Activations: ``x_tk ~ s_A[t] * C_A[ia_tk]``, s_A the largest magnitude among the inliers of token
t. The k largest and k smallest words stay as they are. Source: KLLM, section III-A.
"""

import dataclasses

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, fixed_point, float_from_bits, from_fixed
from golden.index.codebook import codebook_bits
from golden.index.format import CODEBOOK_BITS_MAX, CODEBOOK_BITS_MIN, INT_BITS
from golden.index.kmeans import kmeans_1d
from golden.index.nearest import cluster
from golden.kllm.config import outlier_count
from golden.kllm.matmul import MatmulResult, matmul
from golden.kllm.orizuru import pop_order
from golden.kllm.records import Codebooks, Tokens, Weight

_MAGNITUDE = FP16.sign_bit - 1


@dataclasses.dataclass(frozen=True)
class QuantizedWeight(Weight):
    """index: (K, N) uint8, below 2**bits; scale: (N,), codebook: (2**bits,) FP16 words."""

    codebook: Tensor

    @property
    def bits(self) -> int:
        return codebook_bits(self.codebook)

    def dequantize(self) -> Tensor:
        """``s_B[n] * C_B[ib_kn]``: (K, N) float64, exact."""
        return float_from_bits(self.codebook)[self.index.long()] * float_from_bits(self.scale)


@dataclasses.dataclass(frozen=True)
class QuantizedTokens(Tokens):
    """Tokens and their codebook: (2**bits,) FP16 words.

    index: uint8, 0 at outliers; words: 0 where not an outlier; scale: the canonical NaN for a
    token with a NaN (``nan``: (T,) bool), so that products made from it have no output.
    """

    codebook: Tensor
    nan: Tensor

    @property
    def bits(self) -> int:
        return codebook_bits(self.codebook)

    def dequantize(self) -> Tensor:
        """``s_A * C_A[ia]``, or the outlier itself: (T, K) float64, exact."""
        return self.value(self.codebook)


@dataclasses.dataclass(frozen=True)
class Training:
    """The choices by which a codebook is trained.

    most: samples drawn by the seed; all if None. antisymmetric: ``c[i] = -c[2**bits - 1 - i]``.
    """

    most: int | None = None
    antisymmetric: bool = False


_PLAIN = Training()


def _codebook(
    samples: Tensor,
    weight: Tensor | None,
    bits: int,
    seed: int,
    training: Training,
) -> Tensor:
    """2**bits ascending centroids as FP16 words, clipped to -1..1.

    The nearest of antisymmetric centroids has the sign of its sample. So half of them are the
    k-means of magnitudes.
    """
    most = training.most
    if not CODEBOOK_BITS_MIN <= bits <= CODEBOOK_BITS_MAX:
        raise ConfigError(f"bits must be {CODEBOOK_BITS_MIN}..{CODEBOOK_BITS_MAX}, not {bits}")
    if most is not None and samples.numel() > most:
        generator = torch.Generator().manual_seed(seed)
        pick = torch.randperm(samples.numel(), generator=generator)[:most].to(samples.device)
        samples = samples.flatten()[pick]
        weight = None if weight is None else weight.flatten()[pick]
    if weight is not None and not bool((weight > 0).any()):
        weight = None
    if training.antisymmetric:
        half = kmeans_1d(samples.abs(), 1 << bits - 1, weight, seed=seed).centroids
        centroids = torch.cat((-half.flip(0), half))
    else:
        centroids = kmeans_1d(samples, 1 << bits, weight, seed=seed).centroids
    # + 0.0: a centroid of -0 would sort below +0 as a word and equal it as a number.
    return bits_from_float(centroids.clamp(-1, 1) + 0.0, FP16)


def _normalised(value: Tensor, scale: Tensor) -> Tensor:
    """value / scale, 0 where the scale is 0."""
    return torch.where(scale > 0, value / torch.where(scale > 0, scale, 1), 0)


def _channels(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(w / s_B (N, K), s_B (N, 1) as float64, s_B (N,) as words) of a real (N, K) weight."""
    w = weight.detach().double()
    if not bool(torch.isfinite(w).all()):
        raise ValueError("weight must be finite")
    words = bits_from_float(w.abs().amax(dim=1), FP16)
    s = float_from_bits(words, FP16)[:, None]
    if not bool(torch.isfinite(s).all()):
        raise ValueError("weight must be within the FP16 range, 65504")
    return _normalised(w, s), s, words


def train_weight_codebook(
    weight: Tensor,
    bits: int = 4,
    fisher: Tensor | None = None,
    seed: int = 0,
    training: Training = _PLAIN,
) -> Tensor:
    """2**bits ascending FP16 words for a real (N, K) weight: weighted k-means of w / s_B.

    A sample weighs s_B**2 (times fisher (N, K), squared gradients), so that the squared error of
    the weights themselves is minimised.
    """
    unit, s, _ = _channels(weight)
    importance = (s**2).expand_as(unit)
    if fisher is not None:
        importance = importance * fisher.detach().double()
    return _codebook(unit, importance, bits, seed, training)


def quantize_weight(
    weight: Tensor,
    bits: int = 4,
    fisher: Tensor | None = None,
    seed: int = 0,
    codebook: Tensor | None = None,
) -> QuantizedWeight:
    """Per-channel scale, one codebook for the layer, nearest centroid to every weight.

    weight: (N, K) real, as torch.nn.Linear holds it. codebook: of ``train_weight_codebook``, which
    is called with the other arguments where it is None. Roundings: s_B and the centroids to FP16;
    the nearest centroid is exact on the rounded ones, the lower index on a tie.
    ValueError: a weight that is not finite or beyond the FP16 range.
    """
    if codebook is None:
        codebook = train_weight_codebook(weight, bits, fisher, seed)
    unit, _, scale = _channels(weight)
    c = float_from_bits(codebook, FP16)
    index = torch.bucketize(unit.contiguous(), (c[:-1] + c[1:]) / 2)  # midpoints below unit
    return QuantizedWeight(
        index=index.t().contiguous().to(torch.uint8), scale=scale, codebook=codebook
    )


def split_outliers(x: Tensor, share: float = 0.005) -> tuple[Tensor, Tensor, Tensor]:
    """(outlier mask (T, K), scale words (T,), NaN flags (T,)) of (T, K) FP16 words.

    Each side has k = max(1, round(share * K)) outliers, none when share is 0. The scale is the
    largest magnitude among the inliers (canonical NaN for a token with a NaN).
    ValueError: 2k >= K.
    """
    k = outlier_count(x.shape[1], share) if share else 0
    largest, smallest, nan = pop_order(x, k, k)
    outlier = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    outlier.scatter_(1, largest, True).scatter_(1, smallest, True)
    # Magnitude words compare as integers.
    scale = torch.where(outlier, 0, x & _MAGNITUDE).amax(dim=1)
    return outlier, torch.where(nan, FP16.canonical_nan, scale), nan


def train_activation_codebook(
    x: Tensor,
    bits: int = 4,
    fisher: Tensor | None = None,
    share: float = 0.005,
    seed: int = 0,
    thresholds: tuple[float, float] | None = None,
    training: Training = _PLAIN,
) -> Tensor:
    """2**bits ascending FP16 words from calibration tokens: weighted k-means of inliers / s_A.

    x: (T, K) FP16 words without NaN or infinity; fisher: (T, K) squared gradients of the loss with
    respect to x. In units of s_A they become fisher * s_A**2, the weight of a sample; without
    fisher every sample weighs 1. thresholds: (upper, lower), beyond which the outliers of every
    token are and the larger magnitude of which is s_A (kllm-s); None: ``share`` of every token.
    ValueError: not finite, 2k >= K.
    """
    real = float_from_bits(x, FP16)
    if thresholds is None:
        outlier, scale, _ = split_outliers(x, share)
        s = float_from_bits(scale, FP16)[:, None]
    else:
        upper, lower = thresholds
        outlier = (real > upper) | (real < lower)
        s = torch.full_like(real[:, :1], max(abs(upper), abs(lower)))
    inlier = ~outlier
    weight = None if fisher is None else (fisher.detach().double() * s**2)[inlier]
    return _codebook(_normalised(real, s)[inlier], weight, bits, seed, training)


def quantize_tokens(x: Tensor, codebook: Tensor, share: float = 0.005) -> QuantizedTokens:
    """Outliers, scale and indices of (T, K) FP16 words, as the hardware finds them.

    ValueError: 2k >= K; ConfigError: codebook. A token with a NaN is flagged, others unharmed.
    """
    outlier, scale, nan = split_outliers(x, share)
    index = torch.where(outlier, 0, cluster(x, scale, codebook))
    return QuantizedTokens(
        index=index.to(torch.uint8),
        outlier=outlier,
        words=torch.where(outlier, x, 0),
        scale=scale,
        codebook=codebook,
        nan=nan,
    )


def _top(int_bits: int) -> int:
    if int_bits not in INT_BITS:
        raise ConfigError(f"int_bits must be 4 or 8, not {int_bits}")
    return (1 << int_bits) - 1


def unsigned_scale(largest: Tensor, int_bits: int) -> Tensor:
    """``rne16(largest / (2**b - 1))`` of finite FP16 words, any shape; signs are ignored.

    ConfigError: int_bits. The quotient has 22 more bits than the grid and a jammed last one, so it
    is rounded once.
    """
    top = _top(int_bits)
    wide = fixed_point(largest & _MAGNITUDE) << 22
    quotient = wide // top | (wide % top != 0).long()
    return from_fixed(quotient, FP16.grid_exponent - 22, FP16)


def unsigned_quotient(x: Tensor, s: Tensor, int_bits: int) -> Tensor:
    """``min(2**b - 1, rne(x / s))``, 0 where s is 0: int64; ties to even, one rounding.

    x, s: finite FP16 words that broadcast; signs are ignored. ConfigError: int_bits.
    """
    top = _top(int_bits)
    value, step = fixed_point(x & _MAGNITUDE), fixed_point(s & _MAGNITUDE)
    safe = step.clamp(min=1)
    floor, remainder = value // safe, value % safe
    up = (2 * remainder > safe) | ((2 * remainder == safe) & (floor & 1 == 1))
    return torch.where(step == 0, 0, (floor + up.long()).clamp(max=top))


def quantize_unsigned(x: Tensor, int_bits: int = 8) -> tuple[Tensor, Tensor]:
    """``a = min(2**b - 1, rne(x / s))``, ``s = rne16(max / (2**b - 1))``: ((T, K), (T,) words).

    x: (T, K) FP16 words, finite and not negative: scores times V's scale, one row per query and
    head. s = 0 gives a = 0. The quotient is of the words, rounded once, ties to even.
    ConfigError: int_bits; ValueError: a word that is negative, infinite or NaN.
    """
    _top(int_bits)
    if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < FP16.infinity:
        raise ValueError("scores must be finite and not negative")
    scale = unsigned_scale(x.amax(dim=1), int_bits)
    return unsigned_quotient(x, scale[:, None], int_bits), scale


def linear(
    tokens: QuantizedTokens, weight: QuantizedWeight, product: str = "rounded"
) -> MatmulResult:
    """``Y = A @ B`` of quantized operands, bit-true: golden.kllm.matmul.matmul."""
    return matmul(tokens, weight, Codebooks(tokens.codebook, weight.codebook, product))
