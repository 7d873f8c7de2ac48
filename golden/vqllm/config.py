"""Shapes of vector-quantized matrices that golden, RTL and testbenches share. Pure Python.

VQ<x, y, z> of the paper (Table I) is ``VqShape(size=x, entries=y, stages=z)``.
"""

import dataclasses
import math

from golden.config import Config, Shape

__all__ = ["NAMED", "MatrixShape", "Tile", "VqShape"]

_WORD_BITS = 16  # of an FP16 element of a codebook


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqShape(Shape):
    """Codes of a vector, and which part of a matrix shares a codebook.

    A vector is ``size`` neighbours of a row. Each stage quantizes what the stages before it leave.
    A codebook serves a tile of the matrix, and 0 means that the tile spans it.
    """

    size: int = 8  # x: elements of a vector, 1..16
    entries: int = 256  # y: entries of a codebook, a power of two in 4..65,536
    stages: int = 2  # z: codes of a vector, 1..4; their entries are added
    tile_rows: int = 0  # rows that share the codebooks, 0: all
    tile_columns: int = 0  # columns that share them, a multiple of size, 0: all

    def __post_init__(self) -> None:
        self._check_range("size", 1, 16)
        self._check_range("entries", 4, 1 << 16)
        if self.entries & (self.entries - 1):
            self._refuse("entries", "a power of two in 4..65536")
        self._check_range("stages", 1, 4)
        self._check_range("tile_rows", 0, 1 << 20)
        self._check_range("tile_columns", 0, 1 << 20)
        if self.tile_columns % self.size:
            self._refuse("tile_columns", f"a multiple of size = {self.size}")

    @property
    def code_bits(self) -> int:
        """log2 y: bits of one code."""
        return self.entries.bit_length() - 1

    @property
    def codebook_bits(self) -> int:
        """Bits of the codebooks of one tile."""
        return self.stages * self.entries * self.size * _WORD_BITS


# Table II of the paper. Its codebooks are per tensor (AQLM), per tile of 256 x 256 (GPTVQ), and per
# group of channels of a head (CQ), whose rows are tokens. The last two are the shapes of published
# checkpoints of AQLM. quip4 is not here: it is a lattice, not VQ<8, 65536, 2>.
NAMED: dict[str, VqShape] = {
    "aqlm3": VqShape(entries=4096),
    "gptvq2": VqShape(size=4, stages=1, tile_rows=256, tile_columns=256),
    "cq4": VqShape(size=2, stages=1, tile_columns=2),
    "cq2": VqShape(size=4, stages=1, tile_columns=4),
    "aqlm2x8": VqShape(),
    "aqlm1x16": VqShape(entries=65536, stages=1),
}


@dataclasses.dataclass(frozen=True)
class Tile:
    """Rows and vectors of a matrix that share their codebooks; the last ones may be ragged."""

    rows: slice
    vectors: slice


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixShape(Config):
    """A matrix of ``rows`` outputs and ``columns`` inputs, or of tokens and channels."""

    rows: int
    columns: int  # a multiple of vq.size
    vq: VqShape = dataclasses.field(default_factory=VqShape)

    def __post_init__(self) -> None:
        self._check_shape("vq", VqShape)
        self._check_range("rows", 1, 1 << 20)
        self._check_range("columns", 1, 1 << 20)
        if self.columns % self.vq.size:
            self._refuse("columns", f"a multiple of vq.size = {self.vq.size}")

    @property
    def vectors(self) -> int:
        """Vectors of a row."""
        return self.columns // self.vq.size

    @property
    def tile_rows(self) -> int:
        return min(self.vq.tile_rows or self.rows, self.rows)

    @property
    def tile_vectors(self) -> int:
        return min(self.vq.tile_columns // self.vq.size or self.vectors, self.vectors)

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down the rows and along the columns."""
        return math.ceil(self.rows / self.tile_rows), math.ceil(self.vectors / self.tile_vectors)

    @property
    def tiles(self) -> list[Tile]:
        """All tiles, row of tiles by row of tiles."""
        down, along = self.grid
        return [
            Tile(
                slice(r * self.tile_rows, min((r + 1) * self.tile_rows, self.rows)),
                slice(v * self.tile_vectors, min((v + 1) * self.tile_vectors, self.vectors)),
            )
            for r in range(down)
            for v in range(along)
        ]

    @property
    def code_bits(self) -> int:
        """Bits of all codes."""
        return self.rows * self.vectors * self.vq.stages * self.vq.code_bits

    @property
    def codebook_bits(self) -> int:
        """Bits of all codebooks."""
        return math.prod(self.grid) * self.vq.codebook_bits

    @property
    def bits_per_element(self) -> float:
        """Codes and codebooks; a scale of a row is not counted."""
        return (self.code_bits + self.codebook_bits) / (self.rows * self.columns)
