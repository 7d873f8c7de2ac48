"""golden.index.histogram's banks against nested loops, and against its other histograms."""

import random

import pytest
import torch

from golden.index.histogram import bank_histogram, bank_words, value_histogram


@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize("keys", [0, 1, 40])
def test_bank_histogram_is_its_definition(rows, keys, seed):
    rng = random.Random(f"{seed} {rows} {keys}")
    banks, values = 3, 2
    index = [[rng.randrange(16) for _ in range(banks)] for _ in range(keys)]
    amount = [[rng.randrange(2**24 + 1) for _ in range(values)] for _ in range(keys)]
    want = [[[0] * values for _ in range(rows)] for _ in range(banks)]
    for codes, amounts in zip(index, amount, strict=True):
        for bank, code in enumerate(codes):
            if code < rows:
                for value in range(values):
                    want[bank][code][value] += amounts[value]
    tensors = torch.tensor(index).reshape(keys, banks), torch.tensor(amount).reshape(keys, values)
    assert bank_histogram(*tensors, rows).tolist() == want


def test_bank_histogram_agrees_with_value_histogram(seed):
    rng = torch.Generator().manual_seed(seed)
    index = torch.randint(0, 16, (500, 4), generator=rng)
    amount = torch.randint(0, 2**24 + 1, (500, 2), generator=rng)
    bins = bank_histogram(index, amount, 16)
    everything = torch.ones(500)
    for bank in range(4):
        for value in range(2):
            want = value_histogram(amount[:, value], index[:, bank], everything, 4)
            assert torch.equal(bins[bank, :, value], want)


def test_bank_histogram_holds_the_largest_sum():
    index = torch.zeros(32768, 2, dtype=torch.int64)
    amount = torch.full((32768, 1), 2**24)
    assert bank_histogram(index, amount, 2)[:, :, 0].tolist() == [[2**39, 0]] * 2


def test_bank_words_give_all_rows_of_a_part_first():
    bins = torch.arange(4 * 3 * 2).reshape(4, 3, 2)
    words = bank_words(bins, 2)
    at = 0
    for part in range(2):
        for row in range(3):
            assert words[at].tolist() == [bins[2 * part + g, row].tolist() for g in range(2)]
            at += 1
    assert at == len(words)
