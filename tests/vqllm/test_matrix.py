"""Quantized matrices: codes, sums of entries and errors against plain loops.

Shown to fail: all stages but the last rounded first. The tiles numbered column by column. A beam
that keeps the last sums instead of the best.
"""

import dataclasses
from fractions import Fraction

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.packet import denormalised
from golden.vqllm.config import MatrixShape, VqShape
from golden.vqllm.matrix import VqMatrix, encode, quantize
from tests.vqllm.matrices import SHAPES, matrix_of, real_of


def _tile_number(shape, row, vector):
    down, along = row // shape.tile_rows, vector // shape.tile_vectors
    return down * shape.grid[1] + along


@pytest.mark.parametrize("name", SHAPES)
def test_dequantized_is_one_rounding_of_the_sum(name):
    matrix = matrix_of(name)
    shape, words = matrix.shape, matrix.dequantized()
    books = denormalised(matrix.codebooks.flatten(0, 1), 0).unflatten(0, (-1, shape.vq.stages))
    for row in range(shape.rows):
        for column in range(shape.columns):
            vector, place = divmod(column, shape.vq.size)
            tile = _tile_number(shape, row, vector)
            codes = matrix.codes[row, vector].tolist()
            total = sum(Fraction(float(books[tile, s, c, place])) for s, c in enumerate(codes))
            assert words[row, column] == bits_from_float(torch.tensor(float(total)).double())


@pytest.mark.parametrize("name", SHAPES)
def test_greedy_codes_are_nearest(name):
    """Each stage's code is the nearest of all entries of the codebook of the tile."""
    matrix = matrix_of(name)
    shape = matrix.shape
    real = real_of(shape).unflatten(1, (shape.vectors, shape.vq.size)).float()
    books = (float_from_bits(matrix.codebooks, FP16) * 2.0**matrix.exponent).float()
    for row in range(shape.rows):
        for vector in range(shape.vectors):
            left, tile = real[row, vector], _tile_number(shape, row, vector)
            for stage in range(shape.vq.stages):
                error = (left - books[tile, stage]).double().square().sum(-1)
                code = matrix.codes[row, vector, stage]
                assert error[code] <= error.min() + 1e-5
                left = left - books[tile, stage, code]


def test_beam_is_never_worse_and_finds_the_best_sum():
    """A beam of all entries finds what all pairs of entries find."""
    shape = MatrixShape(rows=30, columns=24, vq=VqShape(size=4, entries=8, stages=2))
    real = real_of(shape)
    greedy = quantize(real, shape)
    errors = []
    for beam in (1, 2, 8):
        codes = encode(real, shape, greedy.codebooks, greedy.exponent, beam)
        found = dataclasses.replace(greedy, codes=codes)
        errors.append((found.real() - real).square().unflatten(1, (-1, 4)).sum(-1))
    assert bool((errors[1] <= errors[0] + 1e-3).all())
    assert errors[2].sum() < errors[0].sum()
    first, second = float_from_bits(greedy.codebooks[0], FP16) * 2.0**greedy.exponent
    pairs = (first[:, None] + second).flatten(0, 1)
    best = torch.cdist(real.double().reshape(-1, 4), pairs).square().amin(1)
    assert torch.allclose(errors[2].flatten(), best, atol=1e-2, rtol=1e-2)


def test_scales_of_rows():
    shape = SHAPES["two stages"]
    real = real_of(shape) * 2.0 ** torch.arange(-12, 12)[:, None]
    plain, scaled = quantize(real, shape), quantize(real, shape, scaled=True)
    error = [
        (each.real() - real).square().sum(1) / real.square().sum(1) for each in (plain, scaled)
    ]
    assert float(error[1].mean()) < 0.5 * float(error[0].mean())
    zero = quantize(torch.zeros(shape.rows, shape.columns), shape, scaled=True)
    assert bool((zero.real() == 0).all())


def test_a_weight_moves_the_codebooks():
    shape = SHAPES["two stages"]
    real = real_of(shape)
    weight = torch.ones(shape.columns)
    weight[:8] = 1000.0
    found = [quantize(real, shape, each).real() - real for each in (None, weight)]
    error = [each[:, :8].square().mean() for each in found]
    assert error[1] < 0.7 * error[0]


def test_equal_seeds_give_equal_bits():
    one, two = matrix_of("ragged tiles"), matrix_of("ragged tiles")
    assert torch.equal(one.codebooks, two.codebooks)
    assert torch.equal(one.codes, two.codes)


def test_refused():
    matrix = matrix_of("two stages")
    shape, codes = matrix.shape, matrix.codes.clone()
    codes[3, 2, 1] = 32
    with pytest.raises(ConfigError, match=r"^codes must be 0\.\.31, not 32$"):
        dataclasses.replace(matrix, codes=codes)
    with pytest.raises(ConfigError, match=r"^codebooks must be \(1, 2, 32, 8\), not"):
        VqMatrix(shape, matrix.codebooks[:, :1], 0, matrix.codes)
    with pytest.raises(ConfigError, match=r"^scales must be \(24,\), not \(23,\)$"):
        dataclasses.replace(matrix, scales=torch.zeros(23, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"^beam must be at least 1, not 0$"):
        encode(real_of(shape), shape, matrix.codebooks, 0, 0)
    wrong = real_of(shape)
    wrong[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"^matrix must be finite$"):
        quantize(wrong, shape)
    with pytest.raises(ValueError, match=r"^matrix must be \(24, 48\)$"):
        quantize(wrong.T, shape)
