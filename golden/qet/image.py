"""Matrices as qet_dequant_gemv finds them in memory.

All codebooks come first, tile by tile, and then all rows, tile by tile. Each tile begins with a
word of memory, and zeros fill its last one.

| of a tile | bytes |
|---|---|
| codebooks | for each stage and each number: the entries of all groups, in ``entry_bytes`` |
| rows | for each row: maps and codes of stage 0, then of each next stage, in ``row_bytes`` |

Elements, maps and codes follow each other without gaps, the lowest bits first. Codes have the bits
of the largest codebooks that the block takes. The order is that of ``golden.qet.tiling``.
"""

import dataclasses

import numpy as np

from golden.config import ConfigError
from golden.qet.config import TileShape
from golden.qet.format import ImageShape
from golden.qet.matrix import QetMatrix
from golden.qet.tiling import Tile, tiles_of


@dataclasses.dataclass(frozen=True)
class Image:
    """The bytes from ``base`` on, and the fields of the job that uses them."""

    base: int
    data: np.ndarray
    job: dict[str, int]


def image(matrix: QetMatrix, shape: ImageShape, base: int = 0) -> Image:
    """``matrix`` from address ``base`` on, a multiple of a word.

    ConfigError, one line: FP32, a range for each codebook, other groups, stages or bits of an
    entry than those of ``shape``, or more entries.
    """
    _check(matrix, shape.shape)
    tiles = tiles_of(matrix)
    books = [_whole_words(_books(tile, shape), shape) for tile in tiles]
    rows = [_whole_words(_rows(tile, shape), shape) for tile in tiles]
    job = {
        "books": base,
        "codes": base + sum(map(len, books)),
        "rows": matrix.shape.rows,
        "tiles": len(tiles),
        "exponent": matrix.exponent,
    }
    for number, (stage, made) in enumerate(zip(matrix.shape.stages, tiles[0].stages, strict=True)):
        job |= {f"entries_{number}": stage.entries}
        if shape.shape.entry_bits:
            job |= {f"low_{number}": made.low, f"step_{number}": made.step}
    return Image(base, np.concatenate(books + rows), job)


def _check(matrix: QetMatrix, shape: TileShape) -> None:
    found = matrix.shape
    for name, have, want in (
        ("group", found.group, shape.group),
        ("entry_bits", found.entry_bits, shape.entry_bits),
        ("levels", [s.levels for s in found.stages], [s.levels for s in shape.stages]),
    ):
        if have != want:
            raise ConfigError(f"{name} must be {want} for these tiles, not {have}")
    for number, (stage, most) in enumerate(zip(found.stages, shape.stages, strict=True)):
        if stage.entries > most.entries:
            raise ConfigError(
                f"entries of stage {number} must be at most {most.entries}, not {stage.entries}"
            )


def _books(tile: Tile, shape: ImageShape) -> np.ndarray:
    """(entries of all stages, entry_bytes)."""
    bits = shape.shape.element_bits
    words = [stage.entries.transpose(0, 1).flatten(1).cpu().numpy() for stage in tile.stages]
    return _packed([(np.concatenate(words), bits)], shape.entry_bytes)


def _rows(tile: Tile, shape: ImageShape) -> np.ndarray:
    """(rows, row_bytes)."""
    fields = []
    for stage, made in zip(shape.shape.stages, tile.stages, strict=True):
        fields.append((made.maps.flatten(1).cpu().numpy(), 1))
        fields.append((made.codes.cpu().numpy(), stage.code_bits))
    return _packed(fields, shape.row_bytes)


def _packed(fields: list[tuple[np.ndarray, int]], size: int) -> np.ndarray:
    """(n, size) bytes of (n, count) values of so many bits each."""
    columns = []
    for values, bits in fields:
        places = values[:, :, None].astype(np.int64) >> np.arange(bits) & 1
        columns.append(places.astype(np.uint8).reshape(len(values), -1))
    data = np.packbits(np.concatenate(columns, 1), axis=1, bitorder="little")
    return np.pad(data, ((0, 0), (0, size - data.shape[1])))


def _whole_words(data: np.ndarray, shape: ImageShape) -> np.ndarray:
    return np.pad(data.reshape(-1), (0, -data.size % shape.word_bytes))
