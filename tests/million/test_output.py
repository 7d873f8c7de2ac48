"""golden.million.output against fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16, FP32
from golden.fp16.limbs import Limbs, from_shifted
from golden.million.output import outputs
from tests.exact import exact, rounded


def limbs(values) -> Limbs:
    """Python's integers below 2**120 as limbs."""
    split = [[value >> 62 for value in row] for row in values]
    rest = [[value & (1 << 62) - 1 for value in row] for row in values]
    return Limbs(torch.tensor(split), torch.tensor(rest))


@pytest.mark.parametrize("exponent", [-8, -1, 0, 7, 15])
def test_outputs_follow_their_definition(exponent):
    rng = np.random.default_rng([exponent + 8, 2])
    past = [[int(rng.integers(-(2**62), 2**62)) >> int(rng.integers(0, 60)) for _ in range(40)]
            for _ in range(3)]  # fmt: skip
    past[0][:4] = [2**63, -(2**63), 0, 1]
    window = [
        [int(rng.integers(-(2**62), 2**62)) << 10 >> int(rng.integers(0, 70)) for _ in range(40)]
        for _ in range(3)
    ]
    window[0][:4] = [2**73, -(2**73), 0, -1]
    window[1][0], past[1][0] = -past[1][0] << max(exponent, 0), past[1][0] << max(-exponent, 0)
    total = torch.tensor([1 << 24, 32768 + 322 << 24, 1234567891])
    bad = torch.tensor([False, False, False])
    got = outputs(limbs(past), exponent, limbs(window), total, bad)
    for query in range(3):
        divisor = exact(rounded(Fraction(int(total[query]), 2**24), FP32), FP32)
        inverse = exact(rounded(1 / divisor, FP32), FP32)
        for n, w, word in zip(past[query], window[query], got[query].tolist(), strict=True):
            value = (Fraction(n) * Fraction(2) ** exponent + w) / 2**48
            assert word == rounded(exact(rounded(value, FP32), FP32) * inverse)


def test_bad_queries_are_nan():
    n = torch.ones(2, 5, dtype=torch.int64)
    total, bad = torch.tensor([0, 1 << 24]), torch.tensor([True, False])
    got = outputs(n, 0, from_shifted([(n, 0)]), total, bad)
    assert (got[0] == FP16.canonical_nan).all()
    assert (got[1] == 0).all()
