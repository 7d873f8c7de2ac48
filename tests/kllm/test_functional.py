"""golden.kllm.functional against exact fractions, NumPy's FP16 and float64 functions."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.fp16.vectors.columns import random_words
from golden.kllm.config import FunctionShape
from golden.kllm.format import FactorTable, factor_table
from golden.kllm.functional import (
    FunctionalState,
    Slot,
    activate,
    axpy,
    binary,
    dequantize,
    execute,
    function,
    glu,
    negated_mean,
    rotary,
)
from golden.kllm.isa import (
    GELU_C0,
    GELU_C1,
    Binary,
    CommandStatus,
    Function,
    Opcode,
    Scalar,
)
from tests.exact import exact, ordinary, rounded

WORDS = torch.arange(1 << 16)
VALUES = float_from_bits(WORDS)
FINITE = torch.isfinite(VALUES)


def fp32(value) -> int:
    return int(np.float32(value).view(np.uint32))


def same(got, want):
    """Equal words; every NaN of NumPy's counts as the canonical one."""
    want = np.where(np.isnan(want), np.float16("nan"), want).astype(np.float16)
    words = want.view(np.uint16).astype(np.int64)
    words = np.where(np.isnan(want), FP16.canonical_nan, words)
    assert got.tolist() == words.tolist()


def test_rounded_is_of_numpy():
    for word in range(0, 0x7C00, 97):
        assert rounded(exact(word)) == word
    assert rounded(Fraction(65520)) == FP16.infinity
    assert rounded(Fraction(1, 3), FP32) == fp32(1 / 3)


def test_binary_is_ieee():
    rng = np.random.default_rng(1)
    a, b = (random_words(rng, 4000).astype(np.uint16) for _ in range(2))
    x, y = a.view(np.float16), b.view(np.float16)
    with np.errstate(all="ignore"):
        same(binary(Binary.ADD, torch.tensor(a.astype(int)), torch.tensor(b.astype(int))), x + y)
        product = x.astype(np.float64) * y.astype(np.float64)  # exact: one rounding
        same(binary(Binary.MULTIPLY, torch.tensor(a.astype(int)), torch.tensor(b.astype(int))),
             product.astype(np.float16))  # fmt: skip


def test_axpy_rounds_once():
    rng = np.random.default_rng(2)
    a, b = ordinary(rng, 500), ordinary(rng, 500)
    for scalar in ordinary(rng, 4).tolist():
        got = axpy(scalar, a, b).tolist()
        for x, y, word in zip(a.tolist(), b.tolist(), got, strict=True):
            assert word == rounded(exact(scalar) * exact(x) + exact(y))


def test_negated_mean():
    for mean, rms in ((1.5, 0.3), (-2.0, 7.1), (1e-8, 1e3), (3e5, 1.0)):
        m, r = fp32(mean), fp32(rms)
        assert int(negated_mean(m, r)) == rounded(-exact(m, FP32) * exact(r, FP32))


def test_rotary_rounds_once_and_turns():
    rng = np.random.default_rng(3)
    x = ordinary(rng, 3, 64)
    angle = torch.tensor(rng.uniform(-4, 4, 32))
    cos, sin = bits_from_float(angle.cos()), bits_from_float(angle.sin())
    y = rotary(x, cos, sin)
    for head in range(3):
        for i in range(32):
            low, high = exact(int(x[head, i])), exact(int(x[head, i + 32]))
            c, s = exact(int(cos[i])), exact(int(sin[i]))
            assert int(y[head, i]) == rounded(low * c - high * s)
            assert int(y[head, i + 32]) == rounded(high * c + low * s)
    size = float_from_bits(x) ** 2
    turned = float_from_bits(y) ** 2
    pairs = size[:, :32] + size[:, 32:]
    assert ((turned[:, :32] + turned[:, 32:]) / pairs - 1).abs().max() < 4e-3


def test_gelu_constants():
    c = 2 * math.sqrt(2 / math.pi)
    assert rounded(Fraction(c)) == GELU_C0
    assert rounded(Fraction(c * 0.044715)) == GELU_C1


def test_silu_is_within_an_ulp():
    y, x = float_from_bits(function(Function.SILU, WORDS))[FINITE], VALUES[FINITE]
    true = x * torch.sigmoid(x)
    ulp = true.abs().clamp(min=2.0**-14).log2().floor().exp2() * 2.0**-10
    assert ((y - true).abs() / ulp).max() < 0.51


