"""Error feedback over vectors of columns, against a plain inverse for each vector.

Shown to fail:

- errors that do not feed back;
- codes that are nearest to the weights themselves;
- the next tile's codebooks trained on the weights before feedback;
- k-means without weights;
- scales of rows not squared in these weights.
"""

import pytest
import torch

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index import lloyd
from golden.index.lloyd import Training
from golden.vqllm.config import MatrixShape, VqShape
from golden.vqllm.gptvq import quantize_with_feedback
from golden.vqllm.matrix import VqMatrix, encode, quantize

TILED = VqShape(size=4, entries=8, stages=1, tile_rows=16, tile_columns=16)
WHOLE = VqShape(size=4, entries=8, stages=2)


def layer(shape: MatrixShape, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, and the Hessian of inputs with channels that depend on one another."""
    g = torch.Generator().manual_seed(seed)
    width = shape.columns
    mix = torch.randn(width, width, generator=g) / width**0.5
    x = torch.randn(4 * width, width, generator=g) @ (torch.eye(width) + 2 * mix)
    return torch.randn(shape.rows, width, generator=g), x.t() @ x


def loss(weight: torch.Tensor, back: torch.Tensor, hessian: torch.Tensor) -> float:
    error = weight.double() - back.double()
    return float(((error @ hessian.double()) * error).sum())


def by_inverse(weight, hessian, found: VqMatrix) -> torch.Tensor:
    """The dequantized matrix of plain optimal brain quantization with the codebooks of ``found``.

    Of each vector all sums of entries are tried, and the remaining Hessian is inverted anew.
    """
    shape, size = found.shape, found.shape.vq.size
    books = float_from_bits(found.codebooks, FP16) * 2.0**found.exponent
    w, h = weight.double().clone(), hessian.double()
    if found.scales is not None:
        w = w / float_from_bits(found.scales, FP16)[:, None]
    back = torch.empty_like(w)
    for first in range(0, shape.columns, size):
        here = slice(first, first + size)
        inverse = torch.linalg.inv(h[first:, first:])
        metric = torch.linalg.inv(inverse[:size, :size])
        for row in range(shape.rows):
            tile = row // shape.tile_rows * shape.grid[1] + first // size // shape.tile_vectors
            sums = books[tile, 0]
            for stage in books[tile, 1:]:
                sums = (sums[:, None] + stage).flatten(0, 1)
            sums = float_from_bits(bits_from_float(sums * 2.0**-found.exponent), FP16)
            error = w[row, here] - sums * 2.0**found.exponent
            best = ((error @ metric) * error).sum(-1).argmin()
            back[row, here] = w[row, here] - error[best]
            w[row, first:] -= error[best] @ metric @ inverse[:size]
    if found.scales is not None:
        back = back * float_from_bits(found.scales, FP16)[:, None]
    return back


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("vq", "beam"), [(TILED, 1), (WHOLE, 8)])
def test_is_optimal_brain_quantization_in_order(vq, beam, scaled):
    """Ragged tiles; a beam of all entries finds the best sum of two stages."""
    shape = MatrixShape(rows=20, columns=36, vq=vq)
    weight, hessian = layer(shape)
    found = quantize_with_feedback(weight, shape, hessian, Training(), beam, scaled, damping=1e-9)
    expected = by_inverse(weight, hessian, found)
    # A tie may fall either way in float32, and what follows in its row then differs.
    same = torch.isclose(found.real(), expected, atol=1e-3).all(1)
    assert int(same.sum()) >= 19


def test_equal_columns_without_correlation_take_the_nearest():
    shape = MatrixShape(rows=20, columns=36, vq=TILED)
    weight, _ = layer(shape)
    found = quantize_with_feedback(weight, shape, 3 * torch.eye(36))
    assert torch.equal(found.codes, encode(weight, shape, found.codebooks, found.exponent))


@pytest.mark.parametrize("scaled", [False, True])
def test_codebooks_are_weighted_means(scaled):
    """The inverse Hessian and the scales of the rows weigh the samples of the first tile."""
    shape = MatrixShape(rows=20, columns=36, vq=TILED)
    weight, hessian = layer(shape)
    weight *= torch.linspace(0.2, 3, 20)[:, None]
    found = quantize_with_feedback(
        weight, shape, hessian, Training(seed=4), 1, scaled, damping=1e-9
    )
    u = torch.linalg.cholesky(torch.linalg.inv(hessian.double()), upper=True)
    of_vector = (u.diagonal() ** -2)[:16].unflatten(0, (4, 4)).mean(1)
    of_row = torch.ones(16, dtype=torch.float64)
    x = weight[:16, :16].double()
    if scaled:
        of_row = float_from_bits(found.scales[:16], FP16)
        x = x / of_row[:, None]
    importance = (of_row[:, None] ** 2 * of_vector).flatten()
    samples = x.float().unflatten(1, (4, 4)).flatten(0, 1)
    books = lloyd.kmeans(samples[None], 8, importance, Training(seed=4)).centroids[0]
    real = float_from_bits(found.codebooks[0, 0], FP16) * 2.0**found.exponent
    assert torch.allclose(real.float(), books, rtol=2**-8, atol=1e-3)


def test_later_codebooks_see_the_feedback():
    """One entry is the mean of what the columns before have left."""
    shape = MatrixShape(rows=16, columns=32, vq=TILED)
    weight, hessian = layer(shape)
    found = quantize_with_feedback(weight, shape, hessian, damping=1e-9)
    w = weight.double() - torch.cat([found.real()[:, :16], weight[:, 16:].double()], 1)
    inverse = torch.linalg.inv(hessian.double())
    solved = torch.linalg.inv(inverse[:16, :16]) @ inverse[:16, 16:]
    left = weight.double()[:, 16:] - w[:, :16] @ solved
    u = torch.linalg.cholesky(inverse, upper=True)
    of_vector = (u.diagonal() ** -2)[16:].unflatten(0, (4, 4)).mean(1).repeat(16)
    books = lloyd.kmeans(left.float().reshape(1, 64, 4), 8, of_vector).centroids[0]
    real = float_from_bits(found.codebooks[1, 0], FP16) * 2.0**found.exponent
    assert torch.allclose(real.float(), books, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize("vq", [TILED, WHOLE])
def test_loses_less_than_the_nearest_codes(vq):
    shape = MatrixShape(rows=20, columns=36, vq=vq)
    weight, hessian = layer(shape)
    plain = quantize(weight, shape, hessian.diagonal(), beam=4)
    found = quantize_with_feedback(weight, shape, hessian, beam=4)
    assert loss(weight, found.real(), hessian) < 0.9 * loss(weight, plain.real(), hessian)


def test_a_column_without_input_counts_as_zero():
    """Its weight moves nothing: neither the codebook nor the codes."""
    shape = MatrixShape(rows=20, columns=36, vq=TILED)
    weight, hessian = layer(shape)
    hessian[5], hessian[:, 5] = 0, 0
    other = weight.clone()
    other[:, 5] = 100
    one, two = (quantize_with_feedback(each, shape, hessian) for each in (weight, other))
    assert torch.equal(one.real(), two.real())


def test_refused():
    shape = MatrixShape(rows=20, columns=36, vq=TILED)
    weight, hessian = layer(shape)
    with pytest.raises(ValueError, match=r"^matrix must be \(20, 36\)$"):
        quantize_with_feedback(weight.T, shape, hessian)
    weight[2, 3] = torch.inf
    with pytest.raises(ValueError, match=r"^matrix must be finite$"):
        quantize_with_feedback(weight, shape, hessian)
