"""Tiles of a matrix: what the blocks of QET take row by row. Pure Python.

A tile is ``group << levels`` neighbouring columns, with the levels of the stage that has most. Its
networks and codebooks serve no other columns. All rows of a tile come before those of the next.
Source: QET, sections 3.2 and 3.4; decision 0223.
"""

import dataclasses
import enum

from golden.config import Config
from golden.qet.config import GRID, QetShape, Stage, swap_bits

__all__ = ["LIMIT", "RowFault", "TileShape"]

LIMIT = 1 << GRID + 1  # of the magnitude of an element of an entry, on the grid 2**-24
COLUMNS_MAX = 1024
_FP16_BITS = 16


class RowFault(enum.IntFlag):
    """Why a row has no meaning."""

    CODE = 1  # a code is beyond its codebook
    UNLOADED = 2  # no codebooks are in use
    WRONG = 4  # the row came with the mark that it is wrong
    NONFINITE = 8  # an element is NaN or infinite


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileShape(Config):
    """Tiles of FP16 matrices that a block takes, with the largest codebooks."""

    group: int = 8  # columns of a codebook, 1..256
    stages: tuple[Stage, ...] = (Stage(levels=3, entries=256), Stage(levels=0, entries=64))
    entry_bits: int = 10  # of an element of an entry, 2..16; 0: FP16 words

    def __post_init__(self) -> None:
        if not isinstance(self.stages, tuple) or not all(
            isinstance(stage, Stage) for stage in self.stages
        ):
            self._refuse("stages", "a tuple of Stage")
        _ = self.whole  # the ranges that a matrix has, too
        if self.columns > COLUMNS_MAX:
            self._refuse("group", f"of at most {COLUMNS_MAX} columns of a tile")
        if min(stage.entries for stage in self.stages) < 2:
            self._refuse("stages", "of 2 or more entries")

    @property
    def whole(self) -> QetShape:
        """A matrix of one tile and one row."""
        return QetShape(
            rows=1, columns=1, element_bits=16, group=self.group, stages=self.stages,
            entry_bits=self.entry_bits,
        )  # fmt: skip

    @property
    def columns(self) -> int:
        return self.whole.tile

    @property
    def groups(self) -> int:
        """Codebooks of each stage, and codes of a row."""
        return self.columns // self.group

    @property
    def element_bits(self) -> int:
        """Of an element of an entry as it is stored."""
        return self.entry_bits or _FP16_BITS

    @property
    def entry_word_bits(self) -> int:
        """The entries of the same number of all groups."""
        return self.columns * self.element_bits

    @property
    def row_bits(self) -> int:
        """Maps and codes of a row, stage by stage."""
        return sum(
            stage.code_bits * self.groups + self.networks(stage) * swap_bits(stage.levels)
            for stage in self.stages
        )

    @property
    def step_bits(self) -> int:
        """Of a step: the width of -2..2 in ``2**entry_bits - 1`` parts, rounded up; 0: none."""
        if not self.entry_bits:
            return 0
        return (-(-2 * LIMIT // ((1 << self.entry_bits) - 1))).bit_length()

    def networks(self, stage: Stage) -> int:
        return self.columns >> stage.levels
