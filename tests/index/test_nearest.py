"""The clustering unit's rule on any words, and the figures that its page quotes."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.fp16.ops import float_from_bits, mul
from golden.fp16.vectors.columns import random_words
from golden.index.nearest import cluster, cluster_by_midpoints, midpoints
from golden.llm.reports.clustering import measure


def test_rule_on_any_words(seed):
    """Comparison by exact fractions; NaN and infinity as IEEE 754 has them."""
    rng = np.random.default_rng(seed)
    special = [0x7C00, 0xFC00, 0x7E00, 0xFE01, 0, 0x8000, 1, 0x8001, 0x7BFF]
    x = torch.tensor(np.concatenate([random_words(rng, 40), special]).astype(np.int64))[None]
    for scale in [*special, 0x3C00, *random_words(rng, 20).tolist()]:
        s = torch.tensor([scale])
        midpoint = torch.tensor(random_words(rng, 15).astype(np.int64))
        bounds = mul(s, midpoint)
        got = cluster_by_midpoints(x, s, midpoint)[0].tolist()
        for word, index in zip(x[0].tolist(), got, strict=True):
            assert index == sum(_above(word, int(bound)) for bound in bounds), (word, scale)


def _above(a: int, b: int) -> bool:
    """IEEE 754's a > b on FP16 words."""
    if 0x7C00 in (a & 0x7FFF, b & 0x7FFF) or max(a & 0x7FFF, b & 0x7FFF) > 0x7C00:
        real = [float(float_from_bits(torch.tensor(word))) for word in (a, b)]
        return real[0] > real[1]
    first, second = (Fraction(float(float_from_bits(torch.tensor(word)))) for word in (a, b))
    return first > second


def test_cluster_is_the_rule_on_a_codebook():
    codebook = torch.tensor([0xBC00, 0xB800, 0x2C00, 0x3C00])
    x = torch.arange(0, 1 << 16, 37)[None]
    s = torch.tensor([0x4248])
    assert torch.equal(cluster(x, s, codebook), cluster_by_midpoints(x, s, midpoints(codebook)))


def test_shares_of_the_page(capsys):
    """The command of docs/blocks/index_nearest.md, on fewer tokens."""
    assert measure(tokens=8) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:]
    shares = [float(cell) for row in rows for cell in row.split("|")[2:4]]
    assert len(shares) == 6
    assert all(0 < share < 3e-3 for share in shares), shares


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(0x8000, 0x8000, 0x8000), (0x8000, 0, 0), (0, 0, 0), (0xBC00, 0x3C00, 0), (0x8001, 1, 0)],
)
def test_the_sign_of_a_midpoint_of_zero(low, high, wanted):
    """The midpoint of two zeros -0 is -0, as IEEE 754 says; it once was +0."""
    codebook = torch.tensor([0xBC00, low, high, 0x3C00])
    if low == 0xBC00:
        codebook = torch.tensor([0xBC00, 0xBC00, 0x3C00, 0x3C00])
    assert midpoints(codebook)[1] == wanted
