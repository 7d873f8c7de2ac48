"""Products of vectors with a quantized matrix, fused with its dequantization, bit-true.

| scales | result |
|---|---|
| none | ``y[n] = rne16(2**exponent * S[n])`` |
| of rows | ``y[n] = rne16(scale[n] * rne32(2**exponent * S[n]))`` |

S is an exact sum. So neither the order of columns nor their split over engines changes a bit. Words
are int64 tensors of FP16 bit patterns, any device.
"""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.limbs import Limbs, from_shifted
from golden.fp16.ops import fixed_point, from_fixed, is_special, mul
from golden.index.format import GRID_PRODUCT_EXACT, GRID_PRODUCT_ROUNDED
from golden.index.tables import tables
from golden.vqllm.matrix import VqMatrix

_PIECE = 10  # bits of x in a product in float64: 2**(10 + 27 + 15) < 2**53
_PIECES = 4  # an element of x has 41 bits with its sign, so the last piece has 11
_COLUMNS = 1 << 15  # of one product in float64
_CHUNK = 1 << 22  # table entries that a step holds at a time


def by_dequantizing(x: Tensor, matrix: VqMatrix) -> tuple[Tensor, Tensor]:
    """S[n] = sum over columns k of x[k] * W[n][k], W of ``matrix.dequantized``.

    x: (batch, columns) words. Returns y (batch, rows) words, and (batch,) booleans: x has a NaN or
    an infinity, and its y is NaN (0x7E00). ConfigError: x has other columns than the matrix.
    """
    _check_columns(x, matrix)
    sums = exact_sums(x, matrix.dequantized())
    words = rounded(sums, GRID_PRODUCT_EXACT + matrix.exponent, matrix.scales)
    return _or_nan(words, is_special(x.long()).any(-1))


def by_tables(x: Tensor, matrix: VqMatrix) -> tuple[Tensor, Tensor]:
    """S[n] = sum over vectors v and stages z of T[z][v][code], of the tables of x.

    ``T[z][v][j] = rne16(2**exponent * sum_i x[v][i] * C[z][j][i])``, so S includes the exponent.
    x, y: as for ``by_dequantizing``. An infinite entry makes the results that look it up NaN, too.
    ConfigError: the entries are those of the lattice, whose signs differ from code to code.
    """
    shape = matrix.shape
    _check_columns(x, matrix)
    if shape.vq.lattice:
        raise ConfigError("tables must be of entries as they are stored, not of a lattice's")
    total = torch.zeros(len(x), shape.rows, dtype=torch.int64, device=x.device)
    infinite = torch.zeros_like(total, dtype=torch.bool)
    vectors = x.unflatten(1, (shape.vectors, shape.vq.size))
    step = max(1, _CHUNK // (len(x) * shape.vq.entries * shape.vq.size))
    for number, tile in enumerate(shape.tiles):
        for first in range(tile.vectors.start, tile.vectors.stop, step):
            part = slice(first, min(first + step, tile.vectors.stop))
            for stage in range(shape.vq.stages):
                book = matrix.codebooks[number, stage].expand(part.stop - part.start, -1, -1)
                table, _ = tables(vectors[:, part].flatten(1), book, matrix.exponent)
                code = matrix.codes[tile.rows, part, stage].T.expand(len(x), -1, -1)
                total[:, tile.rows] += fixed_point(table).gather(2, code).sum(1)
                infinite[:, tile.rows] |= is_special(table).gather(2, code).any(1)
    sums = from_shifted([(total, 0)])
    words = rounded(sums, GRID_PRODUCT_ROUNDED, matrix.scales)
    words = torch.where(infinite, FP16.canonical_nan, words)
    return _or_nan(words, is_special(x.long()).any(-1))


def exact_sums(x: Tensor, weight: Tensor) -> Limbs:
    """``x @ weight.T`` on the grid 2**-48 of (batch, k) and (rows, k) words, |weight| <= 8.

    A NaN or an infinity counts as a number of the binade above the largest.
    """
    x, weight = fixed_point(x), fixed_point(weight).double()
    terms = []
    for columns in range(0, x.shape[1], _COLUMNS):
        some = slice(columns, columns + _COLUMNS)
        for number in range(_PIECES):
            piece = x[:, some] >> _PIECE * number
            if number < _PIECES - 1:
                piece = piece & (1 << _PIECE) - 1
            product = piece.double() @ weight[:, some].T
            terms.append((product.long(), _PIECE * number))
    return from_shifted(terms)


def rounded(sums: Limbs, grid: int, scales: Tensor | None) -> Tensor:
    """``rne16(2**grid * S)``, or ``rne16(scale * rne32(2**grid * S))`` with scales of the rows."""
    if scales is None:
        return from_fixed(sums.low, grid, FP16, high=sums.high)
    single = from_fixed(sums.low, grid, FP32, high=sums.high)
    return mul(single, scales.to(single.device), FP32, FP16, FP16)


def _check_columns(x: Tensor, matrix: VqMatrix) -> None:
    if x.ndim != 2 or x.shape[1] != matrix.shape.columns:
        raise ConfigError(f"x must be (batch, {matrix.shape.columns}), not {tuple(x.shape)}")


def _or_nan(words: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(bad[:, None], FP16.canonical_nan, words), bad
