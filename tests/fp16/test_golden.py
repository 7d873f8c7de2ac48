"""golden.fp16.ops against Berkeley SoftFloat, exact fractions and published vectors."""

import os
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import softfloatpy as softfloat
import torch

from golden.fp16 import ops
from golden.fp16.format import FP16, FP32, FloatFormat
from golden.fp16.vectors import columns as vectors

ALL_FP16 = np.arange(1 << 16)
FP8 = FloatFormat(exp_bits=4, frac_bits=3)
BF16 = FloatFormat(exp_bits=8, frac_bits=7)
_TYPES = {FP16: softfloat.Float16, FP32: softfloat.Float32}


def tensor(words) -> torch.Tensor:
    return torch.from_numpy(np.asarray(words).astype(np.int64))


def wrap(words, format):
    """SoftFloat numbers of the words."""
    size, make = format.bits // 8, _TYPES[format].from_bytes
    return [make(word.to_bytes(size, "big")) for word in np.asarray(words).tolist()]


def unwrap(numbers, format) -> np.ndarray:
    """Words of SoftFloat numbers, any NaN made canonical."""
    words = np.array([int.from_bytes(n.to_bytes(), "big") for n in numbers], dtype=np.int64)
    nan = (words & (format.sign_bit - 1)) > format.infinity
    return np.where(nan, format.canonical_nan, words)


def mismatches(got, want) -> list:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    assert got.size > 0
    return np.flatnonzero(got != want).tolist()[:5]


def fraction_of(word: int, format: FloatFormat):
    """The value as a Fraction, or "nan", "inf" with its sign."""
    sign = -1 if word >> (format.bits - 1) else 1
    biased = (word >> format.frac_bits) & format.exp_max
    fraction = word & ((1 << format.frac_bits) - 1)
    if biased == format.exp_max:
        return ("nan" if fraction else "inf"), sign
    if biased:
        value = (1 + Fraction(fraction, 1 << format.frac_bits)) * Fraction(2) ** (
            biased - format.bias
        )
    else:
        value = Fraction(fraction, 1 << format.frac_bits) * Fraction(2) ** (1 - format.bias)
    return sign * value, sign


def nearest(value: Fraction, format: FloatFormat) -> int:
    """Word of the nearest number of the format, ties to even: by search over the words.

    Words of positive numbers are in the order of their values, so bisection finds the two
    around the value. The word of infinity has the value 2**(bias + 1).
    """
    sign, value = (format.sign_bit, -value) if value < 0 else (0, value)

    def at(word):
        if word == format.infinity:
            return Fraction(2) ** (format.bias + 1)
        return fraction_of(word, format)[0]

    if value >= at(format.infinity):
        return sign | format.infinity
    low, high = 0, format.infinity
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) <= value else (low, middle)
    below, above = value - at(low), at(high) - value
    word = low if below < above or (below == above and low % 2 == 0) else high
    return sign | word


def fma_by_fractions(a, b, c, a_format, b_format, c_format, o_format) -> int:
    (x, x_sign), (y, y_sign), (z, z_sign) = (
        fraction_of(a, a_format),
        fraction_of(b, b_format),
        fraction_of(c, c_format),
    )
    p_sign = x_sign * y_sign
    special = [v for v in (x, y, z) if isinstance(v, str)]
    if "nan" in special:
        return o_format.canonical_nan
    if "inf" in (x, y):
        if 0 in (x, y) or (z == "inf" and z_sign != p_sign):
            return o_format.canonical_nan
        return o_format.infinity | (o_format.sign_bit if p_sign < 0 else 0)
    if z == "inf":
        return o_format.infinity | (o_format.sign_bit if z_sign < 0 else 0)
    value = x * y + z
    if value == 0:
        return o_format.sign_bit if p_sign < 0 and z_sign < 0 else 0
    word = nearest(value, o_format)
    return word | (o_format.sign_bit if value < 0 else 0)


@pytest.mark.parametrize("format", [FP16, FP32], ids=["fp16", "fp32"])
def test_add_equals_softfloat(format, seed):
    v = vectors.add_vectors(seed, format)
    op = softfloat.f16_add if format is FP16 else softfloat.f32_add
    want = unwrap(map(op, wrap(v["a"], format), wrap(v["b"], format)), format)
    assert mismatches(v["y"], want) == []


