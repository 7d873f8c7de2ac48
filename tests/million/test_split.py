"""golden.million.split against loops over Python's integers and floats.

Shown to fail:

- a subnormal or the largest finite word as not finite;
- groups from query 0 again;
- the slope of a discarded query in the next group;
- V's rows before K's.
"""

import math
import struct

import numpy as np
import pytest
import torch

from golden.million.split import groups, nonfinite, rows


def value(word):
    return struct.unpack("<e", struct.pack("<H", word))[0]


def test_nonfinite_is_that_of_every_word():
    words = torch.arange(1 << 16)
    assert nonfinite(words).tolist() == [not math.isfinite(value(word)) for word in range(1 << 16)]


def test_groups_take_the_queries_in_order():
    rng = np.random.default_rng(3)
    jobs = [(3, False), (1, False), (2, True), (3, False), (1, True), (2, False)]
    count = sum(n for n, _ in jobs)
    words = rng.integers(0, 1 << 16, (count, 8))
    words[:4] &= 0x3FFF
    slope = rng.integers(0, 1 << 14, count)
    slope[0], words[7, 5] = 0x7C00, 0xFC00
    found = groups(torch.tensor(words), torch.tensor(slope), jobs, 3)
    at, expected = 0, []
    for size, discard in jobs:
        queries = [(words[n].tolist(), int(slope[n])) for n in range(at, at + size)]
        at += size
        if not discard:
            expected.append(queries + [([0] * 8, 0)] * (3 - size))
    assert found.words.tolist() == [[word for word, _ in group] for group in expected]
    assert found.slope.tolist() == [[s for _, s in group] for group in expected]
    assert found.bad.tolist() == [
        [not all(math.isfinite(value(w)) for w in (*word, s)) for word, s in group]
        for group in expected
    ]


@pytest.mark.parametrize("jobs", [[(0, False), (4, False)], [(5, False)], [(4, False), (1, False)]])
def test_groups_refuses(jobs):
    with pytest.raises(ValueError, match="must be groups of"):
        groups(torch.zeros(4, 8, dtype=torch.int64), torch.zeros(4, dtype=torch.int64), jobs, 4)


def test_rows_are_k_of_all_heads_then_v():
    rng = np.random.default_rng(4)
    words = rng.integers(0, 0x7C00, (4, 2, 3, 4))
    words[1, 1, 2, 3], words[2, 0, 0, 0] = 0x7E01, 0xFC00
    slot, row, discard = [3, 0, 9, 6], [1, 5, 0, 2], [0, 0, 1, 0]
    found = rows(*map(torch.tensor, (words, slot, row, discard)))
    expected = [
        (slot[n] + head, row[n], kv, words[n, kv, head].tolist())
        for n in range(4) if not discard[n] for kv in range(2) for head in range(3)
    ]  # fmt: skip
    got = zip(*(each.tolist() for each in found[:4]), strict=True)
    assert list(got) == expected
    assert found.nonfinite.tolist() == [False, True, True, False]
