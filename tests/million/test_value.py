"""golden.million.value against Python's integers."""

import random
import time

import pytest
import torch

from golden.million.value import value_bins, value_sums
from tests.exact import exact

ONE = 0x3C00


def in_order(weight, code, codebook, shuffled):
    """Sums in units of 2**-48, key by key in the order ``shuffled``, as (L, d) integers."""
    subspaces, entries, sub = codebook.shape
    sums = [[0] * (subspaces * sub) for _ in weight]
    for query, words in enumerate(weight.tolist()):
        for key in shuffled:
            for m in range(subspaces):
                row = int(code[key, m])
                if row >= entries:
                    continue
                for i, word in enumerate(codebook[m, row].tolist()):
                    sums[query][m * sub + i] += exact(words[key]) * exact(word) * 2**48
    assert all(int(each) == each for row in sums for each in row)
    return [int(each) for row in sums for each in row]


@pytest.mark.parametrize(("subspaces", "sub", "entries"), [(4, 4, 16), (8, 1, 5), (1, 10, 1)])
def test_sums_follow_their_definition(subspaces, sub, entries, seed):
    rng = random.Random(f"{seed} {subspaces}")
    keys, queries = 40, 3
    weight = torch.tensor([[rng.randrange(ONE + 1) for _ in range(keys)] for _ in range(queries)])
    weight[1] = torch.tensor([rng.choice([0, 1, 0x3FF, ONE]) for _ in range(keys)])
    code = torch.tensor([[rng.randrange(entries + 1) for _ in range(subspaces)] for _ in weight.T])
    words = [rng.randrange(ONE + 1) | rng.getrandbits(1) << 15 for _ in range(entries * 4 * 16)]
    codebook = torch.tensor(words[: subspaces * entries * sub]).reshape(subspaces, entries, sub)
    shuffled = rng.sample(range(keys), keys)
    got = value_sums(weight, code, codebook)
    assert got.integers() == in_order(weight, code, codebook, shuffled)
    again = value_sums(weight[:, shuffled], code[shuffled], codebook)
    assert torch.equal(got.high, again.high)
    assert torch.equal(got.low, again.low)


@pytest.mark.parametrize("word", [ONE, ONE | 0x8000, 0x0001, 0x8001])
def test_the_largest_sums(word):
    """32,768 weights of 1.0 in one bin: 2**39, and +-2**63 after the codebook."""
    weight = torch.full((2, 32768), ONE)
    weight[1] = 0x0001
    code = torch.full((32768, 2), 4095)
    codebook = torch.zeros(2, 4096, 1, dtype=torch.int64)
    codebook[:, 4095] = word
    bins = value_bins(weight, code, 4096)
    assert bins[:, 4095].tolist() == [[2**39, 2**15]] * 2
    assert int(bins.sum()) == 2 * (2**39 + 2**15)
    unit = int(exact(word) * 2**24)
    assert value_sums(weight, code, codebook).integers() == [2**39 * unit] * 2 + [2**15 * unit] * 2


def test_all_rows_at_their_largest():
    """A bin of each of 4,096 rows, all products positive: no float64 product is rounded."""
    rows = torch.arange(32768) % 4096
    weight = torch.full((1, 32768), 0x3BFF)
    codebook = torch.full((1, 4096, 1), 0x3BFF)
    sums = value_sums(weight, rows[:, None], codebook).integers()
    assert sums == [32768 * int(exact(0x3BFF) * 2**24) ** 2]


def test_no_keys_no_sum():
    weight, code = torch.zeros(3, 0, dtype=torch.int64), torch.zeros(0, 4, dtype=torch.int64)
    codebook = torch.full((4, 16, 4), ONE)
    assert value_sums(weight, code, codebook).integers() == [0] * 48


def test_a_long_context_takes_seconds_at_most():
    """32,768 keys of (64, 8) at head size 128, four queries: about 0.2 s."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randint(0, ONE + 1, (4, 32768), generator=generator)
    code = torch.randint(0, 256, (32768, 64), generator=generator)
    codebook = torch.randint(0, ONE + 1, (64, 256, 2), generator=generator)
    began = time.monotonic()
    sums = value_sums(weight, code, codebook)
    assert time.monotonic() - began < 20
    assert sums.low.shape == (4, 128)
