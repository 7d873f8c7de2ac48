"""Norm statistics against exact fractions; folded norms against float64."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.kllm.format import Status
from golden.kllm.matmul import matmul
from golden.kllm.norms import fold, norm_statistics, normalise
from golden.kllm.quantize import quantize_tokens, quantize_weight, train_activation_codebook
from golden.kllm.records import Codebooks, Tokens

EPSILON = int(bits_from_float(torch.tensor(1e-5, dtype=torch.float64), FP32))


def real(word, number_format=FP16) -> Fraction:
    return Fraction(float(float_from_bits(torch.tensor(int(word)), number_format)))


def rne32(value: Fraction) -> Fraction:
    """Nearest FP32 value, ties to even, of a number in the normal or subnormal range."""
    if value == 0:
        return Fraction(0)
    exponent = math.floor(math.log2(abs(value)))
    # log2 of a fraction is a float: correct it by at most one.
    while Fraction(2) ** exponent > abs(value):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    ulp = Fraction(2) ** (max(exponent, -126) - 23)
    return round(value / ulp) * ulp  # Fraction rounds ties to even


def rsqrt32(value: Fraction) -> Fraction:
    """Nearest FP32 value of 1 / sqrt(value), found by trying the neighbours of an estimate."""
    estimate = rne32(Fraction(1 / math.sqrt(value)))
    ulp = Fraction(2) ** (math.floor(math.log2(estimate)) - 24)  # half a step, or a step below 2**n
    candidates = {rne32(estimate + step * ulp) for step in range(-4, 5)}

    def below(bound: Fraction) -> bool:
        return bound * bound * value < 1

    ordered = sorted(candidates)
    for low, high in pairwise(ordered):
        if not below(high):
            return high if below((low + high) / 2) else low
    raise AssertionError("the estimate is too far off")


def by_fractions(index, outlier, x, s, codebook, epsilon, layer_norm):
    """(mean, rms_reciprocal) of one token by the definition."""
    c = [real(word) for word in codebook]
    inliers = [c[j] for j, out in zip(index, outlier, strict=True) if not out]
    taken = [real(word) for word, out in zip(x, outlier, strict=True) if out]
    length, scale = len(index), real(s)
    q, x2 = rne32(sum((v * v for v in inliers), Fraction(0))), rne32(sum(v * v for v in taken))
    a, x1 = rne32(sum(inliers, Fraction(0))), rne32(sum(taken, Fraction(0)))
    mean_sq = rne32(rne32(scale**2 * q + x2) / length)
    mean, v = Fraction(0), mean_sq
    if layer_norm:
        mean = rne32(rne32(scale * a + x1) / length)
        v = max(Fraction(0), rne32(mean_sq - mean * mean))
    return mean, rsqrt32(rne32(v + real(epsilon, FP32)))


def random_codebook(generator, bits):
    value = torch.rand(2**bits, generator=generator, dtype=torch.float64) * 2 - 1
    return bits_from_float(value.sort().values)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_statistics_follow_the_definition(bits, layer_norm, seed):
    generator = torch.Generator().manual_seed(seed)
    for length in (1, 2, 17, 300):
        tokens = 12
        index = torch.randint(0, 2**bits, (tokens, length), generator=generator)
        outlier = torch.rand(tokens, length, generator=generator) < 0.2
        outlier[0], outlier[1] = False, True
        x = torch.randint(0, 0x7C00, (tokens, length), generator=generator)
        x |= torch.randint(0, 2, x.shape, generator=generator) << 15
        x[2:6] = torch.randint(0x3C00, 0x4400, (4, length), generator=generator)  # 1..4: a mean
        s = torch.randint(0, 0x7C00, (tokens,), generator=generator)
        s[2:8] = torch.randint(0x3800, 0x4000, (6,), generator=generator)
        s[8] = 0
        codebook = random_codebook(generator, bits)
        token = Tokens(index, outlier, x, s)
        mean, rms_reciprocal, status = norm_statistics(token, codebook, EPSILON, layer_norm)
        assert (status == 0).all()
        for t in range(tokens):
            row = (index[t].tolist(), outlier[t].tolist(), x[t].tolist(), s[t], codebook.tolist())
            want = by_fractions(*row, EPSILON, layer_norm)
            got = real(mean[t], FP32), real(rms_reciprocal[t], FP32)
            assert got == want, (length, t)


@pytest.mark.parametrize("word", [0x7BFF, 0xFBFF, 0x0001, 0x03FF])
def test_longest_sums_of_extreme_outliers(word):
    """K_MAX equal outliers: mean and mean square are those of one, but for the roundings."""
    length = 16383
    x = torch.full((1, length), word)
    everywhere = torch.ones(1, length, dtype=torch.bool)
    zeros = torch.zeros(1, length, dtype=torch.int64)
    codebook = torch.tensor([0xBC00, 0, 0, 0x3C00])
    tiny = 1  # the smallest FP32 epsilon
    token = Tokens(zeros, everywhere, x, torch.tensor([0x3C00]))
    mean, rms_reciprocal, status = norm_statistics(token, codebook, tiny)
    value = abs(float(real(word)))
    assert status.tolist() == [0]
    assert mean.tolist() == [0]
    got = float(real(rms_reciprocal[0], FP32))
    assert got == pytest.approx(1 / value, rel=2**-22)
    mean, _, _ = norm_statistics(token, codebook, tiny, layer_norm=True)
    assert float(real(mean[0], FP32)) == pytest.approx(float(real(word)), rel=2**-22)


def test_status():
    codebook = torch.tensor([0xBC00, 0, 0, 0x3C00])
    index = torch.zeros(5, 4, dtype=torch.int64)
    outlier = torch.zeros(5, 4, dtype=torch.bool)
    outlier[1, 2] = outlier[2, 3] = True
    x = torch.full((5, 4), 0x7E00)  # read at outliers only
    x[2, 3] = 0xFC00
    s = torch.tensor([0x3C00, 0x3C00, 0x3C00, 0x7C00, 0])
    mean, rms_reciprocal, status = norm_statistics(Tokens(index, outlier, x, s), codebook, 0)
    bad, over = int(Status.NONFINITE), int(Status.OVERFLOW)
    assert status.tolist() == [0, bad, bad, bad, over]
    nan = FP32.canonical_nan
    assert rms_reciprocal.tolist() == [0x3F800000, nan, nan, nan, FP32.infinity]
    assert mean.tolist() == [0, nan, nan, nan, 0]
    for length, fault in ((0, Status.LENGTH_ZERO), (9, Status.LENGTH_TOO_LONG)):
        zeros = torch.zeros((1, length), dtype=torch.int64)
        token = Tokens(zeros, zeros.bool(), zeros, s[:1])
        _, _, status = norm_statistics(token, codebook, EPSILON, k_max=8)
        assert status.tolist() == [int(fault)]
    with pytest.raises(ConfigError, match="k_max must be"):
        norm_statistics(Tokens(index, outlier, x, s), codebook, 0, k_max=0)
    with pytest.raises(ValueError, match="index must hold"):
        norm_statistics(Tokens(index + 4, outlier & False, x, s), codebook, 0)


def test_variance_is_never_negative():
    """Constant tokens: the rounded difference may be below 0, the square root never sees it."""
    generator = torch.Generator().manual_seed(5)
    codebook = random_codebook(generator, 4)
    index = torch.randint(0, 16, (400, 1), generator=generator).expand(400, 37)
    outlier = torch.zeros(400, 37, dtype=torch.bool)
    s = torch.randint(0, FP16.infinity, (400,), generator=generator)
    token = Tokens(index, outlier, torch.zeros_like(index), s)
    _, rms_reciprocal, status = norm_statistics(token, codebook, EPSILON, layer_norm=True)
    assert (status == 0).all()
    assert (rms_reciprocal < FP32.infinity).all()
    # where the difference was clamped, what is left is epsilon
    largest = float_from_bits(rms_reciprocal, FP32).max()
    assert float(largest) == pytest.approx(1e-5**-0.5, rel=1e-6)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_folded_norm_is_the_norm(kind, seed):
    """Un-normalised product with the folded weight, then the statistics, against float64.

    Against the norm of the dequantized token through the dequantized weight only roundings
    differ. They are below 1e-3 of the output's RMS (LayerNorm, whose mean is subtracted, 2e-3).
    Against the layer in floating point the 4-bit quantization remains: below 0.2.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens, length, outputs = 16, 512, 48

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    gamma, beta, bias = 1 + 0.2 * normal(length), 0.1 * normal(length), normal(outputs)
    weight = normal(length, outputs) / length**0.5
    x = 3 * normal(tokens, length) + (0.5 if kind == "layer" else 0)
    folded = fold(weight, gamma, beta if kind == "layer" else None, bias)

    def float_layer(value, layer_weight, offset):
        """The norm (without gamma) and the folded layer, in float64."""
        mean = value.mean(1, keepdim=True) if kind == "layer" else 0
        centred = value - mean
        scale = (centred.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        return centred * scale @ layer_weight + offset

    # the folding itself is exact
    plain = x - x.mean(1, keepdim=True) if kind == "layer" else x
    plain = plain * (plain.square().mean(1, keepdim=True) + 1e-5).rsqrt() * gamma
    plain = (plain + beta if kind == "layer" else plain) @ weight + bias
    exact = float_layer(x, folded.weight, folded.offset)
    assert float((plain - exact).abs().max()) < 1e-12

    quantized_weight = quantize_weight(folded.weight.T.contiguous())
    codebook = train_activation_codebook(bits_from_float(x), 4)
    token = quantize_tokens(bits_from_float(x), codebook)
    books = Codebooks(codebook, quantized_weight.codebook)
    result = matmul(token, quantized_weight, books)
    mean, rms_reciprocal, status = norm_statistics(token, codebook, EPSILON, kind == "layer")
    assert (status == 0).all()
    dequantized_weight = quantized_weight.dequantize()
    y = normalise(
        float_from_bits(result.y, FP16),
        float_from_bits(mean, FP32),
        float_from_bits(rms_reciprocal, FP32),
        dequantized_weight.sum(0),
        folded.offset,
    )
    same = float_layer(token.dequantize().double(), dequantized_weight.double(), folded.offset)
    size = float((plain - bias).square().mean().sqrt())
    error = float((y - same).square().mean().sqrt()) / size
    assert error < (2e-3 if kind == "layer" else 1e-3), error
    total = float((y - plain).square().mean().sqrt()) / size
    assert total < 0.2, total
    print(f"{kind}: roundings {error:.1e}, with quantization {total:.3f}")
