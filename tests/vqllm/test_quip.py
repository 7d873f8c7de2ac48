"""Matrices with both sides rotated, against dense matrices of the rotations.

Shown to fail with:

- the inverse rotation in place of the rotation, on either side
- a scale of one stage for two; feedback with a change of sign; the columns of 0 not taken off
- bits of one codebook, or no signs of rotations, counted
"""

import math

import pytest
import torch

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.vqllm import lattice
from golden.vqllm.product import by_dequantizing
from golden.vqllm.quip import SPREAD, drawn, quantize, rotation

WIDTHS = [(576, 24), (24, 1536), (16, 344), (36, 50), (23, 8), (1, 9)]


def _case(rows: int, columns: int):
    generator = torch.Generator().manual_seed(rows)
    weight = 0.05 * torch.randn(rows, columns, generator=generator)
    weight[0, columns // 2] = 1.0  # an outlier
    inputs, outputs = rotation(columns, generator), rotation(rows, generator)
    return weight, inputs, outputs, generator


def _dense(turn, width: int) -> torch.Tensor:
    return turn(torch.eye(width, dtype=torch.float64))


@pytest.mark.parametrize(("rows", "columns"), WIDTHS)
def test_codes_are_of_the_rotated_matrix(rows, columns):
    weight, inputs, outputs, _ = _case(rows, columns)
    found = quantize(weight, inputs, outputs)
    left, right = _dense(outputs, rows), _dense(inputs, columns)
    inner = left.T @ weight.double() @ right
    scales = float_from_bits(found.matrix.scales, FP16)
    assert torch.allclose(scales, inner.square().mean(1).sqrt() * SPREAD[2], rtol=1e-3)
    padded = torch.nn.functional.pad(inner / scales[:, None], (0, -columns % 8))
    points = lattice.decode(found.matrix.codes).flatten(1)
    # Decisions of the encoder are of float32 rotations: its points are as near as the nearest.
    best = lattice.decode(lattice.encode(padded.unflatten(1, (-1, 8)))).flatten(1)
    assert (points - padded).abs().max() <= (best - padded).abs().max() + 1e-3
    assert torch.equal(found.matrix.real(), points * scales[:, None])
    real = left @ (points * scales[:, None])[:, :columns] @ right.T
    assert torch.allclose(found.real(), real, rtol=0, atol=1e-12)
    # What QuiP# is for: the error is that of Gaussian values, outlier or not.
    error = float((found.real() - weight).square().sum() / weight.square().sum())
    assert error < 0.02


def test_engine_gets_rotated_words():
    weight, inputs, outputs, generator = _case(36, 50)
    found = quantize(weight, inputs, outputs)
    x = torch.randn(3, 50, generator=generator)
    words = found.turned(x)
    assert words.shape == (3, 56)
    assert torch.equal(words[:, :50], bits_from_float(inputs(x.double())))
    assert not bool(words[:, 50:].any())
    y, _ = by_dequantizing(words, found.matrix)
    assert torch.equal(found.product(x), outputs.inverse(float_from_bits(y, FP16)))
    exact = x.double() @ found.real().T
    assert float((found.product(x) - exact).norm() / exact.norm()) < 1e-3


def test_feedback_lowers_the_error_of_outputs():
    weight, inputs, outputs, generator = _case(24, 50)
    samples = torch.randn(300, 50, generator=generator) @ torch.randn(50, 50, generator=generator)
    turned = inputs(samples.double())
    inverse = torch.linalg.inv(turned.T @ turned)
    upper = torch.linalg.cholesky(inverse, upper=True).float()
    errors = []
    for each in (None, upper):
        error = quantize(weight, inputs, outputs, 2, each).real() - weight
        errors.append(float((samples.double() @ error.T).square().sum()))
    assert errors[1] < 0.7 * errors[0]


def test_bits_by_hand():
    """SmolLM2's FFN matrix: codes, two codebooks of 256 entries, scales, signs of rotations."""
    weight, inputs, outputs, _ = _case(576, 24)
    bits = 4 + (2 * 256 * 8 * 16 + 16 * 576 + 576 + 24) / (576 * 24)
    assert math.isclose(quantize(weight, inputs, outputs).bits_per_element, bits)
    assert [drawn(width) for width in (1, 64, 576, 1536, 9, 50, 23)] == [0, 0, 0, 0, 81, 625, 529]
    weight, inputs, outputs, _ = _case(36, 50)
    bits = (36 * 7 * 32 + 2 * 256 * 8 * 16 + 16 * 36 + 36 + 50 + 16 * 625) / (36 * 50)
    assert math.isclose(quantize(weight, inputs, outputs).bits_per_element, bits)


def test_rows_of_zeros_and_refused():
    weight, inputs, outputs, _ = _case(24, 48)
    zero = quantize(torch.zeros(24, 48), inputs, outputs)
    assert bool((zero.matrix.scales == 0x3C00).all())
    weight[3, 3] = torch.inf
    with pytest.raises(ValueError, match=r"^weight must be finite$"):
        quantize(weight, inputs, outputs)
