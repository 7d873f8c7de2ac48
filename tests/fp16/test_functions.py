"""golden.fp16.functions against SoftFloat, exact fractions and exp in 40 decimal digits.

Error bounds: divide, reciprocal, sqrt and rsqrt 0.5 ulp (correctly rounded); exp 0.51 ulp.
"""

import collections
import decimal
import functools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import softfloatpy as softfloat
import torch

from golden.fp16 import functions, ops
from golden.fp16.format import FP16, FP32, FloatFormat, exp_tables
from golden.fp16.vectors import columns as vectors

ALL_FP16 = np.arange(1 << 16)
FP8 = FloatFormat(exp_bits=4, frac_bits=3)
BF16 = FloatFormat(exp_bits=8, frac_bits=7)
_TYPES = {FP16: softfloat.Float16, FP32: softfloat.Float32}


def tensor(words) -> torch.Tensor:
    return torch.from_numpy(np.asarray(words).astype(np.int64))


def by_softfloat(operation, format, *columns) -> np.ndarray:
    """Words of a SoftFloat operation row by row, any NaN made canonical."""
    size, make = format.bits // 8, _TYPES[format].from_bytes
    words = []
    for row in zip(*(np.asarray(column).tolist() for column in columns), strict=True):
        number = operation(*(make(word.to_bytes(size, "big")) for word in row))
        words.append(int.from_bytes(number.to_bytes(), "big"))
    result = np.array(words, dtype=np.int64)
    nan = (result & (format.sign_bit - 1)) > format.infinity
    return np.where(nan, format.canonical_nan, result)


def mismatches(got, want) -> list:
    got, want = np.asarray(got).astype(np.int64), np.asarray(want)
    assert got.shape == want.shape
    assert got.size > 0
    return np.flatnonzero(got != want).tolist()[:5]


@functools.cache
def fraction(word: int, format: FloatFormat) -> Fraction:
    """Value of a finite word; the word of infinity has the value 2**(bias + 1)."""
    magnitude = word & (format.sign_bit - 1)
    biased, rest = magnitude >> format.frac_bits, magnitude & ((1 << format.frac_bits) - 1)
    significand = rest | ((biased > 0) << format.frac_bits)
    value = significand * Fraction(2) ** (max(biased, 1) - 1 + format.grid_exponent)
    return -value if word & format.sign_bit else value


def is_finite(word: int, format: FloatFormat) -> bool:
    return word & (format.sign_bit - 1) < format.infinity


def rounds_to(word: int, format: FloatFormat, compare) -> bool:
    """Is the non-negative ``word`` RNE(v)? ``compare(x)`` is the sign of v - x, for x >= 0.

    v lies between the middles to the neighbours, and on one of them only if the word is even.
    """
    value = fraction(word, format)
    if word:
        below = compare((value + fraction(word - 1, format)) / 2)
        if below < 0 or (below == 0 and word & 1):
            return False
    if word == format.infinity:
        return True
    above = compare((value + fraction(word + 1, format)) / 2)
    return above < 0 or (above == 0 and not word & 1)


def sign_of(value) -> int:
    return (value > 0) - (value < 0)


def quotient_is_right(a: int, b: int, y: int, fa, fb, fo) -> bool:
    a_size, b_size = a & (fa.sign_bit - 1), b & (fb.sign_bit - 1)
    a_inf, b_inf = a_size == fa.infinity, b_size == fb.infinity
    nan = a_size > fa.infinity or b_size > fb.infinity
    if nan or (a_inf and b_inf) or (a_size == 0 and b_size == 0):
        return y == fo.canonical_nan
    sign = (a >> (fa.bits - 1)) ^ (b >> (fb.bits - 1))
    if y >> (fo.bits - 1) != sign:
        return False
    size = y & (fo.sign_bit - 1)
    if a_inf or b_size == 0:
        return size == fo.infinity
    if b_inf or a_size == 0:
        return size == 0
    quotient = fraction(a_size, fa) / fraction(b_size, fb)
    return rounds_to(size, fo, lambda x: sign_of(quotient - x))