def test_gelu_is_near():
    y, x = float_from_bits(function(Function.GELU, WORDS))[FINITE], VALUES[FINITE]
    true = torch.nn.functional.gelu(x, approximate="tanh")
    error = (y - true).abs()
    ulp = true.abs().clamp(min=2.0**-14).log2().floor().exp2() * 2.0**-10
    # The argument of the exponential is rounded to FP16: 13 ulp where the result is small.
    assert (error / ulp).max() < 13
    assert (error - 0.5 * ulp).clamp(min=0).max() < 5e-4
    assert (error / ulp)[x > 0].max() < 1.1


def _gauss(x: float) -> float:
    return x * math.erfc(-x / math.sqrt(2)) / 2


def _quick(x: float) -> float:
    return x / (1 + math.exp(-1.702 * x)) if x > -400 else -0.0


@pytest.mark.parametrize(
    ("f", "exact_form", "bound"),
    [(Function.TANH, math.tanh, 0.51), (Function.GELU_ERF, _gauss, 0.62),
     (Function.QUICK_GELU, _quick, 0.67)],
)  # fmt: skip
def test_functions_with_tables_are_within_an_ulp(f, exact_form, bound) -> None:
    """Every word is compared with mathematics in float64.

    Shown to fail: a middle that is 64 steps off; pieces of 1/8; 26 fraction bits; a table that ends
    one whole number earlier.
    """
    y, x = float_from_bits(function(f, WORDS))[FINITE], VALUES[FINITE]
    true = torch.tensor([exact_form(value) for value in x.tolist()], dtype=torch.float64)
    ulp = true.abs().clamp(min=2.0**-14).log2().floor().exp2() * 2.0**-10
    assert ((y - true).abs() / ulp).max() < bound
    assert (y.abs() <= x.abs()).all()
    assert ((y == 0) | (y.sign() == x.sign())).all()


def test_tanh_is_odd_and_monotone() -> None:
    """Shown to fail: a table whose pieces do not meet; another u for negative words."""
    words = function(Function.TANH, WORDS)
    assert torch.equal(words[:0x7C01] | 0x8000, words[0x8000:0xFC01])
    assert (words[1:0x7C01] >= words[:0x7C00]).all()


def test_tables_fit_their_products() -> None:
    """Between pieces too, w is in 0..1, so that the product of 11 and 31 bits has room."""
    t = FactorTable
    half = 1 << t.GRID - t.INDEX_BITS - 1
    for f in (Function.TANH, Function.GELU_ERF, Function.QUICK_GELU):
        table = factor_table(f)
        c0, c1, c2 = torch.tensor(table.pieces)[:, None].unbind(-1)
        d = torch.arange(-half, half)
        w = c0 + ((c1 + ((c2 * d) >> t.CURVE_SHIFT)) * d >> t.SLOPE_SHIFT)
        least = 0 if f != Function.TANH else -(1 << t.FRACTION - 20)
        assert least <= int(w.min()) <= int(w.max()) <= 1 << t.FRACTION
        assert table.end * 16 == len(table.pieces)


def test_minimum_and_maximum() -> None:
    """Shown to fail: an order of sign-magnitude words as integers; NaN only where a is one."""
    rng = np.random.default_rng(9)
    a, b = (torch.tensor(random_words(rng, 4000).astype(int)) for _ in range(2))
    special = torch.tensor([0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFFFF, 1, 0x8001, 0x3C00])
    a = torch.cat((a, special.repeat_interleave(len(special))))
    b = torch.cat((b, special.repeat(len(special))))
    x, y = float_from_bits(a), float_from_bits(b)
    for op, torch_form in ((Binary.MINIMUM, torch.minimum), (Binary.MAXIMUM, torch.maximum)):
        got = binary(op, a, b)
        want = torch_form(x, y)
        assert torch.equal(got == FP16.canonical_nan, want.isnan())
        assert torch.equal(float_from_bits(got)[~want.isnan()], want[~want.isnan()])
    zeros = torch.tensor([0, 0x8000])
    assert (binary(Binary.MINIMUM, zeros, zeros.flip(0)) == 0x8000).all()
    assert (binary(Binary.MAXIMUM, zeros, zeros.flip(0)) == 0).all()


