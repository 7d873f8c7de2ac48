"""The rivals of QET at equal memory: rounding to nearest, PQ, OPQ and LOPQ.

The variants of the paper (section 4.1) are shapes of ``golden.qet.matrix``:

| name | levels | bits of an element of an entry |
|---|---|---|
| product quantization | 0 | those of the matrix |
| Vanilla | 3 | those of the matrix |
| Vanilla_RQO | 3, then 0 for the residual | those of the matrix |
| Vanilla_CQO | 3 | 10 |
| QET | 3, then 0 for the residual | 10 |

OPQ rotates the rows before product quantization. LOPQ does so with what is left of each of a few
cells. Their rotations are stored, so their bits count.
Source: Ge et al. 2013, "Optimized Product Quantization", and Kalantidis and Avrithis 2014.
"""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from golden.config import Config, ConfigError, Range, bounded, declared
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index import lloyd
from golden.index.lloyd import Training
from golden.qet.config import ELEMENT_BITS, ENTRIES_MAX, FORMATS, Budget, QetShape, Stage
from golden.qet.matrix import seeds_for

SPANS = ("matrix", "row", "group")
_SPAN_GROUP = 64  # elements of a row that share a range
_TWO = (Fraction(7, 10), Fraction(3, 10))
ROTATED: Mapping[str, int] = {"OPQ": 1, "LOPQ": 2}  # cells


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant(Config):
    """A method that is a shape: levels of each stage, and bits of an element of an entry."""

    levels: tuple[int, ...]
    entry_bits: int
    shares: tuple[Fraction, ...] = (Fraction(1),)

    def shape(self, rows: int, columns: int, bits: int, ratio: Fraction) -> QetShape:
        """Makes the shape with the largest codebooks at ``ratio``. ConfigError: none fits."""
        stages = tuple(Stage(levels=levels) for levels in self.levels)
        asked = QetShape(
            rows=rows,
            columns=columns,
            element_bits=bits,
            stages=stages,
            entry_bits=self.entry_bits,
        )
        return Budget(ratio=ratio, shares=self.shares).solve(asked)


VARIANTS: Mapping[str, Variant] = {
    "PQ": Variant(levels=(0,), entry_bits=0),
    "Vanilla": Variant(levels=(3,), entry_bits=0),
    "RQO": Variant(levels=(3, 0), entry_bits=0, shares=_TWO),
    "CQO": Variant(levels=(3,), entry_bits=10),
    "QET": Variant(levels=(3, 0), entry_bits=10, shares=_TWO),
}


@dataclasses.dataclass(frozen=True)
class Rounded:
    """matrix: float64; bits: of an element; stored_bits: with the ranges."""

    matrix: Tensor
    bits: int
    stored_bits: int


