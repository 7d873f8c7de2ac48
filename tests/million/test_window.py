"""golden.million.window against Python's integers and fractions."""

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16
from golden.fp16.limbs import Limbs, from_shifted
from golden.fp16.ops import LIMB_BITS
from golden.million.window import key_rows, window_scores, window_sums
from tests.exact import exact, ordinary, rounded

LARGEST = 0x7BFF


def finite(rng, *shape) -> torch.Tensor:
    """Any finite words."""
    words = rng.integers(0, 1 << 16, shape)
    return torch.tensor(np.where(words & FP16.infinity == FP16.infinity, words ^ 0x4000, words))


def dot(a, b):
    return sum(exact(x) * exact(y) for x, y in zip(a.tolist(), b.tolist(), strict=True))


def check_scores(q, k, slope, distances):
    got = window_scores(q, k, slope, distances)
    for row in range(len(k)):
        for query in range(len(q)):
            bias = exact(int(slope[query])) * int(distances[row])
            assert got[row, query] == rounded(dot(q[query], k[row]) + bias)


@pytest.mark.parametrize("size", [16, 80])
def test_scores_follow_their_definition(size):
    rng = np.random.default_rng(size)
    distances = torch.tensor([0, 1, 77, 131071, 5])
    check_scores(ordinary(rng, 3, size), ordinary(rng, 5, size), ordinary(rng, 3), distances)
    check_scores(finite(rng, 3, size), finite(rng, 5, size), finite(rng, 3), distances)
    tiny = torch.tensor(rng.integers(0, 4, (3, size)) | rng.integers(0, 2, (3, size)) << 15)
    check_scores(tiny, finite(rng, 5, size), tiny[:, 0], distances)


def test_scores_of_the_largest_words():
    """256 largest products and the largest slope and distance, with both signs and cancelling."""
    q = torch.full((3, 256), LARGEST)
    k = torch.full((2, 256), LARGEST)
    q[1] |= 0x8000
    q[2, ::2] |= 0x8000
    k[1, 7] = 0x0001
    check_scores(q, k, torch.tensor([LARGEST, 0xFBFF, 0x0001]), torch.tensor([131071, 131071]))
    assert window_scores(q, k, torch.zeros(3), torch.zeros(2))[0].tolist() == [0x7C00, 0xFC00, 0]


def test_sums_are_exact():
    rng = np.random.default_rng(3)
    weight = torch.tensor(rng.integers(0, 0x3C01, (3, 9)))
    for v in (finite(rng, 9, 20), torch.full((9, 20), LARGEST), ordinary(rng, 9, 20)):
        wanted = [
            sum(exact(w) * exact(x) for w, x in zip(row, column, strict=True)) * 2**48
            for row in weight.tolist()
            for column in v.T.tolist()
        ]
        assert window_sums(weight, v).integers() == wanted
    # The most rows, all largest: beyond 63 bits.
    sums = window_sums(torch.full((1, 322), 0x3C00), torch.full((322, 2), 0xFBFF))
    assert sums.integers() == [-322 * 2**24 * 65504 * 2**24] * 2
    assert min(sums.integers()) < -(2**63)


def test_sums_without_rows_are_zero():
    assert window_sums(torch.zeros(2, 0), torch.zeros(0, 5)).integers() == [0] * 10


def test_limbs():
    rng = np.random.default_rng(4)
    values, others = rng.integers(-(2**62), 2**62, (2, 200))
    for shift in (0, 1, 20, 40, 62):
        limbs = from_shifted([(torch.tensor(values), shift), (torch.tensor(others), 0)])
        pairs = zip(values.tolist(), others.tolist(), strict=True)
        wanted = [(a << shift) + b for a, b in pairs]
        assert limbs.integers() == wanted
        assert ((limbs.low >= 0) & (limbs.low < 1 << LIMB_BITS)).all()
    limbs = from_shifted([(torch.tensor(values), 8)])
    assert limbs.shifted(23).integers() == [value << 31 for value in values.tolist()]
    assert limbs.plus(limbs).integers() == [value << 9 for value in values.tolist()]
    assert limbs.plus(Limbs(-limbs.high - 1, (1 << LIMB_BITS) - limbs.low)).integers() == [0] * 200


def test_key_rows():
    assert key_rows(3, 6, 4, 4, 8) == [0, 1, 2, 10, 11, 4, 5]
    assert key_rows(0, 0, 0, 4, 8) == []