@pytest.mark.parametrize("format", [FP16, FP32], ids=["fp16", "fp32"])
def test_mul_equals_softfloat(format, seed):
    v = vectors.mul_vectors(seed, format, format, format)
    op = softfloat.f16_mul if format is FP16 else softfloat.f32_mul
    want = unwrap(map(op, wrap(v["a"], format), wrap(v["b"], format)), format)
    assert mismatches(v["y"], want) == []


@pytest.mark.parametrize("format", [FP16, FP32], ids=["fp16", "fp32"])
def test_fma_equals_softfloat(format, seed):
    v = vectors.fma_vectors(seed, format, format, format, format)
    op = softfloat.f16_mul_add if format is FP16 else softfloat.f32_mul_add
    want = unwrap(map(op, *(wrap(v[name], format) for name in "abc")), format)
    assert mismatches(v["y"], want) == []


def test_random_words_in_bulk_equal_softfloat(seed):
    rng = np.random.default_rng(seed)
    a, b, c = rng.integers(0, 1 << 16, (3, 200_000))
    x, y, z = (wrap(words, FP16) for words in (a, b, c))
    got = ops.fma(tensor(a), tensor(b), tensor(c))
    assert mismatches(got, unwrap(map(softfloat.f16_mul_add, x, y, z), FP16)) == []
    got = ops.add(tensor(a), tensor(b))
    assert mismatches(got, unwrap(map(softfloat.f16_add, x, y), FP16)) == []
    got = ops.subtract(tensor(a), tensor(b))
    assert mismatches(got, unwrap(map(softfloat.f16_sub, x, y), FP16)) == []
    got = ops.mul(tensor(a), tensor(b))
    assert mismatches(got, unwrap(map(softfloat.f16_mul, x, y), FP16)) == []


def test_every_pair_of_a_small_format_equals_fractions():
    tiny = FloatFormat(exp_bits=3, frac_bits=2)
    a, b = (axis.ravel() for axis in np.meshgrid(np.arange(64), np.arange(64)))
    product = ops.mul(tensor(a), tensor(b), tiny, tiny, tiny)
    total = ops.add(tensor(a), tensor(b), tiny)
    one, minus_zero = tiny.bias << tiny.frac_bits, tiny.sign_bit
    sums = [fma_by_fractions(x, one, y, tiny, tiny, tiny, tiny) for x, y in zip(a, b, strict=True)]
    products = []
    for x, y in zip(a, b, strict=True):
        # Adding a zero of the product's sign leaves every product as it is.
        zero = (x ^ y) & minus_zero
        products.append(fma_by_fractions(x, y, zero, tiny, tiny, tiny, tiny))
    assert mismatches(total, sums) == []
    assert mismatches(product, products) == []


@pytest.mark.parametrize(
    "formats",
    [
        (FP16, FP32, FP32, FP32),
        (FP16, FP16, FP32, FP32),
        (FP16, FP16, FP32, FP16),
        (FP32, FP16, FP16, FP16),
        (FP32, FP32, FP16, FP32),
        (FP8, FP8, FP16, FP8),
        (BF16, FP16, BF16, FP16),
    ],
    ids=lambda formats: "_".join(f"e{f.exp_bits}m{f.frac_bits}" for f in formats),
)
def test_mixed_formats_equal_fractions(formats, seed):
    a_format, b_format, _, o_format = formats
    v = vectors.fma_vectors(seed, *formats, count=100, corners=1500)
    rows = zip(*(v[name].tolist() for name in "abc"), strict=True)
    assert mismatches(v["y"], [fma_by_fractions(*row, *formats) for row in rows]) == []
    v = vectors.mul_vectors(seed, a_format, b_format, o_format, count=150)
    want = []
    for a, b in zip(v["a"].tolist(), v["b"].tolist(), strict=True):
        sign = (a >> (a_format.bits - 1)) ^ (b >> (b_format.bits - 1))
        zero = sign << (o_format.bits - 1)
        want.append(fma_by_fractions(a, b, zero, a_format, b_format, o_format, o_format))
    assert mismatches(v["y"], want) == []


