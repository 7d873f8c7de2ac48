"""Matrices quantized by QET: training, codes, and the matrix that they give back.

Each stage swaps what is left of the matrix and groups its columns. It gives each group of each row
the nearest entry of the group's codebook. The next stage quantizes the residual, in the order of
the matrix. Source: QET, sections 3.2 and 3.4, Algorithms 1 and 2.

A matrix has one ``exponent``: no element exceeds ``2**exponent``. Entries are fixed-point numbers.

| what | value | rounding |
|---|---|---|
| an element x | ``X * 2**(exponent - 24)`` | X drops what lies below its last bit |
| an element of an entry | ``E = low + step * code``, integers | none |
| its word, with ``entry_bits`` 0 | a multiple of ``2**-24`` | FP32 drops what lies below |
| a code | the least ``sum of (X - E)**2`` of a group, the first of equal ones | none |
| a residual | ``rne(2**(exponent - 24) * (X - E))``, the largest number for an infinity | one |
| the result | ``2**exponent * rne(2**-24 * sum over stages of E)`` | one |

rne rounds to the matrix's own format. E lies in -2..2, as an integer -2**25..2**25. So all sums are
exact, in hardware and in float64. Scaling the result rounds where it is subnormal or too large.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index import lloyd
from golden.index.lloyd import Training
from golden.qet.config import FORMATS, GRID, LIMIT, QetShape, Stage
from golden.qet.nearest import nearest
from golden.qet.swap import swap, unswap

_BATCH = 1 << 22  # elements of the groups that are clustered side by side
_MANY = 512  # entries; more of them begin at random samples, for k-means++ would take minutes
_CHUNK = 1 << 22  # elements of rows that are decoded at a time
_X_MAX = (1 << 26) - 1  # of |X|: given codebooks may be those of smaller elements


@dataclasses.dataclass(frozen=True)
class StageCodes:
    """The words that one stage stores.

    entries : (groups, entries, group) codes of ``entry_bits`` bits, or words of the format
    ranges  : (1 or groups, 2) integers: low and step; empty where entries are words
    codes   : (rows, groups) int64, groups in the order of the parts
    maps    : by level, as golden.qet.swap.swap gives them
    """

    stage: Stage
    entries: Tensor
    ranges: Tensor
    codes: Tensor
    maps: list[Tensor]

    def values(self, shape: QetShape) -> Tensor:
        """``E``: (groups, entries, group) int64 on the grid 2**-24."""
        if not shape.entry_bits:
            real = _real(self.entries, shape.element_bits)
            return (real * 2.0**GRID).trunc().long()
        low, step = self.ranges.unbind(1)
        return low[:, None, None] + step[:, None, None] * self.entries

    def decoded(self, values: Tensor, rows: slice) -> Tensor:
        """The entries of some rows in the order of the matrix: (rows, padded)."""
        codes = self.codes[rows]
        group = torch.arange(codes.shape[1], device=codes.device)
        parts = values[group, codes].flatten(1).unflatten(1, (self.stage.parts, -1))
        return unswap(parts, [each[rows] for each in self.maps])


@dataclasses.dataclass(frozen=True)
class QetMatrix:
    """A quantized matrix; exponent: log2 of the scale of its entries."""

    shape: QetShape
    stages: tuple[StageCodes, ...]
    exponent: int

    def words(self) -> Tensor:
        """(rows, padded) words of the matrix's format, without the exponent."""
        shape = self.shape
        values = [stage.values(shape) for stage in self.stages]
        found = torch.empty(shape.rows, shape.padded, dtype=torch.int64, device=values[0].device)
        for rows in _row_chunks(shape):
            parts = [
                stage.decoded(value, rows) for stage, value in zip(self.stages, values, strict=True)
            ]
            total = torch.stack(parts).sum(0).double() * 2.0**-GRID
            found[rows] = _rne(total, shape.element_bits)
        return found

    def dequantized(self) -> Tensor:
        """(rows, columns) words of the matrix's format."""
        bits = self.shape.element_bits
        real = _real(self.words()[:, : self.shape.columns], bits)
        return _rne(real * 2.0**self.exponent, bits)

    def real(self) -> Tensor:
        """(rows, columns) float64."""
        return _real(self.dequantized(), self.shape.element_bits)


