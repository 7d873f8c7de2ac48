"""The phases of the functional unit: rows read, lanes, rows written.

Words are int64 tensors of bit patterns: FP16, and FP32 where a docstring says so. Rounding is to
nearest even.
``golden.kllm.functional.execute`` is the whole unit.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from golden.attention.softmax import difference
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import is_nan, mul
from golden.index.codebook import look_up
from golden.kllm.format import Operation
from golden.kllm.functional import axpy, binary, function, rotary
from golden.kllm.isa import ROW_ELEMENTS, Binary

_BINARY = {
    Operation.PRODUCT: Binary.MULTIPLY,
    Operation.MINIMUM: Binary.MINIMUM,
    Operation.MAXIMUM: Binary.MAXIMUM,
}


def walk_rows(
    first: int, second: int, stride: int, steps: int, tokens: int, pair: bool
) -> list[int]:
    """Rows of ``tokens`` tokens of ``steps`` steps, in the order in which they are visited.

    row(t, k) = first + k + t * stride. In pairs second + k + t * stride follows each of them.
    """
    starts = (first, second) if pair else (first,)
    return [
        start + k + t * stride & 0xFFFF
        for t in range(tokens)
        for k in range(steps)
        for start in starts
    ]


def lanes(
    operation: int, a: Tensor, b: Tensor | None = None, scalar: int = 0, scale: int = 0
) -> Tensor:
    """Computes each Operation on words ``a`` and ``b``, of any shape; NaN is canonical.

        COPY rne16(a), SUM rne16(scalar * a + b), PRODUCT rne16(a * b)
        DIFFERENCE rne16(a - scalar), SCALE rne16(a * scale) with an FP32 scale
        MINIMUM, MAXIMUM of a and b
        ROTATE of (2, n) rows: rne16(a0 b0 - a1 b1), rne16(a1 b0 + a0 b1)

    SCORE and ELEMENT give ``a`` itself.
    """
    if operation == Operation.COPY:
        return torch.where(is_nan(a), FP16.canonical_nan, a)
    if operation == Operation.DIFFERENCE:
        return difference(a[..., None], torch.tensor(scalar).expand(a.shape))[..., 0]
    if operation == Operation.SCALE:
        return mul(a, torch.tensor(scale), FP16, FP32, FP16)
    if operation in (Operation.SCORE, Operation.ELEMENT):
        return a
    if b is None:
        raise ValueError(f"{Operation(operation).name} needs words b")
    if operation == Operation.SUM:
        return axpy(scalar, a, b)
    if operation in _BINARY:
        return binary(_BINARY[Operation(operation)], a, b)
    return rotary(a.reshape(-1), b[0], b[1]).reshape(a.shape)


def result_rows(words: Sequence[Tensor], pair: bool = False) -> Tensor:
    """Rows of 16 words of ``words``, one tensor per token: +0 after the last of each.

    In pairs a token is whole rows already.
    """
    rows = []
    for token in words:
        padded = token.new_zeros(-(-len(token) // ROW_ELEMENTS) * ROW_ELEMENTS)
        padded[: len(token)] = token
        assert not pair or len(padded) == len(token)
        rows.append(padded.reshape(-1, ROW_ELEMENTS))
    return torch.cat(rows)


def fetched(memory: Sequence[Sequence[int]], slots: Sequence[int], counts: Sequence[int]) -> list:
    """The first ``counts[k]`` words of slot ``slots[k]``, per k."""
    return [list(memory[slot][:count]) for slot, count in zip(slots, counts, strict=True)]


def slot_rows(
    index: Tensor, outlier: Tensor, x: Tensor, scale: int, codebook: Tensor, f: int
) -> Tensor:
    """``f(rne16(scale * codebook[index]))``, or ``f(x)`` at outliers: (L,) words.

    f runs once per centroid. IDENTITY keeps each NaN.
    """
    table = function(f, mul(torch.full_like(codebook, scale), codebook))
    return look_up(index, outlier, function(f, x), table)
