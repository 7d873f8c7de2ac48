"""Outlier order, clustering rule, quantized weights and tokens."""

import random
from fractions import Fraction

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.nearest import cluster, midpoints, mismatch, nearest, thresholds
from golden.kllm.config import outlier_count
from golden.kllm.format import Status
from golden.kllm.orizuru import pop_order
from golden.kllm.quantize import (
    Training,
    linear,
    quantize_tokens,
    quantize_unsigned,
    quantize_weight,
    split_outliers,
    train_activation_codebook,
    train_weight_codebook,
)

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _key(word: int) -> int:
    """Sign-magnitude integer: -0 below +0."""
    magnitude = word & 0x7FFF
    return -magnitude - 1 if word >> 15 else magnitude


def _real(word: int) -> Fraction:
    return Fraction(float(float_from_bits(torch.tensor(word))))


def _tournament(keys: list[tuple[int, int]], count: int) -> list[int]:
    """Positions popped one at a time: the largest (key, -position) each time."""
    left, popped = dict(enumerate(keys)), []
    for _ in range(count):
        best = max(left, key=lambda i: left[i])
        popped.append(best)
        del left[best]
    return popped


def _words(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return bits_from_float(torch.randn(shape, generator=g, dtype=torch.float64) * scale)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "pool", [None, (0x0000, 0x8000), (0x3C00,), (0xBC00, 0x3C00, 0x7C00, 0xFC00)]
)
def test_pop_order_is_one_strict_total_order(pool: tuple | None, device: str) -> None:
    rng = random.Random(str(pool))
    for _ in range(30):
        length = rng.randint(3, 40)
        k_max = rng.randint(0, length - 1)
        k_min = rng.randint(0, length - 1 - k_max)
        x = [rng.choice(pool) if pool else rng.randrange(0x7C01) | rng.getrandbits(1) << 15
             for _ in range(length)]  # fmt: skip
        largest, smallest, nan = pop_order(torch.tensor([x], device=device), k_max, k_min)
        assert largest[0].tolist() == _tournament([(_key(w), -i) for i, w in enumerate(x)], k_max)
        assert smallest[0].tolist() == _tournament([(-_key(w), i) for i, w in enumerate(x)], k_min)
        assert not set(largest[0].tolist()) & set(smallest[0].tolist())
        assert not bool(nan)


def test_rejects_more_outliers_than_elements() -> None:
    with pytest.raises(ValueError, match=r"^k_max \+ k_min must be below the length 4, not 4$"):
        pop_order(_words(1, 4), 2, 2)


@pytest.mark.parametrize(("length", "k"), [(3, 1), (200, 1), (576, 3), (1536, 8), (4096, 20)])
def test_outlier_count(length: int, k: int) -> None:
    assert outlier_count(length) == k


@pytest.mark.parametrize("word", [0x0000, 0x8000, 0x3C00, 0x7BFF])
def test_constant_token(word: int) -> None:
    """Outliers at the lowest and highest positions; the scale is what remains."""
    codebook = bits_from_float(torch.linspace(-1, 1, 4))
    tokens = quantize_tokens(torch.full((1, 9), word), codebook)
    assert tokens.outlier[0].nonzero().flatten().tolist() == [0, 8]
    assert int(tokens.scale) == word & 0x7FFF
    assert tokens.index[0, 1:8].unique().tolist() == [0 if word & 0x7FFF == 0 else 3]
    assert torch.equal(tokens.dequantize(), float_from_bits(torch.full((1, 9), word)))


@pytest.mark.parametrize("device", DEVICES)
def test_scale_is_the_largest_inlier(device: str) -> None:
    x = _words(5, 600, seed=2).to(device)
    outlier, scale, _ = split_outliers(x)
    assert outlier.sum(1).tolist() == [6] * 5
    values = float_from_bits(x)
    for t in range(5):
        inner = values[t].sort().values[3:-3]
        assert float(float_from_bits(scale[t])) == float(inner.abs().max())


def test_nan_token_is_flagged_and_silent() -> None:
    x = _words(3, 40)
    x[1, 7] = 0x7E01
    tokens = quantize_tokens(x, train_activation_codebook(x[[0, 2]], 3))
    assert tokens.nan.tolist() == [False, True, False]
    result = linear(tokens, quantize_weight(torch.randn(4, 40)))
    assert result.status.tolist() == [0, int(Status.NONFINITE), 0]


@pytest.mark.parametrize("device", DEVICES)
def test_clustering_follows_the_formula(device: str) -> None:
    """Every midpoint and threshold against rationals, every index against the count."""
    codebook = torch.tensor([0xBC00, 0xB1E1, 0x8003, 0x0001, 0x0004, 0x2E66, 0x3555, 0x3BFF])
    scale = torch.tensor([0x3C00, 0x0001, 0x7BFF, 0x3555, 0x0000, 0x4123])
    middle = midpoints(codebook)
    bounds = thresholds(scale, codebook)
    c = [_real(int(w)) for w in codebook]

    def rounds_to(word: int, exact: Fraction) -> bool:
        """No other binary16 value is nearer, and a tie goes to the even word."""
        gap = abs(_real(word) - exact)
        below = [abs(_real(word + step) - exact) for step in (-1, 1) if (word & 0x7FFF) + step >= 0]
        return all(gap < other or (gap == other and word % 2 == 0) for other in below)

    for i, word in enumerate(middle.tolist()):
        assert rounds_to(word, (c[i] + c[i + 1]) / 2)
        for t, s in enumerate(scale.tolist()):
            assert rounds_to(int(bounds[t, i]), _real(s) * _real(word))
    x = _words(6, 300, seed=4)
    x[:, 0], x[:, 1], x[:, 2:9] = 0x0000, 0x8000, bounds  # on a threshold: not above it
    index = cluster(x.to(device), scale.to(device), codebook.to(device)).cpu()
    real_bounds = float_from_bits(bounds)
    for t in range(6):
        expected = (float_from_bits(x[t])[:, None] > real_bounds[t]).sum(1)
        assert torch.equal(index[t], expected)
    assert index[4, :2].tolist() == [0, 0]