def _rne(values: Tensor, bits: int) -> Tensor:
    """Words of finite float64 values. The processor's own rounding, where it has one, is faster."""
    if bits == 32:
        return values.float().view(torch.int32).long() & 0xFFFFFFFF
    return bits_from_float(values, FORMATS[bits])


def _real(words: Tensor, bits: int) -> Tensor:
    """float64 of words, as ``float_from_bits``."""
    if bits == 32:
        return words.int().view(torch.float32).double()
    return float_from_bits(words, FORMATS[bits])


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
    words = padded_words(matrix, shape)
    exponent = exponent_of(words, shape)
    stages: list[StageCodes] = []
    for number, stage in enumerate(shape.stages):
        own = _training(training, stage, number)
        say = functools.partial(_say, progress, number)
        made = _stage(words, exponent, shape, stage, own, say)
        stages.append(made)
        if number + 1 < len(shape.stages):
            words = residual(words, exponent, made, shape)
    return QetMatrix(shape, tuple(stages), exponent)


def encode(matrix: Tensor, books: QetMatrix) -> QetMatrix:
    """``matrix`` with the codebooks, ranges and exponent of ``books``: its codes and maps.

    Any number of rows. An element beyond ``4 * 2**exponent`` counts as the largest below.
    ValueError: as ``words_of``, or other columns.
    """
    shape = dataclasses.replace(books.shape, rows=max(1, matrix.shape[0]))
    words = padded_words(matrix, shape)
    stages: list[StageCodes] = []
    for book in books.stages:
        parts, maps = swap(words, book.stage.levels, shape.element_bits)
        codes = torch.empty(shape.rows, shape.groups, dtype=torch.int64, device=words.device)
        made = dataclasses.replace(book, codes=codes, maps=maps)
        _assign(parts, books.exponent, made, shape)
        stages.append(made)
        if len(stages) < len(books.stages):
            words = residual(words, books.exponent, made, shape)
    return QetMatrix(shape, tuple(stages), books.exponent)


def padded_words(matrix: Tensor, shape: QetShape) -> Tensor:
    """(rows, padded) words. ValueError: as ``words_of``, or another size."""
    if tuple(matrix.shape) != (shape.rows, shape.columns):
        raise ValueError(f"matrix must be ({shape.rows}, {shape.columns})")
    words = words_of(matrix, shape.element_bits)
    words = torch.nn.functional.pad(words, (0, shape.padded - shape.columns))
    words[:, shape.columns :] = words[:, shape.columns - 1 : shape.columns]
    return words


def exponent_of(words: Tensor, shape: QetShape) -> int:
    """The smallest with which no element exceeds ``2**exponent``, within the range of the format.

    FP16: -8..15. So 65504 is 1.999. FP32: -126..127.
    """
    most = float(_real(words, shape.element_bits).abs().max())
    fraction, exponent = math.frexp(most)
    least, largest = shape.exponents[0], shape.exponents[-1]
    return min(max(exponent - (fraction == 0.5), least), largest) if most else least


def on_grid(words: Tensor, exponent: int, bits: int) -> Tensor:
    """``X``: int64 of words of ``bits`` bits, with the grid ``2**(exponent - 24)``."""
    real = _real(words, bits) * 2.0 ** (GRID - exponent)
    return real.trunc().clamp(-_X_MAX, _X_MAX).long()


def lost(matrix: Tensor, made: QetMatrix) -> int:
    """Elements that are not 0 and lie below the grid of ``made``, so that they count as 0."""
    bits = made.shape.element_bits
    words = words_of(matrix, bits)
    return int(((on_grid(words, made.exponent, bits) == 0) & (_real(words, bits) != 0)).sum())


def residual(words: Tensor, exponent: int, made: StageCodes, shape: QetShape) -> Tensor:
    """``rne(2**(exponent - 24) * (X - E))``: what a stage leaves of (rows, padded) words.

    An infinity becomes the largest number of its sign.
    """
    format = FORMATS[shape.element_bits]
    values, left = made.values(shape), torch.empty_like(words)
    for rows in _row_chunks(shape):
        rest = on_grid(words[rows], exponent, shape.element_bits) - made.decoded(values, rows)
        rounded = _rne(rest.double() * 2.0 ** (exponent - GRID), shape.element_bits)
        left[rows] = rounded - ((rounded & format.infinity) == format.infinity).long()
    return left