def root_is_right(a: int, y: int, fa, fo, inverse: bool) -> bool:
    """sqrt(a), or 1 / sqrt(a): v > x just where a > x * x, or 1 > a * x * x."""
    size, negative = a & (fa.sign_bit - 1), a >> (fa.bits - 1)
    if size > fa.infinity or (negative and size):
        return y == fo.canonical_nan
    if size == 0:
        return y == (fo.infinity if inverse else 0) | negative << (fo.bits - 1)
    if size == fa.infinity:
        return y == (0 if inverse else fo.infinity)
    value = fraction(size, fa)
    if inverse:
        return rounds_to(y, fo, lambda x: sign_of(1 - value * x * x))
    return rounds_to(y, fo, lambda x: sign_of(value - x * x))


@pytest.mark.parametrize("format", [FP16, FP32], ids=["fp16", "fp32"])
def test_divide_equals_softfloat(format, seed):
    v = vectors.divide_vectors(seed, format, format, format)
    op = softfloat.f16_div if format is FP16 else softfloat.f32_div
    assert mismatches(v["y"], by_softfloat(op, format, v["a"], v["b"])) == []


def test_random_quotients_in_bulk_equal_softfloat(seed):
    a, b = np.random.default_rng(seed).integers(0, 1 << 16, (2, 200_000))
    got = functions.divide(tensor(a), tensor(b))
    assert mismatches(got, by_softfloat(softfloat.f16_div, FP16, a, b)) == []


def test_every_quotient_of_a_small_format():
    tiny = FloatFormat(exp_bits=3, frac_bits=2)
    a, b = (axis.ravel() for axis in np.meshgrid(np.arange(64), np.arange(64)))
    y = functions.divide(tensor(a), tensor(b), tiny, tiny, tiny).tolist()
    rows = zip(a.tolist(), b.tolist(), y, strict=True)
    assert [row for row in rows if not quotient_is_right(*row, tiny, tiny, tiny)] == []


@pytest.mark.parametrize(
    "formats",
    [
        (FP32, FP32, FP16),
        (FP32, FP16, FP16),
        (FP16, FP32, FP16),
        (FP16, FP16, FP32),
        (FP8, FP32, BF16),
        (FP32, FP8, FP8),
    ],
    ids=lambda formats: "_".join(f"e{f.exp_bits}m{f.frac_bits}" for f in formats),
)
def test_divide_of_mixed_formats_equals_fractions(formats, seed):
    v = vectors.divide_vectors(seed, *formats, count=300)
    rows = zip(*(v[name].tolist() for name in "aby"), strict=True)
    assert [row for row in rows if not quotient_is_right(*row, *formats)] == []


@pytest.mark.parametrize("format", [FP16, FP32], ids=["fp16", "fp32"])
def test_divide_vectors_fill_every_bin(format, seed):
    """Exact, tie, up and down, among normal and subnormal results; overflow; class pairs."""
    v = vectors.divide_vectors(seed, format, format, format)
    bins: collections.Counter = collections.Counter()
    for a, b, y in zip(*(v[name].tolist() for name in "aby"), strict=True):
        finite = is_finite(a, format) and is_finite(b, format)
        if not finite or fraction(a, format) == 0 or fraction(b, format) == 0:
            continue
        if not is_finite(y, format):
            bins["overflow"] += 1
            continue
        size = y & (format.sign_bit - 1)
        value = abs(fraction(a, format) / fraction(b, format))
        here = fraction(size, format)
        kind = "subnormal" if size < 1 << format.frac_bits else "normal"
        half = (fraction(size + 1, format) - here) / 2
        tie = value != here and (
            abs(value - here) == half or (size and value == (here + fraction(size - 1, format)) / 2)
        )
        way = "exact" if value == here else "tie" if tie else "up" if here > value else "down"
        bins[f"{kind} {way}"] += 1
    # A quotient of two numbers of one format is never half way between two normal ones.
    wanted = {"subnormal tie", "overflow"}
    for kind in ("normal", "subnormal"):
        wanted |= {f"{kind} {way}" for way in ("exact", "up", "down")}
    assert set(bins) == wanted, bins
    assert min(bins.values()) >= 50, bins
    count = len(vectors.CLASSES)
    pairs = vectors.class_of(v["a"], format) * count + vectors.class_of(v["b"], format)
    assert len(set(pairs.tolist())) == count * count


