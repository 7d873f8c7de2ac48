"""Weights fitted by scales, codebook and indices together.

Shown to fail:

- scales without the importance;
- errors that feed back with the wrong sign, within a block of columns or to the blocks after it;
- a descent that forgets what the columns before it changed;
- a codebook that is not rounded to FP16;
- antisymmetric centroids of the lower half's samples alone, and k-means of signed samples.
"""

import itertools

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import float_from_bits
from golden.kllm.fit import Fit, error, feedback, least_squares, refine
from golden.kllm.quantize import quantize_weight


def heavy(rows, columns, seed=0):
    """Heavy tails, and channels of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return x**3 * torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 0.1


def hessian_of(columns, tokens=400, seed=1):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator, dtype=torch.float64)
    x = torch.randn(tokens, columns, generator=generator, dtype=torch.float64)
    x = x @ mix * 0.3 + torch.randn(tokens, columns, generator=generator, dtype=torch.float64)
    return x.t() @ x


def plain(weight, bits=4):
    """The nearest centroids under the largest magnitude of a channel."""
    found = quantize_weight(weight, bits)
    return Fit(
        found.index.t().long(), float_from_bits(found.scale), float_from_bits(found.codebook)
    )


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_least_squares_is_better_than_the_largest(bits):
    weight = heavy(64, 96)
    ones = torch.ones(96, dtype=torch.float64)
    found = least_squares(weight, bits)
    assert error(weight, found, ones) < 0.95 * error(weight, plain(weight, bits), ones)
    assert len(found.codebook) == 1 << bits
    assert torch.equal(found.codebook, found.codebook.sort().values)
    assert float(found.codebook.abs().max()) <= 1


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_an_antisymmetric_codebook_is_so_in_words(bits):
    """``c[i] = -c[last - i]`` after every step; on lopsided weights no other half is better."""
    weight, hessian = heavy(48, 64) + 0.01, hessian_of(64)
    importance = hessian.diagonal()
    found = least_squares(weight, bits, importance, antisymmetric=True, rounds=100)
    last = len(found.codebook) - 1
    assert torch.equal(found.codebook, -found.codebook.flip(0))
    assert torch.equal(found.codebook, found.codebook.sort().values)
    assert float(found.codebook.max()) == 1
    free = error(weight, least_squares(weight, bits, importance), importance)
    assert free <= error(weight, found, importance) < 1.5 * free
    for j, change in itertools.product(range(last // 2 + 1), (0.98, 1.02)):
        codebook = found.codebook.clone()
        codebook[j], codebook[last - j] = codebook[j] * change, codebook[last - j] * change
        moved = Fit(found.index, found.scale, codebook)
        assert error(weight, moved, importance) > error(weight, found, importance)
    stored = refine(weight, hessian, feedback(weight, hessian, found)).quantized().codebook
    words = float_from_bits(stored)
    assert torch.equal(words, -words.flip(0))


def test_least_squares_is_the_best_of_its_neighbours():
    """No scale and no index nearby is better, as each is the best for the others."""
    weight = heavy(8, 40, 3)
    importance = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    found = least_squares(weight, 3, importance, rounds=100)
    least = error(weight, found, importance)
    for row, change in itertools.product(range(8), (0.99, 1.01)):
        scale = found.scale.clone()
        scale[row] *= change
        assert error(weight, Fit(found.index, scale, found.codebook), importance) >= least
    for row, column, step in itertools.product(range(8), range(40), (-1, 1)):
        index = found.index.clone()
        index[row, column] = (index[row, column] + step).clamp(0, 7)
        assert error(weight, Fit(index, found.scale, found.codebook), importance) >= least


def test_importance_counts():
    """The error in the columns that count is less than that of a fit to all columns alike."""
    weight = heavy(64, 48, 2)
    importance = torch.full((48,), 1e-3, dtype=torch.float64)
    importance[::6] = 1
    counted, alike = (least_squares(weight, 3, each) for each in (importance, None))
    assert error(weight, counted, importance) < 0.8 * error(weight, alike, importance)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_step_lowers_the_error_in_the_hessian(seed):
    weight, hessian = heavy(48, 150, seed), hessian_of(150, seed=seed + 10)  # three blocks
    start = least_squares(weight, 4, hessian.diagonal())
    fed = feedback(weight, hessian, start)
    refined = refine(weight, hessian, fed)
    errors = [error(weight, each, hessian) for each in (plain(weight), start, fed, refined)]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.9 * errors[1]
    assert errors[3] < 0.95 * errors[2]


def test_feedback_by_hand():
    """Two columns, centroids -1 and 1 twice, scale 1: the error of the first moves the second.

    H = [[4, 2], [2, 2]]: w_1 becomes w_1 + H_01 / H_11 * e_0, as U of the inverse says.
    """
    hessian = torch.tensor([[4.0, 2.0], [2.0, 2.0]], dtype=torch.float64)
    weight = torch.tensor([[0.4, -0.2]], dtype=torch.float64)
    codebook = torch.tensor([-1.0, -0.9, 0.9, 1.0], dtype=torch.float64)
    start = Fit(torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, dtype=torch.float64), codebook)
    found = feedback(weight, hessian, start, damping=1e-9)
    # Column 0 has the larger diagonal: 0.9, an error of -0.5. Column 1: -0.2 - 0.5 = -0.7, -0.9.
    assert found.index.tolist() == [[2, 1]]
    other = weight.clone()
    other[0, 1] = 0.4  # 0.4 - 0.5 = -0.1: the nearest is -0.9, not 0.9
    assert feedback(other, hessian, start, damping=1e-9).index.tolist() == [[2, 1]]


def test_refine_is_a_local_optimum():
    """No single index and no scale improves a refined fit."""
    weight, hessian = heavy(6, 12, 4), hessian_of(12)
    found = refine(weight, hessian, least_squares(weight, 2), rounds=50)
    least = error(weight, found, hessian)
    for row, column, value in itertools.product(range(6), range(12), range(4)):
        index = found.index.clone()
        index[row, column] = value
        assert error(weight, Fit(index, found.scale, found.codebook), hessian) >= least * (1 - 1e-9)


def test_a_diagonal_hessian_is_nearest():
    """Feedback changes nothing without relations between columns."""
    weight = heavy(10, 20)
    importance = torch.rand(20, dtype=torch.float64) + 0.1
    start = least_squares(weight, 3, importance)
    assert torch.equal(feedback(weight, importance.diag(), start).index, start.index)
    refined = refine(weight, importance.diag(), start)
    nearest = torch.bucketize(
        weight / refined.scale[:, None], (refined.codebook[:-1] + refined.codebook[1:]) / 2
    )
    assert torch.equal(refined.index, nearest)
    assert error(weight, refined, importance) <= error(weight, start, importance)


def test_stored_as_the_hardware_has_it():
    weight = heavy(20, 30)
    found = refine(weight, hessian_of(30), least_squares(weight, 4))
    stored = found.quantized()
    assert stored.index.shape == (30, 20)
    assert stored.index.dtype == torch.uint8
    assert torch.equal(stored.dequantize().t(), found.weight)


def test_odd_weights():
    """Channels and matrices of zeros, one column, importance of zeros."""
    zero = least_squares(torch.zeros(3, 5), 2)
    assert not bool(zero.weight.any())
    weight = heavy(4, 6)
    weight[1] = 0
    found = refine(weight, hessian_of(6), feedback(weight, hessian_of(6), least_squares(weight, 4)))
    assert not bool(found.weight[1].any())
    one = heavy(5, 1)
    found = least_squares(one, 2)
    assert error(one, found, torch.ones(1)) < 1e-3 * float((one**2).sum())
    ones = torch.ones(6, dtype=torch.float64)
    free = least_squares(weight, 2, torch.zeros(6))
    assert error(weight, free, ones) == error(weight, least_squares(weight, 2), ones)
    hessian = hessian_of(6)
    hessian[2] = hessian[:, 2] = 0  # an input that is always 0
    assert torch.isfinite(feedback(weight, hessian, least_squares(weight, 4)).weight).all()
    assert torch.isfinite(refine(weight, hessian, least_squares(weight, 4)).weight).all()


@pytest.mark.parametrize(
    ("weight", "bits", "kind", "message"),
    [
        (torch.full((2, 2), float("nan")), 4, ValueError, "weight must be finite"),
        (torch.full((2, 2), 70000.0), 4, ValueError, "within the FP16 range"),
        (torch.ones(2, 2), 5, ConfigError, r"bits must be 2\.\.4, not 5"),
    ],
)
def test_rejects(weight, bits, kind, message):
    with pytest.raises(kind, match=message):
        least_squares(weight, bits)
