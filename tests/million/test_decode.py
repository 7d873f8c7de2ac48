"""golden.million.decode against exact fractions and against bins times the codebook."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.million.decode import decode_scores, decode_sums
from golden.million.value import value_sums

NAN, INFINITY, MINUS, ONE, MOST = 0x7E00, 0x7C00, 0x8000, 0x3C00, 0x7BFF


def value(word: int) -> Fraction:
    """The value of a finite FP16 word."""
    exponent, fraction = word >> 10 & 31, word & 1023
    magnitude = Fraction(fraction + 1024 * (exponent > 0)) * Fraction(2) ** (max(exponent, 1) - 25)
    return -magnitude if word & MINUS else magnitude


def rne16(exact: Fraction) -> int:
    """The nearest FP16 word of a rational, ties to even: the neighbours are compared exactly."""
    sign, magnitude = (MINUS, -exact) if exact < 0 else (0, exact)
    if magnitude >= Fraction(65520):
        return sign | INFINITY
    low, high = 0, MOST
    while low < high:  # the last word at or below it
        middle = (low + high + 1) // 2
        low, high = (middle, high) if value(middle) <= magnitude else (low, middle - 1)
    if low == MOST:
        return sign | MOST
    below, above = magnitude - value(low), value(low + 1) - magnitude
    up = below > above or (below == above and low & 1)
    return sign | (low + up) if exact else 0


def case(rng, subspaces, sub, entries, keys, queries, low=0, top=MOST):
    def words(*shape, low, top):
        return rng.integers(low, top + 1, shape) | rng.integers(0, 2, shape) * MINUS

    return {
        "q": words(queries, subspaces * sub, low=low, top=top),
        "codebook": words(subspaces, entries, sub, low=0, top=ONE),
        "codes": rng.integers(0, entries, (keys, subspaces)),
        "slope": words(queries, low=0, top=top),
    }


def elements(made, key):
    """The words of a decoded vector."""
    return [
        int(word)
        for m, code in enumerate(made["codes"][key])
        for word in made["codebook"][m, code]
    ]  # fmt: skip


@pytest.mark.parametrize("exponent", [-8, -1, 0, 15])
@pytest.mark.parametrize("top", [0x03FF, 0x3800, 0x5000, MOST])
def test_scores(exponent, top):
    rng = np.random.default_rng([exponent + 8, top])
    made = case(rng, 4, 3, 5, 9, 3, top=top)
    made["slope"][0] = 0
    made["q"][1] = 0
    distance = int(rng.integers(8, 60))
    tensors = {name: torch.tensor(each) for name, each in made.items()}
    found = decode_scores(exponent=exponent, distance=distance, **tensors)
    for key in range(9):
        row = elements(made, key)
        for n, query in enumerate(made["q"]):
            dot = sum(value(int(a)) * value(b) for a, b in zip(query, row, strict=True))
            bias = value(int(made["slope"][n])) * (distance - key)
            assert int(found[key, n]) == rne16(Fraction(2) ** exponent * dot + bias)


def test_scores_at_the_ends():
    """The largest sums: both limbs, and all that cancels."""
    ends = torch.full((1, 256), MOST)
    book = torch.tensor([ONE, MINUS | ONE])[None, :, None].expand(128, 2, 2)
    codes = torch.tensor([[0] * 128, [1] * 128, [0, 1] * 64])
    for exponent, words in ((15, [INFINITY, MINUS | INFINITY, 0]), (-8, [0x7BFF, 0xFBFF, 0])):
        found = decode_scores(ends, book, exponent, codes, torch.tensor([0]), 2)
        assert found[:, 0].tolist() == words
    found = decode_scores(ends, book, 0, codes, torch.tensor([MINUS | MOST]), 2**17 - 1)
    assert found[:, 0].tolist() == [MINUS | INFINITY] * 3


def test_scores_without_a_number():
    rng = np.random.default_rng(1)
    tensors = {n: torch.tensor(each) for n, each in case(rng, 4, 2, 6, 5, 3, top=ONE).items()}
    tensors["q"][0, 3], tensors["slope"][1] = NAN, MINUS | INFINITY
    tensors["codes"][2, 1] = 6
    found = decode_scores(exponent=0, distance=4, **tensors) == NAN
    assert found.tolist() == [[True, True, key == 2] for key in range(5)]
    with pytest.raises(ConfigError, match=r"exponent must be -8\.\.15, not 16"):
        decode_scores(exponent=16, distance=4, **tensors)
    with pytest.raises(ConfigError, match="distance must be 4 or more for 5 keys, not 3"):
        decode_scores(exponent=0, distance=3, **tensors)


def test_sums():
    """Bins times the codebook, as Python's integers; any order of keys."""
    rng = np.random.default_rng(2)
    made = case(rng, 4, 3, 5, 200, 2)
    weight = rng.integers(0, ONE + 1, (200, 2))
    weight[:5] = ONE
    made["codes"][3, 2] = 7  # beyond: adds nothing to its part
    tensors = {name: torch.tensor(each) for name, each in made.items()}
    found = decode_sums(torch.tensor(weight), tensors["codebook"], tensors["codes"]).integers()
    expected = []
    for query in range(2):
        for m in range(4):
            bins = [Fraction(0)] * 8
            for key, code in enumerate(made["codes"][:, m]):
                bins[code] += value(int(weight[key, query]))
            for i in range(3):
                total = sum(bins[j] * value(int(made["codebook"][m, j, i])) for j in range(5))
                expected.append(total * 2**48)
    assert found == expected
    order = torch.tensor(rng.permutation(200))
    mixed = decode_sums(torch.tensor(weight)[order], tensors["codebook"], tensors["codes"][order])
    assert mixed.integers() == found
    bins = value_sums(torch.tensor(weight).T, tensors["codes"], tensors["codebook"])
    assert bins.integers() == found


def test_sums_at_the_end():
    """32,768 weights of 1.0 on an entry of -1: 2**63."""
    weight, codes = torch.full((32768, 1), ONE), torch.zeros(32768, 4, dtype=torch.int64)
    for word, sign in ((ONE, 1), (MINUS | ONE, -1)):
        book = torch.full((4, 1, 4), word)
        assert decode_sums(weight, book, codes).integers() == [sign * 2**63] * 16