@pytest.mark.parametrize("fo", [FP16, FP32, FP8], ids=["fp16", "fp32", "fp8"])
def test_reciprocal_of_every_word(fo):
    y = functions.reciprocal(tensor(ALL_FP16), FP16, fo).tolist()
    one = FP16.bias << FP16.frac_bits
    wrong = [a for a in range(1 << 16) if not quotient_is_right(one, a, y[a], FP16, FP16, fo)]
    assert wrong == []


def test_reciprocal_equals_softfloat(seed):
    v = vectors.function_vectors(seed, "reciprocal", FP32, FP32)
    one = np.full(len(v["a"]), FP32.bias << FP32.frac_bits)
    assert mismatches(v["y"], by_softfloat(softfloat.f32_div, FP32, one, v["a"])) == []


def test_sqrt_of_every_word_equals_softfloat():
    got = functions.sqrt(tensor(ALL_FP16))
    assert mismatches(got, by_softfloat(softfloat.f16_sqrt, FP16, ALL_FP16)) == []


def test_sqrt_equals_softfloat(seed):
    v = vectors.function_vectors(seed, "sqrt", FP32, FP32)
    assert mismatches(v["y"], by_softfloat(softfloat.f32_sqrt, FP32, v["a"])) == []


@pytest.mark.parametrize("name", ["sqrt", "rsqrt"])
@pytest.mark.parametrize("fo", [FP16, FP32, FP8], ids=["fp16", "fp32", "fp8"])
def test_roots_of_every_word(name, fo):
    y = getattr(functions, name)(tensor(ALL_FP16), FP16, fo).tolist()
    inverse = name == "rsqrt"
    wrong = [a for a in range(1 << 16) if not root_is_right(a, y[a], FP16, fo, inverse)]
    assert wrong == []


@pytest.mark.parametrize("name", ["sqrt", "rsqrt"])
@pytest.mark.parametrize("fo", [FP32, FP16, FP8], ids=["fp32", "fp16", "fp8"])
def test_roots_of_binary32(name, fo, seed):
    v = vectors.function_vectors(seed, name, FP32, fo, count=1500)
    rows = zip(v["a"].tolist(), v["y"].tolist(), strict=True)
    inverse = name == "rsqrt"
    assert [row for row in rows if not root_is_right(*row, FP32, fo, inverse)] == []


@functools.cache
def exact_exp() -> dict[int, Decimal]:
    """exp of every finite binary16 word of magnitude below 32, to 40 digits."""
    with decimal.localcontext(prec=40):
        return {
            word: Decimal(float(np.uint16(word).view(np.float16))).exp()
            for word in range(1 << 16)
            if word & 0x7FFF < 0x5000
        }


def decimal_of(word: int, format: FloatFormat) -> Decimal:
    value = fraction(word, format)
    return Decimal(value.numerator) / Decimal(value.denominator)


def test_exp_of_every_word_is_within_its_bound():
    y = functions.exp(tensor(ALL_FP16)).tolist()
    errors = {}
    with decimal.localcontext(prec=40):
        for word, value in exact_exp().items():
            if value >= 65536:
                assert y[word] == FP16.infinity
                continue
            exponent = max(math.frexp(value)[1] - 1, -14)
            errors[word] = abs(decimal_of(y[word], FP16) - value) * Decimal(2) ** (10 - exponent)
    assert max(errors.values()) < Decimal("0.51")
    # What docs/blocks/fp16_exp.md says.
    assert round(max(errors.values()), 4) == Decimal("0.5077")
    assert sum(error > Decimal("0.5") for error in errors.values()) == 104