def round_to_nearest(
    matrix: Tensor, ratio: Fraction, span: str, element_bits: int, *, on_top: bool = False
) -> Rounded:
    """``low + step * round((x - low) / step)`` with the most bits per element that fit.

    A range takes two elements: the smallest and the largest one of the whole matrix, of a row, or
    of 64 neighbours of a row. At a ratio that is a power of two they cost each element a bit.
    on_top: the elements alone have the memory of the ratio, and ``stored_bits`` is above it.
    ConfigError: not even one bit per element fits.
    """
    rows, columns = matrix.shape
    exact = matrix.double()
    if span == "matrix":
        parts = exact.flatten()[None, None]
    elif span == "row":
        parts = exact[:, None]
    else:
        width = -(-columns // _SPAN_GROUP) * _SPAN_GROUP
        last = exact[:, -1:].expand(-1, width - columns)
        parts = torch.cat((exact, last), 1).unflatten(1, (-1, _SPAN_GROUP))
    ranges = parts.shape[0] * parts.shape[1] * 2 * element_bits
    elements = rows * columns
    room = Fraction(elements * element_bits) / ratio - (0 if on_top else ranges)
    bits = int(room / elements)
    if bits < 1:
        beside = "" if on_top else " beside the ranges"
        raise ConfigError(f"ratio must leave one bit per element{beside}, not {ratio}")
    bits = min(bits, element_bits)
    low, high = parts.amin(2, keepdim=True), parts.amax(2, keepdim=True)
    step = ((high - low) / (2**bits - 1)).clamp(min=1e-300)
    found = (low + step * ((parts - low) / step).round()).flatten(1)
    return Rounded(found.reshape(rows, -1)[:, :columns], bits, elements * bits + ranges)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotatedShape(Config):
    """Product quantization of rotated rows; one cell is OPQ, more are LOPQ.

    Each cell has a rotation and codebooks of its own, and of LOPQ a centroid. A row of LOPQ keeps
    the number of its cell. All stored numbers have ``element_bits``.
    """

    rows: int = dataclasses.field(metadata=declared(Range(1, 1 << 24)))
    columns: int = dataclasses.field(metadata=declared(Range(1, 1 << 16)))
    element_bits: int = 32
    group: int = bounded(8, 1, 256)
    entries: int = bounded(256, 1, ENTRIES_MAX)
    cells: int = 1

    def __post_init__(self) -> None:
        if self.element_bits not in ELEMENT_BITS:
            self._refuse("element_bits", "16 or 32")
        self._check_range("cells", 1, self.rows)

    @property
    def padded(self) -> int:
        return -(-self.columns // self.group) * self.group

    @property
    def groups(self) -> int:
        return self.padded // self.group

    @property
    def rotation_bits(self) -> int:
        """Bits of the rotations, padded x padded for each cell."""
        return self.cells * self.padded**2 * self.element_bits

    @property
    def cell_bits(self) -> int:
        """Bits of centroids and of the rows' cells; none of a single cell."""
        if self.cells == 1:
            return 0
        centroids = self.cells * self.padded * self.element_bits
        return centroids + self.rows * (self.cells - 1).bit_length()

    @property
    def stored_bits(self) -> int:
        codes = self.rows * self.groups * (self.entries - 1).bit_length()
        books = self.cells * self.entries * self.padded * self.element_bits
        return self.rotation_bits + self.cell_bits + codes + books

    def solve(self, ratio: Fraction) -> "RotatedShape":
        """Finds the most entries at ``ratio``. ConfigError, one line: not even one entry fits."""
        elements = self.rows * self.columns
        budget = elements * self.element_bits / ratio

        def at(entries: int) -> RotatedShape:
            return dataclasses.replace(self, entries=entries)

        if at(1).stored_bits > budget:
            most = Fraction(elements * self.element_bits, at(1).stored_bits)
            raise ConfigError(
                f"ratio must be at most {float(int(most * 100) / 100):g}, not {float(ratio):g}: "
                f"rotations take {self.rotation_bits / elements:.4g} of "
                f"{float(budget / elements):.4g} bits per element"
            )
        low, high = 1, min(self.rows, ENTRIES_MAX)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if at(middle).stored_bits <= budget else (low, middle - 1)
        return at(low)


@dataclasses.dataclass(frozen=True)
class Rotated:
    """A restored matrix, float64 values of the format.

    rotations: (cells, padded, padded) float64, orthogonal but for the rounding of what is stored.
    """

    matrix: Tensor
    shape: RotatedShape
    rotations: Tensor


def rotate(
    matrix: Tensor, shape: RotatedShape, training: Training | None = None, moves: int = 25
) -> Rotated:
    """``matrix`` (rows, columns) after OPQ, or LOPQ of several cells.

    moves: of each rotation. A move sets the centroids to their means. Then it takes the orthogonal
    matrix that brings the rows nearest to their entries (Ge et al., section 4.1). The first
    rotation is the parametric one: principal axes, so given to the groups that the
    products of their variances are alike (section 4.2). ValueError: another size.
    """
    if tuple(matrix.shape) != (shape.rows, shape.columns):
        raise ValueError(f"matrix must be ({shape.rows}, {shape.columns})")
    training = training or Training(seeds=seeds_for(shape.entries), few=True)
    fill = shape.padded - shape.columns
    x = torch.cat((matrix.double(), matrix[:, -1:].double().expand(-1, fill)), 1)
    cell = torch.zeros(shape.rows, dtype=torch.int64)
    centroids = x.new_zeros(1, shape.padded)
    if shape.cells > 1:
        found = lloyd.kmeans(x[None].float(), shape.cells, None, training).centroids
        cell = lloyd.assign(x[None].float(), found)[0]
        centroids = _kept(found[0], shape)
    restored, rotations = torch.empty_like(x), []
    for number, centroid in enumerate(centroids):
        own = cell == number
        rotation = torch.eye(shape.padded, dtype=torch.float64)
        if bool(own.any()):
            left, rotation = _rotated(x[own] - centroid, shape, training, moves)
            restored[own] = left + centroid
        rotations.append(rotation)
    return Rotated(_kept(restored[:, : shape.columns], shape), shape, torch.stack(rotations))


def _rotated(
    x: Tensor, shape: RotatedShape, training: Training, moves: int
) -> tuple[Tensor, Tensor]:
    """(restored rows, rotation) of the rows of a cell."""
    rotation = _parametric(x, shape)

    def parts(rotation: Tensor) -> Tensor:
        """(groups, rows, group)"""
        return (x @ rotation).unflatten(1, (-1, shape.group)).transpose(0, 1)

    books = lloyd.kmeans(parts(rotation).float(), shape.entries, None, training).centroids.double()
    for _ in range(moves):
        samples = parts(rotation)
        codes = lloyd.assign(samples, books)[..., None].expand_as(samples)
        count = torch.zeros_like(books).scatter_add_(1, codes, torch.ones_like(samples))
        total = torch.zeros_like(books).scatter_add_(1, codes, samples)
        books = torch.where(count > 0, total / count.clamp(min=1), books)
        entries = books.gather(1, codes).transpose(0, 1).flatten(1)
        u, _, v = torch.linalg.svd(x.T @ entries)
        rotation = u @ v
    rotation, books = _kept(rotation, shape), _kept(books, shape)
    codes = lloyd.assign(parts(rotation), books)[..., None].expand(-1, -1, shape.group)
    return books.gather(1, codes).transpose(0, 1).flatten(1) @ rotation.T, rotation


def _parametric(x: Tensor, shape: RotatedShape) -> Tensor:
    """Principal axes by falling variance, each to the group of least product that has room."""
    centred = x - x.mean(0)
    variance, axes = torch.linalg.eigh(centred.T @ centred / len(x))
    floor = 1e-12 * float(variance.amax().clamp(min=1e-300))
    logs = variance.clamp(min=floor).log()
    logs = logs - logs.amin()  # above 0, so a product grows with each axis
    chosen: list[list[int]] = [[] for _ in range(shape.groups)]
    product = [0.0] * shape.groups
    for axis in reversed(range(shape.padded)):
        free = [group for group in range(shape.groups) if len(chosen[group]) < shape.group]
        group = min(free, key=product.__getitem__)
        chosen[group].append(axis)
        product[group] += float(logs[axis])
    return axes[:, [axis for each in chosen for axis in each]]


def _kept(values: Tensor, shape: RotatedShape) -> Tensor:
    """Rounds to numbers of the matrix's format, in float64."""
    format = FORMATS[shape.element_bits]
    return float_from_bits(bits_from_float(values.double(), format), format)
