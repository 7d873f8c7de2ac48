"""The functional unit's arithmetic: vector operations, softmax, functions, dequantized slots.

Words are int64 tensors of bit patterns, any device: FP16, and FP32 where a docstring says so. Every
rounding is to nearest even and written as rne16 or rne32; nothing else rounds. A computed NaN is
canonical. The command FUNCTION with IDENTITY copies words and keeps each NaN. ``execute`` runs the
commands of ``Unit.FUNCTION`` with their statuses on a vector memory. Source: KLLM, sections III-C
and IV-A.
"""

import dataclasses

import torch
from torch import Tensor

from golden.attention.softmax import softmax
from golden.fp16 import functions
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import (
    add,
    bits_from_float,
    float_from_bits,
    fma,
    is_nan,
    mul,
    negate,
    total_order_key,
)
from golden.index.codebook import look_up
from golden.kllm.config import FunctionShape
from golden.kllm.format import FactorTable, factor_table
from golden.kllm.isa import (
    GELU_C0,
    GELU_C1,
    ROW_ELEMENTS,
    Binary,
    CommandStatus,
    Function,
    Opcode,
    Scalar,
    row_count,
)

_ONE32 = FP32.bias << FP32.frac_bits
_MINUS_ZERO = FP16.sign_bit
_NEGATIVE_INFINITY = FP16.sign_bit | FP16.infinity


def _words(x) -> Tensor:
    return torch.as_tensor(x).to(torch.int64) & 0xFFFF


def binary(op: int, a: Tensor, b: Tensor) -> Tensor:
    """``rne16(a op b)``, element by element.

    MINIMUM and MAXIMUM are those of IEEE 754-2019: NaN if a or b is one, and -0 is below +0.
    """
    a, b = _words(a), _words(b)
    if op == Binary.ADD:
        return add(a, b)
    if op == Binary.MULTIPLY:
        return mul(a, b)
    is_first = (total_order_key(a) < total_order_key(b)) == (op == Binary.MINIMUM)
    return torch.where(is_nan(a) | is_nan(b), FP16.canonical_nan, torch.where(is_first, a, b))


def axpy(scalar, a: Tensor, b: Tensor) -> Tensor:
    """``rne16(scalar * a + b)``, the product exact."""
    return fma(_words(scalar), _words(a), _words(b))