def test_exp_is_monotone():
    key = ops.total_order_key(tensor(ALL_FP16))
    order = torch.argsort(key)
    order = order[~ops.is_nan(order)]
    y = functions.exp(order)
    assert (y.diff() >= 0).all()
    assert (y[0].item(), y[-1].item()) == (0, FP16.infinity)


def test_exp_at_its_ends():
    # infinities, NaN, zeros, smallest numbers, largest numbers, 32
    a = [0x7C00, 0xFC00, 0x7C01, 0xFE12, 0, 0x8000, 1, 0x8001, 0x7BFF, 0xFBFF, 0x5000, 0xD000]
    y = [0x7C00, 0, 0x7E00, 0x7E00, 0x3C00, 0x3C00, 0x3C00, 0x3C00, 0x7C00, 0, 0x7C00, 0]
    assert functions.exp(tensor(a)).tolist() == y
    infinite = FP32.infinity
    y = [infinite, 0, 0x7FC00000, 0x7FC00000, *[0x3F800000] * 4, infinite, 0, infinite, 0]
    # exp(-2**-24) is one step of 2**-18 low in binary32.
    y[5] = y[7] = functions.exp(tensor([0x8001]), FP32).item()
    assert functions.exp(tensor(a), FP32).tolist() == y
    # The first overflow, the last number above 0 and below 1: by words.
    finite = functions.exp(tensor(ALL_FP16)).numpy()
    positive = np.flatnonzero(finite[:0x7C00] == FP16.infinity)[0]
    assert np.uint16(positive).view(np.float16) == 11.09375
    zero = 0x8000 + np.flatnonzero(finite[0x8000:0xFC00] == 0)[0]
    assert np.uint16(zero).view(np.float16) == -17.34375


def test_exp_in_binary32_is_the_value_before_the_rounding():
    wide = functions.exp(tensor(ALL_FP16), FP32)
    assert mismatches(ops.fp32_to_fp16(wide), functions.exp(tensor(ALL_FP16)).numpy()) == []
    words = wide.tolist()
    with decimal.localcontext(prec=40):
        worst = max(
            abs(decimal_of(words[word], FP32) / value - 1) for word, value in exact_exp().items()
        )
    assert worst < Decimal(2) ** Decimal("-15.8")


def test_tables_of_exp_are_the_numbers_they_stand_for():
    t = exp_tables()
    one = 1 << t.GRID

    def signed(code: int, count: int) -> int:
        return code - count if code >= count // 2 else code

    for code, entry in enumerate(t.power):
        index = code - 64 if code >= 56 else code
        assert entry == math.ceil(math.exp((index + 0.5) / 64) * one)
    for code, entry in enumerate(t.high):
        assert entry == round(8 * signed(code, 16) * math.log(2) * one) % one
    for code, entry in enumerate(t.low):
        assert abs(entry - code * math.log(2) * one % one + 0.25) <= 0.5
    for code, entry in enumerate(t.square):
        middle = (signed(code, 16) + 0.5) / (16 << t.INDEX_BITS)
        assert abs(entry - middle * middle / 2 * one - 0.25) <= 0.5


def test_functions_take_any_shape_and_integer_type():
    words = torch.tensor([[0x3C00, 0x4000], [0xC000, 0x7E00]])
    for held in (words.to(torch.uint16), words.to(torch.int32), words):
        assert functions.divide(held, held[:1]).shape == (2, 2)
        for name in ("reciprocal", "sqrt", "rsqrt", "exp"):
            got = getattr(functions, name)(held)
            assert got.tolist() == getattr(functions, name)(words).tolist()