def test_a_unit_refuses_what_it_lacks() -> None:
    """Shown to fail: one flag for all functions; numbers that no function has."""
    state = make_state(np.random.default_rng(7))
    for table in (0, 1):
        execute(state, Opcode.FUNCTION_CODEBOOK, {"table": table, "src": 3})
    rows = {"a": 0, "a_stride": 0, "b": 10, "b_stride": 0, "dst": 20, "dst_stride": 0, "tokens": 1,
            "length": 17}  # fmt: skip
    commands = (
        (Opcode.FUNCTION, {"src": 0, "dst": 20, "length": 17}),
        (Opcode.ACTIVATE, {"slot": 0, "dst": 20, "length": 50}),
        (Opcode.GLU, {"slot_a": 0, "slot_b": 1, "dst": 20, "length": 50}),
    )
    names = ("tanh", "gelu_erf", "quick_gelu", "bounds")
    for extra in [{}, *({name: True} for name in names)]:
        state.extra = FunctionShape(**extra)
        for f in range(16):
            is_there = f < 8 or Function(f).name.lower() in extra if f < 11 else False
            status = CommandStatus(0) if is_there else CommandStatus.RANGE
            for opcode, operands in commands:
                assert execute(state, opcode, operands | {"function": f}) == status, (extra, f)
        for op in Binary:
            is_there = op <= Binary.MULTIPLY or "bounds" in extra
            status = CommandStatus(0) if is_there else CommandStatus.RANGE
            assert execute(state, Opcode.BINARY, rows | {"op": op}) == status


@pytest.mark.parametrize("f", list(Function))
def test_functions_of_special_words(f):
    nan = function(f, torch.tensor([0x7E01, 0xFFFF, 0x7C01]))
    plus, minus, zero, minus_zero = function(f, torch.tensor([0x7C00, 0xFC00, 0, 0x8000])).tolist()
    expected = {
        Function.IDENTITY: (0x7C00, 0xFC00, 0, 0x8000),
        Function.RELU: (0x7C00, 0, 0, 0),
        Function.SILU: (0x7C00, 0x8000, 0, 0x8000),
        Function.GELU: (0x7C00, 0x8000, 0, 0x8000),
        Function.EXP: (0x7C00, 0, 0x3C00, 0x3C00),
        Function.RECIPROCAL: (0, 0x8000, 0x7C00, 0xFC00),
        Function.SQRT: (0x7C00, 0x7E00, 0, 0x8000),
        Function.RSQRT: (0, 0x7E00, 0x7C00, 0xFC00),
        Function.TANH: (0x3C00, 0xBC00, 0, 0x8000),
        Function.GELU_ERF: (0x7C00, 0x8000, 0, 0x8000),
        Function.QUICK_GELU: (0x7C00, 0x8000, 0, 0x8000),
    }[f]
    assert (plus, minus, zero, minus_zero) == expected
    if f != Function.IDENTITY:
        assert (nan == FP16.canonical_nan).all()


def test_relu():
    y = float_from_bits(function(Function.RELU, WORDS))
    assert torch.equal(y[FINITE], VALUES[FINITE].clamp(min=0))
    assert not (function(Function.RELU, WORDS) == 0x8000).any()


def make_slot(rng, length, bits=4, integer=False) -> Slot:
    return Slot(
        index=torch.tensor(rng.integers(0, 1 << bits, length)),
        outlier=torch.tensor(rng.random(length) < 0.2),
        words=ordinary(rng, length),
        scale=int(bits_from_float(torch.tensor(2.3))),
        integer=integer,
    )


def test_slots_look_up_what_was_computed_once():
    rng = np.random.default_rng(5)
    a, b = make_slot(rng, 50), make_slot(rng, 50)
    books = [bits_from_float(torch.linspace(-1, 1, 16) ** k) for k in (1, 3)]
    f = Function.SILU
    got = activate(f, a, books[0])
    factor = activate(Function.IDENTITY, b, books[1])
    gated = glu(f, a, books[0], b, books[1])
    for slot, book, words, each in ((a, books[0], got, f), (b, books[1], factor, 0)):
        for k in range(50):
            centroid = exact(int(book[slot.index[k]]))
            inlier = rounded(exact(slot.scale) * centroid)
            word = int(slot.words[k]) if slot.outlier[k] else inlier
            assert int(words[k]) == int(function(each, torch.tensor(word)))
    want = [
        rounded(exact(int(u)) * exact(int(v))) & 0x7FFF for u, v in zip(got, factor, strict=True)
    ]
    assert [int(word) & 0x7FFF for word in gated] == want


def test_dequantize_of_several_tokens():
    rng = np.random.default_rng(6)
    slots = [make_slot(rng, 20) for _ in range(3)]
    book = bits_from_float(torch.linspace(-1, 1, 16))
    together = dequantize(
        torch.stack([slot.index for slot in slots]),
        torch.stack([slot.outlier for slot in slots]),
        torch.stack([slot.words for slot in slots]),
        torch.tensor([slot.scale for slot in slots]),
        book.expand(3, -1),
    )
    for words, slot in zip(together, slots, strict=True):
        assert torch.equal(words, activate(Function.IDENTITY, slot, book))