def negated_mean(mean, rms_reciprocal) -> Tensor:
    """``rne16(-(mean * rms_reciprocal))``: FP32 words to an FP16 word."""
    return mul(negate(mean, FP32), rms_reciprocal, FP32, FP32, FP16)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Halves of every head rotated: (..., size) words, size even; cos and sin: (size / 2,).

    ``y_i = rne16(x_i cos_i - x_{i+h} sin_i)``, ``y_{i+h} = rne16(x_{i+h} cos_i + x_i sin_i)`` with
    h = size / 2: a product of two FP16 words is exact in FP32, and one fused operation rounds.
    """
    low, high = _words(x).chunk(2, dim=-1)
    low, cos, sin = torch.broadcast_tensors(low, _words(cos), _words(sin))
    subtracted = mul(high, negate(sin), o_format=FP32)
    added = mul(low, sin, o_format=FP32)
    first = fma(low, cos, subtracted, c_format=FP32)
    second = fma(high, cos, added, c_format=FP32)
    return torch.cat([first, second], dim=-1)


def _sigmoid_product(x: Tensor, z: Tensor) -> Tensor:
    """``rne16(x / rne32(1 + exp32(-z)))``, -0 for x = -infinity (where z is -infinity too)."""
    e = functions.exp(negate(z), fo=FP32)
    d = add(e, torch.full_like(e, _ONE32), FP32)
    y = functions.divide(x, d, FP16, FP32, FP16)
    return torch.where(x == _NEGATIVE_INFINITY, _MINUS_ZERO, y)


def _tabled(f: Function, x: Tensor) -> Tensor:
    """``rne16(x * r)``, r of ``factor_table(f)``; infinities as their limits, -0 for -infinity.

    The product is exact: 11 bits and 31 have room in a float64.
    """
    t, table = FactorTable, factor_table(f)
    value = float_from_bits(x)
    end = value.abs() >= table.end  # infinities too
    u = torch.where(end | is_nan(x), 0, (value.abs() * (1 << t.GRID)).floor()).to(torch.int64)
    rest = t.GRID - t.INDEX_BITS
    pieces = torch.tensor(table.pieces, device=x.device)[u >> rest]
    d = (u & ((1 << rest) - 1)) - (1 << (rest - 1))
    c0, c1, c2 = pieces.unbind(-1)
    w = c0 + ((c1 + ((c2 * d) >> t.CURVE_SHIFT)) * d >> t.SLOPE_SHIFT)
    w = torch.where(end, 0, w)
    is_negative = x >= FP16.sign_bit
    keeps = is_negative & (f != Function.TANH)
    r = torch.where(keeps, w, (1 << t.FRACTION) - w)
    if f == Function.TANH:
        value = torch.where(end, torch.where(is_negative, -1.0, 1.0), value)
    y = bits_from_float(value * r.double() / (1 << t.FRACTION))
    if f != Function.TANH:
        y = torch.where(x == _NEGATIVE_INFINITY, _MINUS_ZERO, y)
    return torch.where(is_nan(x), FP16.canonical_nan, y)


def function(f: int, x: Tensor) -> Tensor:
    """``f(x)`` of FP16 words, element by element.

        IDENTITY                          x
        RELU                              +0 for x <= -0, NaN canonical
        EXP, RECIPROCAL, SQRT, RSQRT      as golden.fp16.functions
        SILU                              rne16(x / rne32(1 + exp32(-x)))
        GELU                              rne16(x / rne32(1 + exp32(-z))), w = rne16(x * x),
                                          p = rne16(w * GELU_C1 + GELU_C0), z = rne16(x * p)
        TANH, GELU_ERF, QUICK_GELU        rne16(x * r), r of golden.kllm.format.factor_table

    exp32: FP32 result.
    """
    f, x = Function(f), _words(x)
    if f >= Function.TANH:
        return _tabled(f, x)
    if f == Function.RELU:
        positive = torch.where(x >= FP16.sign_bit, 0, x)
        return torch.where(is_nan(x), FP16.canonical_nan, positive)
    if f == Function.SILU:
        return _sigmoid_product(x, x)
    if f == Function.GELU:
        w = mul(x, x)
        p = fma(w, torch.full_like(x, GELU_C1), torch.full_like(x, GELU_C0))
        return _sigmoid_product(x, mul(x, p))
    if f == Function.EXP:
        return functions.exp(x)
    if f == Function.RECIPROCAL:
        return functions.reciprocal(x)
    if f == Function.SQRT:
        return functions.sqrt(x)
    if f == Function.RSQRT:
        return functions.rsqrt(x)
    return x


def dequantize(
    index: Tensor, outlier: Tensor, x: Tensor, s: Tensor, codebook: Tensor, f: int = 0
) -> Tensor:
    """``f(rne16(s * codebook[index]))``, or ``f(x)`` at outliers: (..., L) words.

    index: (..., L)
    outlier: (..., L) bool
    x: (..., L), unused where not an outlier
    s: (...,) words
    codebook: (2**n,) words

    f runs once per centroid: the table is looked up afterwards. Every NaN of the result is
    canonical: the words leave through the adders of the vector lanes.
    """
    table = function(f, mul(_words(s)[..., None], _words(codebook)))
    y = look_up(index, outlier, function(f, x), table)
    return torch.where(is_nan(y), FP16.canonical_nan, y)


@dataclasses.dataclass
class Slot:
    """An activation slot. index, outlier, words: (L,), words unused where not an outlier."""

    index: Tensor
    outlier: Tensor
    words: Tensor
    scale: int
    integer: bool = False
    rms_reciprocal: int = _ONE32
    mean: int = 0

    @property
    def length(self) -> int:
        return len(self.index)


def activate(f: int, slot: Slot, codebook: Tensor) -> Tensor:
    """``f`` of the dequantized slot: (L,) words."""
    scale = torch.tensor(slot.scale)
    return dequantize(slot.index, slot.outlier, slot.words, scale, codebook, f)


def glu(f: int, slot_a: Slot, codebook_a: Tensor, slot_b: Slot, codebook_b: Tensor) -> Tensor:
    """``rne16(f(dequantized a) * dequantized b)``: (L,) words."""
    factor = activate(Function.IDENTITY, slot_b, codebook_b)
    return mul(activate(f, slot_a, codebook_a), factor)


@dataclasses.dataclass
class FunctionalState:
    """The state that the unit's commands read and change.

    vector: (rows, 16) int64 words, written in place; slots: None where not valid; codebook: tables
    a and b, None before the first FUNCTION_CODEBOOK of each; extra: what else the unit computes.
    """

    vector: Tensor
    slots: list[Slot | None]
    slot_elements: int
    softmax_elements: int
    bits_a: int
    codebook: list[Tensor | None] = dataclasses.field(default_factory=lambda: [None, None])
    extra: FunctionShape = dataclasses.field(default_factory=FunctionShape)

    def read(self, row: int, length: int) -> Tensor:
        """``length`` words from row ``row`` on."""
        return self.vector[row : row + row_count(length)].reshape(-1)[:length].clone()

    def write(self, row: int, words: Tensor) -> None:
        """Whole rows; +0 fills the last row after the words."""
        whole = self.vector.new_zeros(row_count(len(words)) * ROW_ELEMENTS)
        whole[: len(words)] = words
        self.vector[row : row + row_count(len(words))] = whole.reshape(-1, ROW_ELEMENTS)

    def outside(self, row: int, length: int, stride: int = 0, tokens: int = 1) -> bool:
        """A vector of ``tokens`` tokens does not lie within the vector memory."""
        return row + stride * (tokens - 1) + row_count(length) > len(self.vector)


def execute(state: FunctionalState, opcode: int, operands: dict[str, int]) -> CommandStatus:
    """Run one command of Unit.FUNCTION on ``state``; its status. MALFORMED for any other opcode.

    The function checks RANGE, CODEBOOK_MISSING and SLOT_MISMATCH in this order. The first found is
    the status, and nothing is written. A function or an operation that the unit lacks is RANGE.
    Rows of SOFTMAX without a result give NONFINITE and do not change their destination; the other
    rows are written. Tokens run in order. A source may be the destination, row by row the same one.
    Where they overlap in another way, hardware may differ.
    """
    o = operands
    length, tokens = o.get("length", 1), o.get("tokens", 1)
    read, write, outside = state.read, state.write, state.outside
    is_served = o.get("function", 0) in state.extra.functions
    if not is_served or o.get("op", 0) not in state.extra.operations:
        return CommandStatus.RANGE

    if opcode == Opcode.BINARY:
        vectors = [(o["a"], o["a_stride"]), (o["b"], o["b_stride"]), (o["dst"], o["dst_stride"])]
        if not tokens or not length or any(outside(r, length, s, tokens) for r, s in vectors):
            return CommandStatus.RANGE
        for t in range(tokens):
            a, b, dst = (row + stride * t for row, stride in vectors)
            write(dst, binary(o["op"], read(a, length), read(b, length)))
        return CommandStatus(0)

    if opcode == Opcode.AXPY:
        derived = o["scalar"] == Scalar.NEGATED_MEAN
        if not length or any(outside(o[name], length) for name in ("a", "b", "dst")):
            return CommandStatus.RANGE
        if derived and o["slot"] >= len(state.slots):
            return CommandStatus.RANGE
        scalar = torch.tensor(o["immediate"])
        if derived:
            slot = state.slots[o["slot"]]
            if slot is None:
                return CommandStatus.SLOT_MISMATCH
            scalar = negated_mean(slot.mean, slot.rms_reciprocal)
        write(o["dst"], axpy(scalar, read(o["a"], length), read(o["b"], length)))
        return CommandStatus(0)

    if opcode == Opcode.ROTARY:
        heads, size = o["heads"], o["head_size"]
        if not heads or not size or size % (2 * ROW_ELEMENTS):
            return CommandStatus.RANGE
        if any(outside(o[name], size * heads) for name in ("src", "dst")):
            return CommandStatus.RANGE
        if any(outside(o[name], size // 2) for name in ("cos", "sin")):
            return CommandStatus.RANGE
        x = read(o["src"], heads * size).reshape(heads, size)
        y = rotary(x, read(o["cos"], size // 2), read(o["sin"], size // 2))
        write(o["dst"], y.reshape(-1))
        return CommandStatus(0)

    if opcode == Opcode.SOFTMAX:
        vectors = [(o["src"], o["stride"]), (o["dst"], o["dst_stride"])]
        if not tokens or not 1 <= length <= state.softmax_elements:
            return CommandStatus.RANGE
        if any(outside(r, length, s, tokens) for r, s in vectors):
            return CommandStatus.RANGE
        status = CommandStatus(0)
        for t in range(tokens):
            src, dst = (row + stride * t for row, stride in vectors)
            words, bad = softmax(read(src, length)[None])
            if bad.item():
                status |= CommandStatus.NONFINITE
            else:
                write(dst, words[0])
        return status

    if opcode == Opcode.FUNCTION:
        if not length or outside(o["src"], length) or outside(o["dst"], length):
            return CommandStatus.RANGE
        write(o["dst"], function(o["function"], read(o["src"], length)))
        return CommandStatus(0)

    if opcode == Opcode.FUNCTION_CODEBOOK:
        if outside(o["src"], 1):
            return CommandStatus.RANGE
        state.codebook[o["table"]] = read(o["src"], 1 << state.bits_a)
        return CommandStatus(0)

    if opcode in (Opcode.ACTIVATE, Opcode.GLU):
        names = ["slot"] if opcode == Opcode.ACTIVATE else ["slot_a", "slot_b"]
        if not 1 <= length <= state.slot_elements or outside(o["dst"], length):
            return CommandStatus.RANGE
        if any(o[name] >= len(state.slots) for name in names):
            return CommandStatus.RANGE
        codebooks = [table for table in state.codebook[: len(names)] if table is not None]
        if len(codebooks) != len(names):
            return CommandStatus.CODEBOOK_MISSING
        slots = [slot for slot in (state.slots[o[name]] for name in names) if slot is not None]
        if len(slots) != len(names) or any(s.integer or s.length != length for s in slots):
            return CommandStatus.SLOT_MISMATCH
        if opcode == Opcode.ACTIVATE:
            write(o["dst"], activate(o["function"], slots[0], codebooks[0]))
        else:
            y = glu(o["function"], slots[0], codebooks[0], slots[1], codebooks[1])
            write(o["dst"], y)
        return CommandStatus(0)

    return CommandStatus.MALFORMED
