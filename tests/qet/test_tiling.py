"""golden.qet.tiling, TileShape and what an image refuses; test_pack follows every bit of an image.

Shown to fail:

- parts of a stage with fewer levels taken as one group each;
- a tile's maps cut by columns, not by networks;
- a step one bit too narrow.
"""

import dataclasses

import pytest
import torch

from golden.config import ConfigError
from golden.qet.config import LIMIT, QetShape, Stage, TileShape
from golden.qet.format import ImageShape
from golden.qet.image import image
from golden.qet.matrix import QetMatrix, encode, quantize
from golden.qet.pack import shape_of
from golden.qet.tiling import tiles_of

SHAPE = QetShape(
    rows=6, columns=100, element_bits=16, group=4, entry_bits=6,
    stages=(Stage(levels=3, entries=5), Stage(levels=1, entries=3), Stage(levels=0, entries=2)),
)  # fmt: skip


def made(shape=SHAPE):
    generator = torch.Generator().manual_seed(1)
    return quantize(torch.randn(shape.rows, shape.columns, generator=generator).half(), shape)


def test_a_tile_is_a_matrix_of_its_columns():
    """Each tile encoded alone, with its own codebooks, gives its own codes, maps and words."""
    matrix = made()
    for tile in tiles_of(matrix):
        columns = matrix.shape.tile
        alone = dataclasses.replace(matrix.shape, columns=columns)
        stages = [
            dataclasses.replace(each, entries=part.entries)
            for each, part in zip(matrix.stages, tile.stages, strict=True)
        ]
        books = QetMatrix(alone, tuple(stages), matrix.exponent)
        generator = torch.Generator().manual_seed(1)
        whole = torch.randn(6, 100, generator=generator).half()
        padded = torch.cat((whole, whole[:, -1:].expand(-1, 28)), 1)
        again = encode(padded[:, tile.first : tile.first + columns], books)
        (found,) = tiles_of(again)
        assert torch.equal(found.words, tile.words)
        for one, other in zip(found.stages, tile.stages, strict=True):
            assert torch.equal(one.codes, other.codes)
            assert torch.equal(one.maps, other.maps)


@pytest.mark.parametrize("entry_bits", range(2, 17))
def test_a_step_reaches_the_whole_range(entry_bits):
    shape = TileShape(entry_bits=entry_bits)
    step = -(-2 * LIMIT // ((1 << entry_bits) - 1))
    assert step < 1 << shape.step_bits <= 2 * step


def test_sizes_of_the_paper():
    """Three levels and groups of 8: tiles of 64 columns, 8 + 8 codes and 96 map bits."""
    shape = TileShape(stages=(Stage(levels=3, entries=3357), Stage(levels=0, entries=770)))
    assert (shape.columns, shape.groups, shape.row_bits) == (64, 8, 96 + 8 * 12 + 8 * 10)
    assert (shape.entry_word_bits, shape.element_bits) == (640, 10)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"element_bits": 32}, "element_bits must be 16 for tiles, not 32"),
        (
            {"by_group": True},
            "by_group must be False for tiles: their blocks have a range per stage",
        ),
    ],
)
def test_a_matrix_without_tiles_is_refused(wrong, line):
    with pytest.raises(ConfigError) as error:
        tiles_of(made(dataclasses.replace(SHAPE, **wrong)))
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"group": 2}, "group must be 2 for these tiles, not 4"),
        ({"entry_bits": 0}, "entry_bits must be 0 for these tiles, not 6"),
        ({"stages": SHAPE.stages[:2]}, "levels must be [3, 1] for these tiles, not [3, 1, 0]"),
        (
            {"stages": (Stage(levels=3, entries=4), *SHAPE.stages[1:])},
            "entries of stage 0 must be at most 4, not 5",
        ),
    ],
)
def test_an_image_of_other_tiles_is_refused(wrong, line):
    matrix = made()
    shape = dataclasses.replace(shape_of(matrix), **wrong)
    with pytest.raises(ConfigError) as error:
        image(matrix, ImageShape(shape=shape))
    assert str(error.value) == line


def test_an_image_may_have_room_for_more_entries():
    matrix = made()
    more = tuple(dataclasses.replace(stage, entries=9) for stage in SHAPE.stages)
    shape = dataclasses.replace(shape_of(matrix), stages=more)
    assert image(matrix, ImageShape(shape=shape)).job["entries_2"] == 2


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"stages": (Stage(entries=1),)}, "stages must be of 2 or more entries"),
        ({"stages": [Stage()]}, "stages must be a tuple of Stage"),
        (
            {"group": 200, "stages": (Stage(levels=3),)},
            "group must be of at most 1024 columns of a tile, not 200",
        ),
    ],
)
def test_tiles_that_are_refused(wrong, line):
    with pytest.raises(ConfigError) as error:
        TileShape(**wrong)
    assert str(error.value).startswith(f"TileShape.{line}")