def make_state(rng) -> FunctionalState:
    slots = [make_slot(rng, 50), make_slot(rng, 50), make_slot(rng, 50, integer=True), None]
    return FunctionalState(
        vector=ordinary(rng, 64, 16), slots=slots, slot_elements=64, softmax_elements=64, bits_a=4
    )


def test_dequantized_nans_are_canonical_and_copied_nans_are_not():
    nans = torch.tensor([0x7C01, 0xFC01, 0x7FFF, 0xFE00, 0xFFFF, 0x7E00])
    assert torch.equal(function(Function.IDENTITY, nans), nans)
    zeros, outlier = torch.zeros(len(nans), dtype=torch.int64), torch.ones(len(nans)).bool()
    for f in Function:
        y = dequantize(zeros, outlier, nans, torch.tensor(0x3C00), zeros[:4], f)
        assert (y == 0x7E00).all(), f


def test_commands_equal_numpy_and_fractions():
    """Rows of two tokens. Shown to fail: a stride of ``b`` that counts for ``a`` too."""
    rng = np.random.default_rng(8)
    state = make_state(rng)
    state.vector = torch.tensor(random_words(rng, 64 * 16).astype(int)).reshape(64, 16)
    before = state.vector.numpy().astype(np.uint16).view(np.float16)
    rows = {"a": 0, "a_stride": 3, "b": 10, "b_stride": 1, "dst": 20, "dst_stride": 2}
    for op, operation in ((Binary.ADD, np.add), (Binary.MULTIPLY, np.multiply)):
        assert not execute(state, Opcode.BINARY, rows | {"op": op, "tokens": 2, "length": 16})
        for t in range(2):
            with np.errstate(all="ignore"):
                want = operation(before[3 * t], before[10 + t], dtype=np.float64)
                same(state.vector[20 + 2 * t], want.astype(np.float16))
    state.vector[30:32] = ordinary(rng, 2, 16)
    a, b = ([exact(word) for word in row] for row in state.vector[30:32].tolist())
    axpy_of = {"scalar": Scalar.IMMEDIATE, "immediate": 0x3555, "slot": 0, "a": 30, "b": 31}
    assert not execute(state, Opcode.AXPY, axpy_of | {"dst": 40, "length": 16})
    want = [rounded(exact(0x3555) * x + y) for x, y in zip(a, b, strict=True)]
    assert state.vector[40].tolist() == want


def test_commands_write_whole_rows_and_nothing_when_they_fail():
    state = make_state(np.random.default_rng(7))
    o = {"op": 0, "a": 0, "a_stride": 2, "b": 10, "b_stride": 0, "dst": 20, "dst_stride": 3,
         "tokens": 2, "length": 17}  # fmt: skip
    before = state.vector.clone()
    assert execute(state, Opcode.BINARY, o) == CommandStatus(0)
    want = binary(Binary.ADD, before[2:4].reshape(-1)[:17], before[10:12].reshape(-1)[:17])
    assert torch.equal(state.vector[23:25].reshape(-1)[:17], want)
    assert not state.vector[24, 1:].any()
    assert torch.equal(state.vector[22], before[22])
    before = state.vector.clone()
    for wrong in ({"tokens": 0}, {"length": 0}, {"a": 63}, {"dst": 60}, {"b_stride": 60}):
        assert execute(state, Opcode.BINARY, o | wrong) == CommandStatus.RANGE
    glu_operands = {"function": 2, "slot_a": 0, "slot_b": 1, "dst": 0, "length": 50}
    assert execute(state, Opcode.GLU, glu_operands) == CommandStatus.CODEBOOK_MISSING
    assert execute(state, Opcode.LOAD, {}) == CommandStatus.MALFORMED
    for table in (0, 1):
        assert not execute(state, Opcode.FUNCTION_CODEBOOK, {"table": table, "src": 3})
    for slot in (2, 3):
        assert execute(state, Opcode.GLU, glu_operands | {"slot_b": slot}) == (
            CommandStatus.SLOT_MISMATCH
        )
    derived = {"scalar": Scalar.NEGATED_MEAN, "immediate": 0, "slot": 3, "a": 0, "b": 5, "dst": 9,
               "length": 3}  # fmt: skip
    assert execute(state, Opcode.AXPY, derived) == CommandStatus.SLOT_MISMATCH
    assert torch.equal(state.vector, before)
    assert not execute(state, Opcode.GLU, glu_operands)
    assert not torch.equal(state.vector, before)
