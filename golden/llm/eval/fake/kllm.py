"""KLLM's quantizers and attention as fake quantization: float32 in, float32 out, fast.

Inputs are rounded to FP16, as the hardware gets them. From there on every decision equals that of
the bit-true functions, bit for bit. These decisions are the outliers
(golden.kllm.orizuru.pop_order), the scale, and the index of every inlier
(golden.index.nearest.cluster). What comes back is s * c in float32, exact. The roundings that
follow in hardware (products of the codebooks, sums, results) are left to float32. Tensors of any
device. Source: KLLM, section III.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.index.format import K_MAX
from golden.index.nearest import midpoints
from golden.kllm.flow import SCORES, attention_steps, follow
from golden.llm.patch import Scores

_CELLS = 8192  # of one unit of x / s in the table of indices
_UNSURE = 255  # the cell is so near to a threshold that the scale decides
# Below this scale a threshold, rounded to the grid of subnormals, moves by half a cell or more.
_SCALE_MIN = _CELLS * 2.0**FP16.grid_exponent
_BLOCK = 1 << 17  # elements at a time on a CPU: what stays in its cache
_POSITION_BITS = K_MAX.bit_length()
_PLAIN = Scores(1.0)


def half_words(x: Tensor) -> Tensor:
    """FP16 words, int64, of float32 values without a NaN: bits_from_float, but faster."""
    return x.half().view(torch.int16).long() & 0xFFFF


@dataclasses.dataclass(frozen=True)
class FakeCodebook:
    """centroids (2**n,) and midpoints (2**n - 1,) float32; cells: index by place of x / s."""

    centroids: Tensor
    midpoints: Tensor
    cells: Tensor

    @classmethod
    def of(cls, words: Tensor) -> "FakeCodebook":
        """Makes a codebook from ascending FP16 words in -1..1; ConfigError otherwise."""
        middle = float_from_bits(midpoints(words.long()))
        edges = torch.arange(2 * _CELLS + 1, device=words.device) - float(_CELLS)
        cells = torch.bucketize((edges + 0.5) / _CELLS, middle).to(torch.uint8)
        # rne16(s * m) / s is within m * 2**-11 of m; two cells more for everything else.
        reach = middle.abs() * 2.0**-11 * _CELLS + 2
        for m, e in zip((middle * _CELLS).tolist(), reach.tolist(), strict=True):
            low, high = int(m - e + _CELLS), int(m + e + _CELLS) + 1
            cells[max(low, 0) : high + 1] = _UNSURE
        return cls(float_from_bits(words.long()).float(), middle.float(), cells)

    @property
    def bits(self) -> int:
        return len(self.centroids).bit_length() - 1


def outlier_positions(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(positions (T, 2k) of the k largest and k smallest words, s_A (T, 1) float32).

    x: (T, K) float16; the order among equal words is that of pop_order. ValueError: 2k >= K.
    """
    length = x.shape[1]
    if 2 * k >= length:
        raise ValueError(f"k_max + k_min must be below the length {length}, not {2 * k}")
    if k == 0:
        none = torch.empty(len(x), 0, dtype=torch.int64, device=x.device)
        return none, x.abs().amax(1, keepdim=True).float()
    key = x.contiguous().view(torch.int16).int()
    key ^= (key >> 31) & (FP16.sign_bit - 1)  # ascending with the value, -0 below +0
    key <<= _POSITION_BITS
    key += K_MAX - torch.arange(length, device=x.device, dtype=torch.int32)
    largest = key.topk(k + 1, 1).indices
    smallest = key.bitwise_not_().topk(k + 1, 1).indices  # faster than the smallest of key
    ends = torch.cat((largest[:, k:], smallest[:, k:]), 1)
    scale = x.gather(1, ends).abs().amax(1, keepdim=True).float()
    return torch.cat((largest[:, :k], smallest[:, :k]), 1), scale


def fake_index(x: Tensor, scale: Tensor, codebook: FakeCodebook) -> Tensor:
    """``number of i with x > rne16(s * midpoint_i)``: (T, K) uint8.

    x: (T, K) float32 of FP16 values, scale: (T, 1) float32 of FP16 values. A table over x / s
    knows all but the elements near a threshold; those are compared.
    """
    bounds = (scale * codebook.midpoints).half().float()
    factor = torch.where(scale > 0, _CELLS / scale, 0)
    cell = (x * factor).add_(_CELLS).int().clamp_(0, 2 * _CELLS)
    index = codebook.cells.index_select(0, cell.flatten())
    unsure = (index == _UNSURE).nonzero().flatten()
    row = unsure // x.shape[1]
    found = x.flatten().index_select(0, unsure)[:, None] > bounds.index_select(0, row)
    index[unsure] = found.sum(1, dtype=torch.uint8)
    index = index.reshape(x.shape)
    small = (scale[:, 0] < _SCALE_MIN).nonzero().flatten()
    if len(small):
        index[small] = torch.searchsorted(bounds[small], x[small].contiguous()).to(torch.uint8)
    return index


@dataclasses.dataclass(frozen=True)
class FakeTokens:
    """value: what the input has become, float32 of its shape; scale: (..., 1); outliers: how many.

    outliers is an int where known beforehand, else a tensor of one element. index: uint8, of an
    outlier the number of centroids.
    """

    value: Tensor
    scale: Tensor
    outliers: int | Tensor
    index: Tensor


