"""Matrices cut into tiles, whose rows the blocks of QET take (golden.qet.config.TileShape)."""

import dataclasses

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.qet.config import QetShape
from golden.qet.matrix import QetMatrix, StageCodes
from golden.qet.swap import words_of_maps


@dataclasses.dataclass(frozen=True)
class TileStage:
    """One stage of a tile.

    entries : (groups, entries, group) codes of ``entry_bits`` bits, or FP16 words
    low, step : integers of the range; 0 where entries are words
    codes : (rows, groups), of each part its groups
    maps : (rows, networks, bits) bool, as ``words_of_maps`` has them
    """

    entries: Tensor
    low: int
    step: int
    codes: Tensor
    maps: Tensor


@dataclasses.dataclass(frozen=True)
class Tile:
    """Columns ``first`` to ``first + columns - 1`` of a matrix; words: (rows, columns) of FP16."""

    first: int
    stages: tuple[TileStage, ...]
    words: Tensor


def tiles_of(matrix: QetMatrix) -> list[Tile]:
    """The tiles of a matrix of FP16 in their order.

    ConfigError: FP32, or a range for each codebook, which no block has.
    """
    shape = matrix.shape
    if shape.element_bits != 16:
        raise ConfigError(f"element_bits must be 16 for tiles, not {shape.element_bits}")
    if shape.by_group:
        raise ConfigError("by_group must be False for tiles: their blocks have a range per stage")
    parts = [_stage_tiles(stage, shape) for stage in matrix.stages]
    words = matrix.words().split(shape.tile, 1)
    return [
        Tile(number * shape.tile, tuple(part[number] for part in parts), each)
        for number, each in enumerate(words)
    ]


def _stage_tiles(stage: StageCodes, shape: QetShape) -> list[TileStage]:
    parts, tiles = stage.stage.parts, shape.tiles
    order = torch.arange(shape.groups).reshape(parts, tiles, -1).transpose(0, 1).flatten(1)
    maps = words_of_maps(stage.maps, shape.rows, shape.padded).unflatten(1, (tiles, -1))
    low, step = stage.ranges[0].tolist() if shape.entry_bits else (0, 0)
    return [
        TileStage(stage.entries[groups], low, step, stage.codes[:, groups], maps[:, number])
        for number, groups in enumerate(order)
    ]
