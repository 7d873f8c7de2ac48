"""RMSNorm of what a matmul gives, by commands that each do something else. Pure Python.

The norm before a matmul costs nothing: QUANTIZE has its statistics, and gamma is in the weights. A
norm after a matmul, or of q and k, is one of FP16 rows. No command scales rows by what it has
measured. So, for vectors x of ``size`` elements:

    squares = rne16(x * x)                      BINARY
    squares = halves added, row on row          BINARY, until each vector has one row of 16 sums
    mean    = 1/size times the sum of the row   MATMUL DIRECT, in all 16 elements of a row
    scale   = rsqrt(rne16(mean + epsilon))      BINARY, FUNCTION
    x       = rne16(rne16(x * scale) * gamma)   BINARY, a row of scales for each row of x

The image of that MATMUL has one index everywhere, that of the largest centroid of the codebook
which the lanes hold. So no packet is loaded. The lanes sum exactly, and round to FP16 once.
"""

import dataclasses
from collections.abc import Iterator

from golden.kllm.assembler import Assembler, Vector
from golden.kllm.isa import ROW_ELEMENTS, Binary, Function, MatmulMode, row_count
from golden.kllm.layer.shape import LayerShape

_MOST = 255  # tokens of a command


@dataclasses.dataclass(frozen=True)
class VectorNorm:
    """linears : whose outputs it normalises; in the vector memory they follow each other

    size : elements of a vector; count : vectors of a token
    held : the last matmul before it, whose codebook the lanes hold
    """

    linears: tuple[str, ...]
    size: int
    count: int
    held: str

    @property
    def elements(self) -> int:
        """Elements of a token."""
        return self.size * self.count


def vector_norms(shape: LayerShape, fused: bool) -> dict[str, VectorNorm]:
    """The norms of a layer that are taken of FP16 rows; fused: q, k and v are one matmul."""
    held = "qkv" if fused else "v"
    size, q, kv = shape.head_size, shape.heads, shape.kv_heads
    made = {}
    if shape.qk_norm == "head":
        made["qk"] = VectorNorm(("q", "k"), size, q + kv, held)
    elif shape.qk_norm == "row":
        made["q"] = VectorNorm(("q",), q * size, 1, held)
        made["k"] = VectorNorm(("k",), kv * size, 1, held)
    if shape.norm_places != "before":
        made |= {name: VectorNorm((name,), shape.hidden, 1, name) for name in ("o", "down")}
    return made


def emit_norm(
    asm: Assembler, x: Vector, norm: VectorNorm, weights: int, epsilon: Vector, gamma: Vector
) -> None:
    """Normalises ``x`` where it is, which holds all vectors of some tokens.

    weights: first word of the image of means; epsilon: one row; gamma: of all vectors of a token
    """
    means = _means(asm, x, norm, weights)
    rows = Vector(means.row, ROW_ELEMENTS, means.tokens, 1)
    for part in _parts(rows):
        asm.binary(op=Binary.ADD, a=part, b=epsilon, dst=part)
    every = Vector(means.row, ROW_ELEMENTS * means.tokens)
    asm.function(function=Function.RSQRT, src=every, dst=every)
    for t in range(x.tokens):
        own = Vector(means.row + t * norm.count, ROW_ELEMENTS, norm.count, 1)
        _scale(asm, x.token(t), norm, own)
    asm.free(means)
    asm.binary(op=Binary.MULTIPLY, a=x, b=gamma, dst=x)


def _means(asm: Assembler, x: Vector, norm: VectorNorm, weights: int) -> Vector:
    """A row for each vector of all tokens, each element the mean square."""
    squares = asm.vector(x.length, x.tokens)
    asm.binary(op=Binary.MULTIPLY, a=x, b=x, dst=squares)
    stride = left = row_count(norm.size)
    every = norm.count * x.tokens
    while left > 1:
        half = -(-left // 2)
        low = Vector(squares.row, ROW_ELEMENTS * (left - half), every, stride)
        for part in _parts(low):
            above = dataclasses.replace(part, row=part.row + half)
            asm.binary(op=Binary.ADD, a=part, b=above, dst=part)
        left = half
    means = asm.vector(ROW_ELEMENTS, every)
    given = _parts(Vector(squares.row, ROW_ELEMENTS, every, stride))
    for src, dst in zip(given, _parts(means), strict=True):
        asm.matmul(weights=weights, dst=dst, length=ROW_ELEMENTS, src=src, mode=MatmulMode.DIRECT)
    asm.free(squares)
    return means


def _scale(asm: Assembler, x: Vector, norm: VectorNorm, scales: Vector) -> None:
    """Multiplies the rows of each vector of a token by its row of ``scales``."""
    rows = row_count(norm.size)
    if rows < norm.count:  # a row of all vectors at a time
        pairs = [
            (Vector(x.row + row, ROW_ELEMENTS, norm.count, rows), scales) for row in range(rows)
        ]
    else:
        pairs = [
            (Vector(x.row + n * rows, ROW_ELEMENTS, rows, 1), scales.token(n))
            for n in range(norm.count)
        ]
    for whole, by in pairs:
        repeated = [by] * -(-whole.tokens // _MOST) if by.tokens == 1 else _parts(by)
        for part, own in zip(_parts(whole), repeated, strict=True):
            asm.binary(op=Binary.MULTIPLY, a=part, b=own, dst=part)


def by_row(asm: Assembler, op: Binary, x: Vector, by: Vector) -> None:
    """``op`` of each row of one vector and the row ``by``.

    Each row is one of a command's tokens, so one row of equal elements serves all.
    """
    rows = Vector(x.row, ROW_ELEMENTS, row_count(x.length), 1)
    for part in _parts(rows):
        asm.binary(op=op, a=part, b=by, dst=part)


def _parts(x: Vector) -> Iterator[Vector]:
    """The tokens of ``x``, as many at a time as a command takes."""
    for first in range(0, x.tokens, _MOST):
        count = min(_MOST, x.tokens - first)
        yield Vector(x.row + first * x.stride, x.length, count, x.stride)