def fake_tokens(
    x: Tensor, codebook: FakeCodebook, k: int = 0, thresholds: tuple[float, float] | None = None
) -> FakeTokens:
    """``s_A * C_A[ia]`` of the inliers, FP16 of the outliers, of tokens (..., K).

    k: outliers on each side of every token. thresholds: (upper, lower), FP16 values; outliers are
    then what lies beyond them, and the larger magnitude is the scale (kllm-s).
    """
    length = x.shape[-1]
    flat = x.reshape(-1, length)
    step = len(flat) if x.is_cuda else max(1, _BLOCK // length)
    value = torch.empty(flat.shape, dtype=torch.float32, device=x.device)
    scale = torch.empty(len(flat), 1, dtype=torch.float32, device=x.device)
    index = torch.empty(flat.shape, dtype=torch.uint8, device=x.device)
    outliers: int | Tensor = 0
    for rows in (slice(i, i + step) for i in range(0, len(flat), step)):
        made = _tokens(flat[rows], codebook, k, thresholds)
        value[rows], scale[rows], index[rows] = made.value, made.scale, made.index
        outliers = outliers + made.outliers
    shape = *x.shape[:-1], 1
    return FakeTokens(
        value.reshape(x.shape), scale.reshape(shape), outliers, index.reshape(x.shape)
    )


def _tokens(
    x: Tensor, codebook: FakeCodebook, k: int, thresholds: tuple[float, float] | None
) -> FakeTokens:
    """``fake_tokens`` of (T, K)."""
    half = x.half()
    real = half.float()
    if thresholds is None:
        positions, scale = outlier_positions(half, k)
        index = fake_index(real, scale, codebook)
        value = (scale * codebook.centroids).gather(1, index.long())
        value.scatter_(1, positions, real.gather(1, positions))
        index.scatter_(1, positions, len(codebook.centroids))
        return FakeTokens(value, scale, positions.numel(), index)
    upper, lower = thresholds
    outlier = (real > upper) | (real < lower)
    scale = torch.full_like(real[:, :1], max(abs(upper), abs(lower)))
    index = fake_index(real, scale, codebook)
    value = torch.where(outlier, real, (scale * codebook.centroids).gather(1, index.long()))
    index = torch.where(outlier, len(codebook.centroids), index).to(torch.uint8)
    return FakeTokens(value, scale, outlier.sum(), index)


def fake_integers(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """(a, s): golden.kllm.quantize.quantize_unsigned along the last axis, but for ties; a is x.

    x: float32, not negative; s: (..., 1).
    """
    top = float((1 << bits) - 1)
    s = (x.amax(-1, keepdim=True).half().float() / top).half().float()
    a = x.div_(torch.where(s > 0, s, torch.inf)).round_().clamp_(max=top)
    return a, s


def fake_attention(
    q: Tensor,
    k: Tensor,
    v: tuple[Tensor, Tensor],
    integer_bits: int,
    query: FakeCodebook | None = None,
    rows: int = 256,
    rule: Scores = _PLAIN,
) -> Tensor:
    """Attention with integer probabilities: (B, heads, T, head_dim).

    q: (B, heads, T, head_dim), scaled
    k: (B, kv_heads, T, head_dim), dequantized
    v: the same of V, and its token scales (B, kv_heads, T, 1)
    query: of quantized q
    rows: queries at a time
    rule: a cap of scores, which is rounded to FP16, what a query sees, and sinks

    The steps are golden.kllm.flow.ATTENTION. The token scales multiply the probabilities before
    these become integers of ``integer_bits``, with one scale per query and head (decision 0015).
    16 bits or more leave them as they are. Scores are rounded to FP16. A score beyond FP16 makes
    its query's result NaN.
    """
    batch, heads, tokens, size = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, tokens, size)
    y = torch.empty_like(grouped)
    value, scale_v = v
    unit = value / torch.where(scale_v > 0, scale_v, 1)
    weight = scale_v[:, :, None].transpose(-1, -2)  # (B, kv_heads, 1, 1, T)
    hidden = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
    direct, index = SCORES
    steps = attention_steps(direct if query is None else index)
    for first in range(0, tokens, rows):
        last = min(first + rows, tokens)
        n = last - first

        def times(x: Tensor, matrix: Tensor) -> Tensor:
            """Multiplies all query heads and rows; a ``matrix`` (B, kv_heads, ., .) per group."""
            shape = x.shape[:-1]
            return (x.flatten(2, 3) @ matrix).reshape(*shape, matrix.shape[-1])

        def scores(x: Tensor, last: int = last) -> Tensor:
            made = times(x, k[:, :, :last].transpose(-1, -2)).half().float()
            return rule.capped(made).half().float() if rule.cap else made

        def mask(x: Tensor, first: int = first, n: int = n) -> Tensor:
            if rule.mask is not None:
                return x.masked_fill_(~rule.seen(first, first + n, x.device), -torch.inf)
            x[..., first:].masked_fill_(hidden[:n, :n], -torch.inf)
            return x

        def softmax(x: Tensor) -> Tensor:
            return rule.softmax(x.flatten(1, 2)).reshape(x.shape)

        def times_scales(p: Tensor, last: int = last) -> Tensor:
            return p.mul_(weight[..., :last])

        def integers(p: Tensor) -> tuple[Tensor, Tensor | float]:
            return fake_integers(p, integer_bits) if integer_bits < 16 else (p, 1.0)

        def values(a: tuple[Tensor, Tensor | float], last: int = last) -> Tensor:
            p, s = a
            return times(p, unit[:, :, :last]) * s

        commands: dict[str, Callable[[Any], Any]] = {
            "query": lambda x: x if query is None else fake_tokens(x, query).value,
            "scores": scores,
            "mask": mask,
            "softmax": softmax,
            "weight": times_scales,
            "integers": integers,
            "values": values,
        }
        y[:, :, :, first:last] = follow(
            itertools.chain(*steps.values()), commands, grouped[:, :, :, first:last]
        )
    return y.reshape(batch, heads, tokens, size)
