"""Shapes of quantized matrices: refused values, tiles, and the bits of the named ones."""

import pytest

from golden.config import ConfigError
from golden.vqllm.config import NAMED, MatrixShape, VqShape


@pytest.mark.parametrize(
    ("name", "rows", "columns", "bits"),
    [
        ("aqlm3", 1536, 576, 4.19),
        ("gptvq2", 1536, 576, 2.33),
        ("aqlm3", 11008, 4096, 3.02),
        ("gptvq2", 11008, 4096, 2.25),
    ],
)
def test_bits_per_element(name, rows, columns, bits):
    """Codes and codebooks, counted by hand."""
    shape = MatrixShape(rows=rows, columns=columns, vq=NAMED[name])
    assert round(shape.bits_per_element, 2) == bits


@pytest.mark.parametrize("name", NAMED)
def test_tiles_cover_the_matrix_once(name):
    shape = MatrixShape(rows=600, columns=584, vq=NAMED[name])
    seen = [[0] * shape.vectors for _ in range(shape.rows)]
    for tile in shape.tiles:
        for row in seen[tile.rows]:
            row[tile.vectors] = [each + 1 for each in row[tile.vectors]]
    assert len(shape.tiles) == shape.grid[0] * shape.grid[1]
    assert all(row == [1] * shape.vectors for row in seen)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"entries": 96}, "VqShape.entries must be a power of two in 4..65536, not 96"),
        ({"tile_columns": 12}, "VqShape.tile_columns must be a multiple of size = 8, not 12"),
    ],
)
def test_refused_shapes(fields, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        VqShape(**fields)


def test_refused_matrix():
    message = "MatrixShape.columns must be a multiple of vq.size = 8, not 20"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        MatrixShape(rows=4, columns=20)
