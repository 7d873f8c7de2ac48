"""Access profiles and codebooks in their order, and bounds, against plain counts.

Shown to fail: a rising order; codes left as they were; the overlap over ordered pairs; the bank of
an entry in a register counted.
"""

from collections import Counter

import pytest
import torch

from golden.config import ConfigError
from golden.vqllm.access import (
    AccessProfile,
    hot_overlap,
    hot_shares,
    look_ups,
    of_tile,
    reordered,
)
from golden.vqllm.bounds import EngineShape, bank_cycles, bounds
from golden.vqllm.config import NAMED, MatrixShape
from tests.vqllm.matrices import SHAPES, matrix_of


@pytest.mark.parametrize("name", SHAPES)
def test_reordered_is_the_same_matrix(name):
    matrix = matrix_of(name)
    found = reordered(matrix)
    assert torch.equal(found.dequantized(), matrix.dequantized())
    counts = look_ups(found)
    assert bool((counts.diff(dim=-1) <= 0).all())
    assert torch.equal(counts, look_ups(matrix).sort(dim=-1, descending=True).values)


def test_look_ups_of_some_rows():
    matrix = matrix_of("ragged tiles")
    counts = look_ups(matrix, slice(14, 18))
    expected = Counter()
    for row in range(14, 18):
        for vector in range(9):
            expected[row // 16 * 3 + vector // 4, int(matrix.codes[row, vector, 0])] += 1
    found = {(t, j): int(n) for t, s, j in counts.nonzero().tolist() for n in [counts[t, s, j]]}
    assert found == dict(expected)


def test_profile():
    profile = AccessProfile(torch.tensor([0, 10, 10, 20, 60, 0, 0, 0]))
    assert profile.share(1) == 0.6
    assert profile.share(3) == 0.9
    assert int(profile.above(2.0)) == 1
    assert int(profile.above(3.0)) == 0
    assert profile.below_mean() == 6 / 8
    with pytest.raises(ConfigError, match=r"^hottest must be 1\.\.8, not 9$"):
        profile.share(9)


def test_overlap_of_parts():
    matrix = matrix_of("two stages")
    hot = [
        [
            {j for _, j in sorted((-n, j) for j, n in enumerate(part[0, stage].tolist()))[:4]}
            for stage in range(2)
        ]
        for part in (look_ups(matrix, slice(at, at + 10)) for at in (0, 10, 20))
    ]
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = sum(len(hot[a][s] & hot[b][s]) for a, b in pairs for s in range(2)) / (6 * 4)
    assert hot_overlap(matrix, 10, 4) == pytest.approx(expected)
    with pytest.raises(ConfigError, match=r"^part_rows must be below 24, not 24$"):
        hot_overlap(matrix, 24, 4)
    with pytest.raises(ConfigError, match=r"^codebooks must be of the whole matrix, not of 2 x 3"):
        hot_overlap(matrix_of("ragged tiles"), 10, 4)


def test_shares_of_parts():
    """The hottest entries of a part serve at least as much of it as those of the matrix."""
    matrix = matrix_of("two stages")
    counts = [look_ups(matrix, slice(at, at + 10))[0].tolist() for at in (0, 10, 20)]
    whole = look_ups(matrix)[0].tolist()
    own, shared = [], []
    for stage in range(2):
        hot = sorted(range(32), key=lambda j, s=stage: (-whole[s][j], j))[:4]
        for part in counts:
            own.append(sum(sorted(part[stage])[-4:]) / sum(part[stage]))
            shared.append(sum(part[stage][j] for j in hot) / sum(part[stage]))
    found = hot_shares(matrix, 10, 4)
    assert found == pytest.approx((sum(own) / 6, sum(shared) / 6))
    assert found[0] > found[1]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_tile_is_a_matrix(scaled):
    matrix = matrix_of("ragged tiles", scaled=scaled)
    for number, tile in enumerate(matrix.shape.tiles):
        one = of_tile(matrix, number)
        columns = slice(4 * tile.vectors.start, 4 * tile.vectors.stop)
        assert torch.equal(one.real(), matrix.real()[tile.rows, columns])
        assert torch.equal(look_ups(one)[0], look_ups(matrix)[number])


@pytest.mark.parametrize("registers", [0, 5, 64])
def test_bank_cycles(registers):
    codes = torch.randint(0, 64, (101,), generator=torch.Generator().manual_seed(2))
    engine = EngineShape(lookups=8, banks=4, registers=registers)
    expected = 0
    for first in range(0, 101, 8):
        beat = codes[first : first + 8].tolist()
        loads = Counter(code % 4 for code in beat if code >= registers)
        expected += max([1, *loads.values()])
    assert bank_cycles(codes, engine) == expected
    assert bank_cycles(codes[:0], engine) == 0


def test_bounds():
    shape = MatrixShape(rows=1536, columns=576, vq=NAMED["gptvq2"])
    found = bounds(shape, EngineShape(split=3))
    assert found == {
        "memory": (1536 * 144 * 8 + 18 * 256 * 4 * 16) // 256,
        "look-ups": 1536 * 144 // 16,
        "products": 1536 * 576 // 64,
        "reduction": 3 * 1536 // 16,
    }
