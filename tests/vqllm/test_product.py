"""Products with quantized matrices, against fractions.

Shown to fail: the exponent left out; codebooks of stage 0 for all stages; the sum rounded to FP16
before the scale.
"""

from fractions import Fraction

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float, float_from_bits, mul
from golden.vqllm.matrix import VqMatrix
from golden.vqllm.product import by_dequantizing, by_tables
from tests.exact import rounded
from tests.vqllm.matrices import SHAPES, matrix_of


def _fractions(words):
    return [[Fraction(float(each)) for each in row] for row in float_from_bits(words, FP16)]


def _vectors(columns, seed=5):
    """Normal ones, the largest finite words of both signs, and subnormal ones."""
    generator = torch.Generator().manual_seed(seed)
    normal = bits_from_float(torch.randn(3, columns, generator=generator))
    sign = torch.randint(0, 2, (1, columns), generator=generator) << 15
    large = 0x7BFF | sign
    small = torch.randint(0, 0x400, (1, columns), generator=generator) | sign
    return torch.cat((normal, large, small))


def _expected(sums, matrix, row):
    """sums: the exact sum with its exponent, as a fraction."""
    if matrix.scales is None:
        return rounded(sums, FP16)
    single = torch.tensor(rounded(sums, FP32))
    return int(mul(single, matrix.scales[row], FP32, FP16, FP16))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_by_dequantizing(name, scaled):
    matrix = matrix_of(name, scaled=scaled)
    x = _vectors(matrix.shape.columns)
    y, bad = by_dequantizing(x, matrix)
    assert not bool(bad.any())
    weights = _fractions(matrix.dequantized())
    for n, vector in enumerate(_fractions(x)):
        for row, weight in enumerate(weights):
            total = sum(a * b for a, b in zip(vector, weight, strict=True))
            assert int(y[n, row]) == _expected(total * Fraction(2) ** matrix.exponent, matrix, row)


@pytest.mark.parametrize("product", [by_dequantizing, by_tables])
@pytest.mark.parametrize("more", [-1, 1, 8])
def test_x_of_another_length(product, more):
    matrix = matrix_of("two stages")
    columns = matrix.shape.columns
    with pytest.raises(ConfigError) as error:
        product(_vectors(columns + more), matrix)
    assert str(error.value) == f"x must be (batch, {columns}), not (5, {columns + more})"


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_by_tables(name, scaled):
    matrix = matrix_of(name, scaled=scaled)
    shape, vq = matrix.shape, matrix.shape.vq
    x = _vectors(shape.columns)[[0, 1, 2, 4]]
    y, bad = by_tables(x, matrix)
    assert not bool(bad.any())
    power = Fraction(2) ** matrix.exponent
    for n, vector in enumerate(_fractions(x)):
        for row in range(0, shape.rows, 3):
            total = Fraction(0)
            for v in range(shape.vectors):
                tile = row // shape.tile_rows * shape.grid[1] + v // shape.tile_vectors
                part = vector[v * vq.size : (v + 1) * vq.size]
                for stage in range(vq.stages):
                    book = matrix.codebooks[tile, stage, matrix.codes[row, v, stage]][None]
                    entry = _fractions(book)[0]
                    product = power * sum(a * b for a, b in zip(part, entry, strict=True))
                    word = torch.tensor(rounded(product, FP16))
                    total += Fraction(float(float_from_bits(word, FP16)))
            assert int(y[n, row]) == _expected(total, matrix, row)


@pytest.mark.parametrize("product", [by_dequantizing, by_tables])
def test_nan_and_infinity_spoil_their_vector_alone(product):
    matrix = matrix_of("ragged tiles")
    x = _vectors(matrix.shape.columns)[:3]
    clean, _ = product(x, matrix)
    x[0, 35], x[2, 0] = 0x7E01, 0xFC00
    y, bad = product(x, matrix)
    assert bad.tolist() == [True, False, True]
    assert bool((y[[0, 2]] == FP16.canonical_nan).all())
    assert torch.equal(y[1], clean[1])


def test_an_infinite_entry_of_a_table_spoils_the_rows_that_look_it_up():
    matrix = matrix_of("vectors of 16")
    x = torch.full((1, matrix.shape.columns), 0x7BFF)
    books = torch.zeros_like(matrix.codebooks)
    books[:, 1, 3] = 0x3C00
    y, bad = by_tables(x, VqMatrix(matrix.shape, books, 0, matrix.codes))
    names = (matrix.codes[:, :, 1] == 3).any(1)
    assert bad.tolist() == [False]
    assert 0 < int(names.sum()) < len(names)
    assert torch.equal(y[0], torch.where(names, FP16.canonical_nan, 0))


def test_the_order_of_rows_and_a_split_of_columns_change_no_bit():
    """Sums of parts of the columns add to the sum of all: the engine may split."""
    matrix = matrix_of("two stages")
    x = _vectors(48)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    turned = VqMatrix(matrix.shape, matrix.codebooks, matrix.exponent, matrix.codes[order])
    assert torch.equal(by_dequantizing(x, turned)[0], by_dequantizing(x, matrix)[0][:, order])
