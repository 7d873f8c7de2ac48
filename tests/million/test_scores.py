"""Tables and scores against exact fractions, element by element."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import fixed_point
from golden.fp16.vectors.columns import random_words
from golden.index.tables import tables
from golden.million.scores import past_scores
from tests.exact import exact, rounded

NAN, INFINITY, MOST, ONE = 0x7E00, 0x7C00, 0x7BFF, 0x3C00


def finite(rng, *shape, top=0x7BFF):
    count = int(np.prod(shape))
    words = random_words(rng, count).astype(np.int64)
    return torch.tensor(words & 0x8000 | (words & 0x7FFF) % (top + 1)).reshape(shape)


def exact_table(q, codebook, exponent):
    """(L, M, E) words, by fractions."""
    subspaces, entries, sub = codebook.shape
    parts = q.reshape(len(q), subspaces, sub)
    return [
        [
            [
                rounded(
                    Fraction(2) ** exponent
                    * sum(
                        exact(int(a)) * exact(int(b))
                        for a, b in zip(part, codebook[m, j], strict=True)
                    )
                )
                for j in range(entries)
            ]
            for m, part in enumerate(query)
        ]
        for query in parts
    ]


@pytest.mark.parametrize("sub", [1, 2, 5, 16])
@pytest.mark.parametrize("exponent", [-8, 0, 3, 15])
def test_tables_round_an_exact_sum_once(seed, sub, exponent):
    rng = np.random.default_rng([seed, sub, exponent + 8])
    q, codebook = finite(rng, 2, 4 * sub), finite(rng, 4, 3, sub, top=ONE)
    words, bad = tables(q, codebook, exponent)
    want = exact_table(q, codebook, exponent)
    assert words.tolist() == want
    assert bad.tolist() == [any(w & 0x7FFF == INFINITY for m in t for w in m) for t in want]


@pytest.mark.parametrize("exponent", [-8, 15])
def test_tables_at_the_ends(exponent):
    """The largest and the smallest sums, cancellation to 0, and a tie of the rounding."""
    sub = 64
    q = torch.tensor([[MOST] * sub, [0x8000 | MOST] * sub, [1] * sub, [MOST, 0xFBFF] * (sub // 2)])
    codebook = torch.tensor([[[ONE] * sub, [0xBC00] * sub, [1] * sub, [0x8001] * sub]])
    words, bad = tables(q, codebook, exponent)
    assert words.tolist() == exact_table(q, codebook, exponent)
    assert words[3].eq(0).all()
    assert bad.tolist() == [exponent > 0, exponent > 0, False, False]
    tie = torch.tensor([[ONE, 0x1000, 0, 0]])  # 1 + 2**-11
    words, _ = tables(tie, torch.tensor([[[ONE, ONE, 0, 0], [ONE, 0xBC00, 0, 0]]]), 0)
    assert words.tolist() == [[[0x3C00, 0x3BFF]]]


def test_a_query_with_nan_is_bad():
    q = torch.tensor([[ONE] * 4, [ONE, NAN, 0, 0], [0xFC00, 0, 0, 0]])
    _, bad = tables(q, torch.zeros(2, 3, 2, dtype=torch.int64), 0)
    assert bad.tolist() == [False, True, True]


def exact_score(table, code, slope, distance):
    total = sum(exact(int(table[m, c])) for m, c in enumerate(code))
    return rounded(total + exact(int(slope)) * distance)


@pytest.mark.parametrize("subspaces", [4, 128])
def test_scores_round_an_exact_sum_once(seed, subspaces):
    rng = np.random.default_rng([seed, subspaces])
    table = finite(rng, 3, subspaces, 5)
    codes = torch.tensor(rng.integers(0, 5, (6, subspaces)))
    slope = torch.tensor([0, 0xB800, 0x7BFF])
    distance = int(rng.integers(6, 2**17))
    got = past_scores(table, codes, slope, distance)
    want = [
        [exact_score(table[q], code, slope[q], distance - n) for q in range(3)]
        for n, code in enumerate(codes.tolist())
    ]
    assert got.tolist() == want


def test_scores_at_the_ends():
    """All entries the largest; the last key has distance 0; sums beyond FP16 become infinite."""
    table = torch.tensor([MOST, 0x8000 | MOST, 1, 0x8000])[:, None, None].expand(4, 128, 2)
    codes = torch.tensor([[0] * 128, [1] * 128])
    got = past_scores(table, codes, torch.tensor([0, 0, 1, 0x8000]), 1)
    assert got.tolist() == [[INFINITY, 0xFC00, 129, 0], [INFINITY, 0xFC00, 128, 0]]


def test_order_of_keys_and_steps_do_not_matter(monkeypatch):
    rng = np.random.default_rng(5)
    table, codes = finite(rng, 2, 8, 16), torch.tensor(rng.integers(0, 16, (50, 8)))
    slope = torch.tensor([0, 0])
    whole = past_scores(table, codes, slope, 49)
    order = torch.tensor(rng.permutation(50))
    assert torch.equal(past_scores(table, codes[order], slope, 49), whole[order])
    monkeypatch.setattr("golden.million.scores._CHUNK", 48)
    assert torch.equal(past_scores(table, codes, slope, 49), whole)


def test_nan_where_a_code_or_a_query_is_bad():
    table = torch.full((3, 4, 5), ONE)
    table[1, 2, 3] = 0xFC00
    codes = torch.tensor([[0, 1, 2, 3], [0, 0, 5, 0], [4, 4, 4, 4]])
    got = past_scores(table, codes, torch.tensor([0, 0, NAN]), 2)
    assert got.tolist() == [[0x4400, NAN, NAN], [NAN] * 3, [0x4400, NAN, NAN]]


def test_nan_for_a_query_that_is_said_to_be_bad():
    table, codes = torch.full((2, 4, 5), ONE), torch.zeros(1, 4, dtype=torch.int64)
    slope = torch.zeros(2, dtype=torch.int64)
    got = past_scores(table, codes, slope, 0, bad=torch.tensor([True, False]))
    assert got.tolist() == [[NAN, 0x4400]]


def test_no_keys():
    table = torch.full((3, 4, 5), ONE)
    got = past_scores(table, torch.zeros(0, 4, dtype=torch.int64), torch.tensor([0, 0, 0]), 0)
    assert got.shape == (0, 3)


def test_on_grid_of_every_finite_word():
    words = torch.arange(1 << 16)
    words = words[(words & INFINITY) != INFINITY]
    values = words.to(torch.int16).view(torch.float16).double() * 2**24
    assert torch.equal(fixed_point(words), values.long())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: tables(z[:, :4], z[:, :, None], 16), "exponent must be -8..15, not 16"),
        (lambda z: tables(z[:, :3], z[:, :, None], 0), "a query must have 4 elements, not 3"),
        (
            lambda z: past_scores(z[:, :, None], z, z[:, 0], 2),
            "distance must be 3 or more for 4 keys, not 2",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ConfigError) as error:
        call(torch.zeros(4, 4, dtype=torch.int64))
    assert str(error.value) == message
