"""Matrices quantized by QET: training, codes, and the matrix that they give back.

Each stage swaps what is left of the matrix and groups its columns. It gives each group of each row
the nearest entry of the group's codebook. The next stage quantizes the residual, in the order of
the matrix. Source: QET, sections 3.2 and 3.4, Algorithms 1 and 2.

| rounding | what |
|---|---|
| an element of an entry | ``E = rne(low + step * code)``, times ``2**exponent`` without rounding |
| a residual | ``rne(left - 2**exponent * E)``, which the next stage swaps and quantizes |
| the result | ``rne(sum over stages of 2**exponent * E)`` of the exact sum |

rne rounds to the matrix's own format. The sum of FP16 is exact in float64. That of FP32 is rounded
to float64 before.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index import lloyd
from golden.index.format import SCALE_EXPONENT_MAX, SCALE_EXPONENT_MIN
from golden.index.lloyd import Training
from golden.qet.config import FORMATS, QetShape, Stage
from golden.qet.swap import swap, unswap

__all__ = ["QetMatrix", "StageCodes", "quantize", "residual", "seeds_for", "words_of"]

_BATCH = 1 << 22  # elements of the groups that are clustered side by side
_MANY = 512  # entries; more of them begin at random samples, for k-means++ would take minutes
_CHUNK = 1 << 22  # elements of rows that are decoded at a time


@dataclasses.dataclass(frozen=True)
class StageCodes:
    """What one stage stores.

    entries  : (groups, entries, group) codes of ``entry_bits`` bits, or words of the format
    ranges   : (1 or groups, 2) words: low and step; empty where entries are words
    exponent : of the scale of all entries of the stage
    codes    : (rows, groups) int64, groups in the order of the parts
    maps     : by level, as golden.qet.swap.swap gives them
    """

    stage: Stage
    entries: Tensor
    ranges: Tensor
    exponent: int
    codes: Tensor
    maps: list[Tensor]

    def entry_words(self, shape: QetShape) -> Tensor:
        """``E``: (groups, entries, group) words, without the exponent."""
        if not shape.entry_bits:
            return self.entries
        format = FORMATS[shape.element_bits]
        low, step = float_from_bits(self.ranges, format).unbind(1)
        return bits_from_float(_affine(low, step, self.entries), format)

    def values(self, shape: QetShape) -> Tensor:
        """``2**exponent * E``: (groups, entries, group) float64."""
        words = self.entry_words(shape)
        return float_from_bits(words, FORMATS[shape.element_bits]) * 2.0**self.exponent

    def decoded(self, values: Tensor, rows: slice) -> Tensor:
        """The entries of some rows in the order of the matrix: (rows, padded) float64."""
        codes = self.codes[rows]
        group = torch.arange(codes.shape[1], device=codes.device)
        parts = values[group, codes].flatten(1).unflatten(1, (self.stage.parts, -1))
        return unswap(parts, [each[rows] for each in self.maps])


@dataclasses.dataclass(frozen=True)
class QetMatrix:
    """A quantized matrix."""

    shape: QetShape
    stages: tuple[StageCodes, ...]

    def dequantized(self) -> Tensor:
        """(rows, columns) words of the matrix's format."""
        shape = self.shape
        values = [stage.values(shape) for stage in self.stages]
        found = torch.empty(shape.rows, shape.columns, dtype=torch.int64, device=values[0].device)
        for rows in _row_chunks(shape):
            parts = [
                stage.decoded(value, rows) for stage, value in zip(self.stages, values, strict=True)
            ]
            words = bits_from_float(torch.stack(parts).sum(0), FORMATS[shape.element_bits])
            found[rows] = words[:, : shape.columns]
        return found

    def real(self) -> Tensor:
        """(rows, columns) float64."""
        return float_from_bits(self.dequantized(), FORMATS[self.shape.element_bits])


def words_of(matrix: Tensor, bits: int) -> Tensor:
    """The words of a matrix in the format of ``bits`` bits.

    ValueError: an element is NaN or infinite, or is so after rounding; the line says where.
    """
    if matrix.ndim != 2 or matrix.numel() == 0:
        raise ValueError(f"matrix must have rows and columns, not the shape {tuple(matrix.shape)}")
    format = FORMATS[bits]
    words = bits_from_float(matrix, format)
    wrong = (words & format.infinity) == format.infinity
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        value = float(matrix[row, column])
        raise ValueError(f"matrix[{row}][{column}] must be a finite FP{bits} number, not {value}")
    return words


def quantize(
    matrix: Tensor,
    shape: QetShape,
    training: Training | None = None,
    progress: Callable[[str], None] | None = None,
) -> QetMatrix:
    """``matrix`` (rows, columns) with codebooks of its own, on its device.

    Stage s is trained with seed ``training.seed + s``, by k-means with every row of weight 1. By
    default it begins with k-means++ up to 512 entries, and at random samples above. Columns that
    fill the last tile repeat the last column. progress: called with a line after each batch.
    ValueError: as ``words_of``, or another size.
    """
    if tuple(matrix.shape) != (shape.rows, shape.columns):
        raise ValueError(f"matrix must be ({shape.rows}, {shape.columns})")
    words = words_of(matrix, shape.element_bits)
    words = torch.nn.functional.pad(words, (0, shape.padded - shape.columns))
    words[:, shape.columns :] = words[:, shape.columns - 1 : shape.columns]
    stages: list[StageCodes] = []
    for number, stage in enumerate(shape.stages):
        own = _training(training, stage, number)
        made = _stage(words, shape, stage, own, functools.partial(_say, progress, number))
        stages.append(made)
        if number + 1 < len(shape.stages):
            words = residual(words, made, shape)
    return QetMatrix(shape, tuple(stages))


