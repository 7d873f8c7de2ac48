"""golden.attention.softmax against exact fractions and torch's softmax."""

import math
from fractions import Fraction

import numpy as np
import torch

from golden.attention.softmax import partial, row_weights, softmax
from golden.fp16 import functions
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import float_from_bits
from tests.exact import exact, ordinary, rounded


def test_softmax_follows_its_definition():
    rng = np.random.default_rng(4)
    x = ordinary(rng, 6, 77)
    x[1, rng.permutation(77)[:40]] = 0xFC00
    x[2] = x[2, 0]
    words, bad = softmax(x)
    assert not bad.any()
    for row, got in zip(x.tolist(), words.tolist(), strict=True):
        values = [float(float_from_bits(torch.tensor(word))) for word in row]
        largest = max(values)
        e = [
            0 if math.isinf(v) else int(functions.exp(rounded(Fraction(v) - Fraction(largest))))
            for v in values
        ]
        total = rounded(sum(map(exact, e), Fraction(0)), FP32)
        r = exact(rounded(1 / exact(total, FP32), FP32), FP32)
        assert got == [rounded(exact(word) * r) for word in e]
    reference = torch.softmax(float_from_bits(x), dim=1)
    # Arguments of exp below 32 are rounded by 2**-7 at most: relative error of e, and of the sum.
    error = (float_from_bits(words) - reference).abs()
    assert (error <= reference * 2.0**-6 + 2.0**-24).all()


def test_softmax_of_rows_without_a_result():
    x = torch.full((5, 9), 0x3C00)
    x[0, 3], x[1, 8], x[2, 0], x[3, :] = 0x7E01, 0x7C00, 0xFFFF, 0xFC00
    words, bad = softmax(x)
    assert bad.tolist() == [True, True, True, True, False]
    assert (words[:4] == FP16.canonical_nan).all()


def test_partial_is_the_sum_of_its_weights():
    """The weights of two halves, at their own maxima, add up exactly in units of 2**-24."""
    rng = np.random.default_rng(5)
    x = ordinary(rng, 4, 100)
    for half in (x[:, :50], x[:, 50:]):
        part = partial(half)
        assert not part.bad.any()
        for row, maximum, weight, total in zip(
            half.tolist(), part.maximum.tolist(), part.weight.tolist(), part.total.tolist(),
            strict=True,
        ):  # fmt: skip
            assert exact(maximum) == max(map(exact, row))
            assert max(map(exact, weight)) == 1
            assert total == sum(exact(word) for word in weight) * 2**24


def test_partial_prefers_plus_zero():
    assert partial(torch.tensor([0x8000, 0, 0x8000])).maximum == 0
    assert partial(torch.tensor([0x8000, 0x8000])).maximum == 0x8000


def test_row_weights_share_one_maximum():
    """Both parts of a row against fractions; a bad row has weights and a sum of 0."""
    rng = np.random.default_rng(6)
    window, past = ordinary(rng, 5, 7), ordinary(rng, 5, 30)
    past[1, 4], window[2, 0], past[3, :] = 0x7C00, 0xFE00, 0xFC00
    window[4, :], past[4, :] = 0xFC00, 0xFC00
    first, second, part = row_weights(window, past)
    assert part.bad.tolist() == [False, True, True, False, True]
    for row in range(5):
        words = [*window[row].tolist(), *past[row].tolist()]
        got = [*first[row].tolist(), *second[row].tolist()]
        if part.bad[row]:
            assert (got, part.total[row]) == ([0] * 37, 0)
            continue
        finite = [word for word in words if word != 0xFC00]
        largest = max(map(exact, finite))
        wanted = [
            int(functions.exp(rounded(exact(word) - largest))) if word != 0xFC00 else 0
            for word in words
        ]
        assert got == wanted
        assert int(part.total[row]) == sum(map(exact, wanted)) * 2**24
    for empty in (row_weights(window[:, :0], past), row_weights(past, window[:, :0])):
        assert not empty[2].bad[0]
        assert empty[2].total[0] == partial(past[0]).total