def test_clustering_is_almost_always_nearest() -> None:
    x = _words(64, 576, seed=3)
    codebook = train_activation_codebook(x, 4)
    outlier, scale, _ = split_outliers(x)
    values, c, s = float_from_bits(x), float_from_bits(codebook), float_from_bits(scale)
    distance = (values[:, :, None] - s[:, None, None] * c).abs()
    chosen = nearest(x, scale, codebook)
    assert torch.equal(distance.gather(2, chosen[:, :, None])[:, :, 0], distance.min(2).values)
    assert mismatch(x, scale, codebook, ~outlier) <= 0.01


def test_rejects_codebook_out_of_order() -> None:
    with pytest.raises(ConfigError, match=r"^codebook must be ascending$"):
        midpoints(torch.tensor([0x3C00, 0x0000, 0x3000, 0x3400]))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_weights_take_the_nearest_centroid(bits: int) -> None:
    weight = torch.randn(20, 70, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight[3] = 0
    quantized = quantize_weight(weight, bits)
    assert quantized.index.shape == (70, 20)
    assert quantized.codebook.shape == (1 << bits,)
    assert int((quantized.codebook & 0x7FFF).max()) <= 0x3C00
    s, c = float_from_bits(quantized.scale), float_from_bits(quantized.codebook)
    rows = s != 0
    assert int(rows.sum()) == 19
    unit = weight[rows] / s[rows, None]
    best = (unit[:, :, None] - c).abs().min(2).values
    assert torch.equal((unit - c[quantized.index.t()[rows].long()]).abs(), best)
    error = (quantized.dequantize().t() - weight).norm() / weight.norm()
    assert error <= {2: 0.4, 3: 0.22, 4: 0.12}[bits]
    assert bool((quantized.dequantize()[:, 3] == 0).all())


def test_fisher_weights_pull_centroids() -> None:
    x = _words(16, 200, seed=9)
    values = float_from_bits(x)
    important = torch.where(values > 0.5, 100.0, 0.01)
    plain, pulled = train_activation_codebook(x, 3), train_activation_codebook(x, 3, important)
    above = [int((float_from_bits(c) > 0.2).sum()) for c in (plain, pulled)]
    assert above[1] > above[0]


def test_antisymmetric_codebooks() -> None:
    """``c[i] = -c[last - i]``, and the error is near that of a free codebook on symmetric weights.

    Shown to fail: the k-means of signed samples for the upper half.
    """
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(3))
    unit = weight.double() / weight.abs().amax(1, keepdim=True)

    def error(codebook: torch.Tensor) -> float:
        c = float_from_bits(codebook)
        return float((unit[..., None] - c).abs().amin(-1).square().mean())

    half = Training(antisymmetric=True)
    for bits in (2, 3, 4):
        book = train_weight_codebook(weight, bits, training=half)
        c = float_from_bits(book)
        assert torch.equal(c, -c.flip(0))
        assert bool((c[1:] > c[:-1]).all())
        assert error(book) < 1.1 * error(train_weight_codebook(weight, bits))
        tokens = bits_from_float(weight)
        c = float_from_bits(train_activation_codebook(tokens, bits, training=half))
        assert torch.equal(c, -c.flip(0))


def test_weight_beyond_fp16_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"^weight must be within the FP16 range, 65504$"):
        quantize_weight(torch.full((2, 8), 7e4))
    with pytest.raises(ValueError, match=r"^weight must be finite$"):
        quantize_weight(torch.full((2, 8), float("nan")))


def test_linear_is_near_the_real_product() -> None:
    x = _words(8, 300, seed=5)
    weight = torch.randn(24, 300, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    tokens = quantize_tokens(x, train_activation_codebook(x))
    quantized = quantize_weight(weight)
    y = float_from_bits(linear(tokens, quantized).y)
    same_operands = tokens.dequantize() @ quantized.dequantize()
    assert (y - same_operands).norm() <= 2e-3 * same_operands.norm()
    exact = float_from_bits(x) @ weight.t()
    assert (y - exact).norm() <= 0.2 * exact.norm()


@pytest.mark.parametrize("int_bits", [4, 8])
def test_unsigned_quantization_rounds_the_quotient_once(int_bits: int) -> None:
    rng = random.Random(int_bits)
    x = [[rng.randrange(0x7C00) for _ in range(20)] for _ in range(20)]
    x += [[0] * 20, [1] * 20, [0x7BFF] * 20, [0x0005, *[0] * 19]]
    top = 2**int_bits - 1
    ties = [float(top), *(i + 0.5 for i in range(14)), *range(5)]  # s = 1
    x.append(bits_from_float(torch.tensor(ties)).tolist())
    a, scale = quantize_unsigned(torch.tensor(x), int_bits)
    for row, codes, word in zip(x, a.tolist(), scale.tolist(), strict=True):
        exact = _real(max(row)) / top
        gaps = [abs(_real(word + d) - exact) for d in (-1, 0, 1) if word + d >= 0]
        assert min(gaps) == abs(_real(word) - exact)
        for w, code in zip(row, codes, strict=True):
            s = _real(word)
            assert code == (min(top, round(_real(w) / s)) if s else 0)