def test_every_word_to_fp32_and_back():
    wide = ops.fp16_to_fp32(tensor(ALL_FP16))
    want = unwrap(map(softfloat.f16_to_f32, wrap(ALL_FP16, FP16)), FP32)
    assert mismatches(wide, want) == []
    nan = ops.is_nan(tensor(ALL_FP16)).numpy()
    assert mismatches(ops.fp32_to_fp16(wide), np.where(nan, 0x7E00, ALL_FP16)) == []


def test_fp32_to_fp16_equals_softfloat(seed):
    v = vectors.convert_vectors(seed, count=50_000)
    want = unwrap(map(softfloat.f32_to_f16, wrap(v["a"], FP32)), FP16)
    assert mismatches(v["y"], want) == []
    # Every boundary between two binary16 numbers, and its neighbours in binary32.
    words = np.arange(FP16.infinity)
    low = ops.fp16_to_fp32(tensor(words)).numpy()
    high = np.append(low[1:], (FP32.bias + 16) << FP32.frac_bits)
    middle = np.concatenate([(low + high) // 2 + k for k in (-1, 0, 1)])
    want = unwrap(map(softfloat.f32_to_f16, wrap(middle, FP32)), FP16)
    assert mismatches(ops.fp32_to_fp16(tensor(middle)), want) == []


@pytest.mark.parametrize("width", [4, 8, 16, 32])
@pytest.mark.parametrize("signed", [True, False])
def test_from_int_equals_softfloat(width, signed, seed):
    v = vectors.from_int_vectors(seed, width, signed)
    make, op = (
        (softfloat.Int64, softfloat.i64_to_f16)
        if signed
        else (softfloat.UInt64, softfloat.ui64_to_f16)
    )
    values = [make.from_bytes(x.to_bytes(8, "big", signed=signed)) for x in v["value"].tolist()]
    assert mismatches(v["y"], unwrap(map(op, values), FP16)) == []


@pytest.mark.parametrize("format", [FP16, FP32], ids=["fp16", "fp32"])
@pytest.mark.parametrize(("width", "signed"), [(4, True), (8, False), (17, True), (32, True)])
def test_to_int_equals_rounded_fractions(format, width, signed, seed):
    v = vectors.to_int_vectors(seed, width, signed, format, count=3000)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    want = []
    for word in v["a"].tolist():
        value, sign = fraction_of(word, format)
        if value == "nan":
            want.append((0, 0, 1))
            continue
        integer = sign * 2**200 if value == "inf" else round(value)
        clamped = min(max(integer, low), high)
        want.append((clamped, int(clamped != integer), 0))
    got = np.stack([v["y"], v["saturated"], v["nan"]], axis=1)
    assert mismatches(got[:, 0], np.array(want)[:, 0]) == []
    assert mismatches(got[:, 1], np.array(want)[:, 1]) == []
    assert mismatches(got[:, 2], np.array(want)[:, 2]) == []


def test_to_int32_of_every_word_equals_softfloat():
    y, saturated, nan = ops.to_int(tensor(ALL_FP16), 32)
    usable = ~(saturated | nan).numpy()
    words = wrap(ALL_FP16[usable], FP16)
    want = [
        int.from_bytes(softfloat.f16_to_i32(word).to_bytes(), "big", signed=True) for word in words
    ]
    assert mismatches(y.numpy()[usable], want) == []
    assert usable.sum() == 2 * FP16.infinity  # all others are infinities and NaNs


def test_comparisons_equal_softfloat_and_the_key_is_a_strict_total_order(seed):
    v = vectors.compare_vectors(seed)
    x, y = wrap(v["a"], FP16), wrap(v["b"], FP16)
    assert mismatches(v["less"], [int(r) for r in map(softfloat.f16_lt_quiet, x, y)]) == []
    assert mismatches(v["equal"], [int(r) for r in map(softfloat.f16_eq, x, y)]) == []
    key = ops.total_order_key(tensor(ALL_FP16)).numpy()
    assert sorted(key.tolist()) == ALL_FP16.tolist()
    order = ops.float_from_bits(tensor(np.argsort(key))).numpy()
    finite = order[~np.isnan(order)]
    assert (np.diff(finite) >= 0).all()
    assert key[0x8000] + 1 == key[0x0000]


def test_minimum_and_maximum_follow_ieee_2019(seed):
    v = vectors.compare_vectors(seed)
    a, b = (ops.float_from_bits(tensor(v[name])).numpy() for name in "ab")
    minimum, maximum = (
        ops.float_from_bits(tensor(v[name])).numpy() for name in ("minimum", "maximum")
    )
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(minimum, np.minimum(a, b))
        np.testing.assert_array_equal(maximum, np.maximum(a, b))
    zeros = tensor([0x0000, 0x8000]), tensor([0x8000, 0x0000])
    assert ops.minimum(*zeros).tolist() == [0x8000, 0x8000]
    assert ops.maximum(*zeros).tolist() == [0x0000, 0x0000]
    nan = ops.is_nan(tensor(v["a"])) | ops.is_nan(tensor(v["b"]))
    assert set(v["minimum"][nan.numpy()].tolist()) == {0x7E00}


@pytest.mark.parametrize("format", [FP16, FP32, FP8], ids=["fp16", "fp32", "fp8"])
@pytest.mark.parametrize(
    ("width", "grids"), [(6, (-9, -3, 0, 12)), (40, (-24,)), (63, (-48,)), (96, (-149, -48, 20))]
)
def test_from_fixed_equals_fractions(format, width, grids, seed):
    v = vectors.from_fixed_vectors(seed, width, grids, format, count=1000)
    want = []
    for value, grid in zip(v["value"].tolist(), v["grid"].tolist(), strict=True):
        exact = value * Fraction(2) ** grids[grid]
        want.append(nearest(exact, format) | (format.sign_bit if exact < 0 else 0))
    assert mismatches(v["y"], want) == []


def test_from_fixed_takes_any_int64_and_denormalised_limbs():
    extremes = [-(2**63), -(2**63) + 1, 2**63 - 1, -1, 0, 1]
    got = ops.from_fixed(torch.tensor(extremes), -40, FP32).tolist()
    want = [nearest(Fraction(v, 2**40), FP32) for v in extremes]
    assert got == want
    # One number written with three different low limbs.
    low = torch.tensor([5, 5 + 2**62, 5 - 2**62])
    high = torch.tensor([7, 6, 8])
    assert len(set(ops.from_fixed(low, -60, FP32, high=high).tolist())) == 1


def test_words_of_any_integer_type_are_taken():
    words = [0x0000, 0x8001, 0x3C00, 0xFBFF, 0xFE12]
    want = ops.add(torch.tensor(words), torch.tensor(words)).tolist()
    narrow = torch.from_numpy(np.array(words, dtype=np.uint16))
    for held in (narrow, narrow.view(torch.int16), torch.tensor(words, dtype=torch.int32)):
        assert ops.add(held, held).tolist() == want


def test_bits_from_float_and_back(seed):
    values = ops.float_from_bits(tensor(ALL_FP16))
    np.testing.assert_array_equal(
        values.numpy(), ALL_FP16.astype(np.uint16).view(np.float16).astype(np.float64)
    )
    nan = ops.is_nan(tensor(ALL_FP16)).numpy()
    canonical = np.where(nan, 0x7E00, ALL_FP16)
    for held in (values, values.to(torch.float32), values.to(torch.float16)):
        assert mismatches(ops.bits_from_float(held), canonical) == []
    # binary64 is rounded once: just above a tie that binary32 would make a tie.
    above_tie = 1 + 2.0**-11 + 2.0**-40
    assert ops.bits_from_float(torch.tensor([above_tie], dtype=torch.float64)).item() == 0x3C01
    rng = random.Random(seed)
    doubles = [rng.uniform(-1, 1) * 2.0 ** rng.randint(-30, 17) for _ in range(3000)]
    got = ops.bits_from_float(torch.tensor(doubles, dtype=torch.float64))
    want = unwrap([softfloat.f64_to_f16(softfloat.Float64.from_float(x)) for x in doubles], FP16)
    assert mismatches(got, want) == []


def rounding_bins(value: int, grid: int, format: FloatFormat = FP16) -> str:
    """The bin of value * 2**grid, not zero, by how it is rounded."""
    value = abs(value)
    drop = max(value.bit_length() - format.precision, format.grid_exponent - grid)
    if drop <= 0:
        return "exact"
    kept, rest, half = value >> drop, value & ((1 << drop) - 1), 1 << (drop - 1)
    if rest == 0:
        return "exact"
    if rest == half:
        return "tie, odd below" if kept & 1 else "tie, even below"
    return "up" if rest > half else "down"


@pytest.mark.parametrize("operation", ["add", "mul", "fma"])
def test_vectors_fill_every_bin(operation, seed):
    v = getattr(vectors, f"{operation}_vectors")(seed)
    operands = [name for name in "abc" if name in v]
    classes = [vectors.class_of(v[name]) for name in operands]
    count = len(vectors.CLASSES)
    for first, second in ((0, 1), (0, len(operands) - 1), (1, len(operands) - 1)):
        pairs = set((classes[first] * count + classes[second]).tolist())
        assert len(pairs) >= count * count or first == second
    result = vectors.class_of(v["y"])
    assert set(range(count)) - set(result.tolist()) == {9}  # no NaN with a sign

    finite = np.all([(c % 5) < 3 for c in classes], axis=0)
    bins = dict.fromkeys(["exact", "tie, odd below", "tie, even below", "up", "down"], 0)
    subnormal = dict.fromkeys(bins, 0)
    overflow = carried = 0
    rows = np.stack([v[name] for name in operands], axis=1)[finite].tolist()
    for row, y in zip(rows, v["y"][finite].tolist(), strict=True):
        scaled = []  # integers on the grid 2**-24
        for word in row:
            magnitude = (word & 0x3FF) | (0x400 if word & 0x7C00 else 0)
            magnitude <<= max((word >> 10) & 31, 1) - 1
            scaled.append(-magnitude if word >> 15 else magnitude)
        if operation == "add":
            exact, grid = sum(scaled), -24
        elif operation == "mul":
            exact, grid = scaled[0] * scaled[1], -48
        else:
            exact, grid = scaled[0] * scaled[1] + (scaled[2] << 24), -48
        if exact == 0:
            continue
        name = rounding_bins(exact, grid)
        bins[name] += 1
        if (y & 0x7FFF) < 0x0400:
            subnormal[name] += 1
        overflow += (y & 0x7FFF) == 0x7C00
        carried += (y & 0x3FF) == 0 and name in ("up", "tie, odd below")
    assert min(bins.values()) >= 50, bins
    assert overflow >= 50
    assert carried >= 10
    if operation == "add":  # a sum in the subnormal range is always exact
        assert subnormal["exact"] >= 50
    else:
        assert min(subnormal.values()) >= 20, subnormal


def vector_directory(request) -> Path | None:
    """Folder of TestFloat vectors: pytest --testfloat DIR, or SENBAZURU_TESTFLOAT."""
    given = request.config.getoption("--testfloat", default=None)
    given = given or os.environ.get("SENBAZURU_TESTFLOAT")
    return Path(given) if given else None


def test_testfloat_vectors(request):
    directory = vector_directory(request)
    if directory is None:
        pytest.skip("no folder of TestFloat vectors is given")
    tables = vectors.read_testfloat(directory)
    assert tables, f"{directory}: no known vector file"
    functions = {
        "f16_add": ops.add,
        "f16_mul": ops.mul,
        "f16_mulAdd": ops.fma,
        "f16_lt_quiet": ops.less,
        "f16_to_f32": ops.fp16_to_fp32,
        "f32_to_f16": ops.fp32_to_fp16,
    }
    for name, table in tables.items():
        got = functions[name](*(tensor(column) for column in table.T[:-1])).to(torch.int64)
        assert mismatches(got, table[:, -1]) == [], name
        print(f"{name}: {len(table)} vectors")