def residual(words: Tensor, made: StageCodes, shape: QetShape) -> Tensor:
    """``rne(word - 2**exponent * E)``: what a stage leaves of (rows, padded) words."""
    format = FORMATS[shape.element_bits]
    values, left = made.values(shape), torch.empty_like(words)
    for rows in _row_chunks(shape):
        rest = float_from_bits(words[rows], format) - made.decoded(values, rows)
        left[rows] = bits_from_float(rest, format)
    return left


def _say(progress: Callable[[str], None] | None, number: int, line: str) -> None:
    if progress is not None:
        progress(f"stage {number}: {line}")


def seeds_for(entries: int) -> str:
    """Where k-means of so many entries begins: ``Training.seeds``."""
    return "plus_plus" if entries <= _MANY else "random"


def _training(training: Training | None, stage: Stage, number: int) -> Training:
    training = training or Training(seeds=seeds_for(stage.entries), few=True)
    return dataclasses.replace(training, seed=training.seed + number)


def _stage(
    words: Tensor,
    shape: QetShape,
    stage: Stage,
    training: Training,
    progress: Callable[[str], None],
) -> StageCodes:
    """Swap, cluster, quantize the codebooks, and take the nearest of the entries as stored."""
    parts, maps = swap(words, stage.levels, shape.element_bits)
    groups = parts.flatten(1).unflatten(1, (-1, shape.group)).transpose(0, 1)  # (groups, n, group)
    del parts
    books = []
    for some in _group_batches(shape):
        samples = float_from_bits(groups[some], FORMATS[shape.element_bits]).float()
        books.append(lloyd.kmeans(samples, stage.entries, None, training).centroids)
        progress(f"codebooks {some.stop} of {shape.groups}")
    entries, ranges, exponent = _stored(torch.cat(books).double(), shape)
    codes = torch.empty(shape.rows, shape.groups, dtype=torch.int64, device=words.device)
    made = StageCodes(stage, entries, ranges, exponent, codes, maps)
    values = made.values(shape).float()
    for some in _group_batches(shape):
        samples = float_from_bits(groups[some], FORMATS[shape.element_bits]).float()
        codes[:, some] = lloyd.assign(samples, values[some]).T
    return made


def _stored(books: Tensor, shape: QetShape) -> tuple[Tensor, Tensor, int]:
    """(entries, ranges, exponent) of real codebooks (groups, entries, group).

    ``low`` is the smallest element of the range, and ``step`` the width by ``2**entry_bits - 1``.
    exponent: 0 for FP32. For FP16 the smallest of -8..15 with which no entry exceeds 1.
    """
    format = FORMATS[shape.element_bits]
    if not shape.entry_bits:
        none = torch.empty(0, 2, dtype=torch.int64, device=books.device)
        return bits_from_float(books, format), none, 0
    exponents = (
        range(1) if shape.element_bits == 32 else range(SCALE_EXPONENT_MIN, SCALE_EXPONENT_MAX + 1)
    )
    most = (1 << shape.entry_bits) - 1
    for exponent in exponents:
        scaled = books * 2.0**-exponent
        flat = scaled.flatten(1) if shape.by_group else scaled.flatten()[None]
        least = flat.amin(1)
        low_words = bits_from_float(least, format)
        low = float_from_bits(low_words, format)
        step_words = bits_from_float((flat.amax(1) - low) / most, format)
        step = float_from_bits(step_words, format)
        divisor = torch.where(step > 0, step, 1.0)[:, None, None]
        entries = ((scaled - low[:, None, None]) / divisor).round().clamp(0, most).long()
        words = bits_from_float(_affine(low, step, entries), format)
        fits = bool((float_from_bits(words, format).abs() <= 1).all())
        if fits or shape.element_bits == 32:
            return entries, torch.stack((low_words, step_words), 1), exponent
    limit = 1 << SCALE_EXPONENT_MAX
    raise ConfigError(
        f"codebook must lie in -{limit}..{limit}, not reach {float(books.abs().max()):g}"
    )


def _affine(low: Tensor, step: Tensor, codes: Tensor) -> Tensor:
    """``low + step * codes`` in float64 with (1 or groups,) ranges and (groups, ...) codes."""
    return low[:, None, None] + step[:, None, None] * codes.double()


def _group_batches(shape: QetShape) -> Iterator[slice]:
    """Groups that are clustered together: the same for every device, as the seeds depend on it."""
    step = max(1, _BATCH // (shape.rows * shape.group))
    for first in range(0, shape.groups, step):
        yield slice(first, min(first + step, shape.groups))


def _row_chunks(shape: QetShape) -> Iterator[slice]:
    step = max(1, _CHUNK // shape.padded)
    for first in range(0, shape.rows, step):
        yield slice(first, min(first + step, shape.rows))