def _say(progress: Callable[[str], None] | None, number: int, line: str) -> None:
    if progress is not None:
        progress(f"stage {number}: {line}")


def seeds_for(entries: int) -> str:
    """Chooses the start of k-means of so many entries: ``Training.seeds``."""
    return "plus_plus" if entries <= _MANY else "random"


def training_for(shape: QetShape, seed: int = 0, iterations: int | None = None) -> Training:
    """k-means for all stages of a shape, which begins as its largest codebook wants."""
    seeds = seeds_for(max(stage.entries for stage in shape.stages))
    training = Training(seed=seed, seeds=seeds, few=True)
    return training if iterations is None else dataclasses.replace(training, iterations=iterations)


def _training(training: Training | None, stage: Stage, number: int) -> Training:
    training = training or Training(seeds=seeds_for(stage.entries), few=True)
    return dataclasses.replace(training, seed=training.seed + number)


def _stage(
    words: Tensor,
    exponent: int,
    shape: QetShape,
    stage: Stage,
    training: Training,
    progress: Callable[[str], None],
) -> StageCodes:
    """Swap, cluster, quantize the codebooks, and take the nearest of the entries as stored."""
    parts, maps = swap(words, stage.levels, shape.element_bits)
    groups = _groups(parts, shape)
    books = []
    for some in _group_batches(shape):
        samples = _real(groups[some], shape.element_bits).float()
        books.append(lloyd.kmeans(samples, stage.entries, None, training).centroids)
        progress(f"codebooks {some.stop} of {shape.groups}")
    entries, ranges = _stored(torch.cat(books).double() * 2.0**-exponent, shape)
    codes = torch.empty(shape.rows, shape.groups, dtype=torch.int64, device=words.device)
    made = StageCodes(stage, entries, ranges, codes, maps)
    _assign(parts, exponent, made, shape)
    return made


def _groups(parts: Tensor, shape: QetShape) -> Tensor:
    """(groups, rows, group) of the words by part."""
    return parts.flatten(1).unflatten(1, (-1, shape.group)).transpose(0, 1)


def _assign(parts: Tensor, exponent: int, made: StageCodes, shape: QetShape) -> None:
    """Set the codes: the nearest entries of the groups of ``parts``."""
    groups, values = _groups(parts, shape), made.values(shape)
    for some in _group_batches(shape):
        x = on_grid(groups[some], exponent, shape.element_bits)
        made.codes[:, some] = nearest(x, values[some]).T


def _stored(books: Tensor, shape: QetShape) -> tuple[Tensor, Tensor]:
    """(entries, ranges) of real codebooks (groups, entries, group), without the exponent.

    ``low`` is the smallest element of the range, rounded down, and ``step`` the width by
    ``2**entry_bits - 1``, rounded up. What lies beyond -2..2 ends there.
    """
    books = books.clamp(-2, 2)
    if not shape.entry_bits:
        none = torch.empty(0, 2, dtype=torch.int64, device=books.device)
        return bits_from_float(books, FORMATS[shape.element_bits]), none
    most = (1 << shape.entry_bits) - 1
    scaled = books * 2.0**GRID
    flat = scaled.flatten(1) if shape.by_group else scaled.flatten()[None]
    low = flat.amin(1).floor().long()
    step = -(-(flat.amax(1).ceil().long() - low) // most)
    at = step.clamp(min=1)
    codes = ((scaled - low[:, None, None]) / at[:, None, None]).round().long()
    highest = ((LIMIT - low) // at).clamp(max=most)  # code whose E is at most 2
    codes = torch.minimum(codes.clamp(min=0), highest[:, None, None])
    return torch.where(step[:, None, None] > 0, codes, 0), torch.stack((low, step), 1)


def _group_batches(shape: QetShape) -> Iterator[slice]:
    """Groups that are clustered together: the same for every device, as the seeds depend on it."""
    step = max(1, _BATCH // (shape.rows * shape.group))
    for first in range(0, shape.groups, step):
        yield slice(first, min(first + step, shape.groups))


def _row_chunks(shape: QetShape) -> Iterator[slice]:
    step = max(1, _CHUNK // shape.padded)
    for first in range(0, shape.rows, step):
        yield slice(first, min(first + step, shape.rows))
