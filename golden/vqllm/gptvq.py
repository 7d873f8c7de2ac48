"""Codebooks and codes that lower the error of outputs, with feedback of errors (GPTVQ).

Source: van Baalen et al., "GPTVQ: The Blessing of Dimensionality for LLM Quantization", on GPTQ's
error feedback. A vector of columns is quantized at once, and its error feeds back to the columns
after it. No codebook is trained after its codes are chosen.
"""

import dataclasses

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index import lloyd
from golden.index.hessian import inverse_root
from golden.index.lloyd import DEFAULT, Training
from golden.index.packet import normalised
from golden.vqllm.config import MatrixShape, Tile
from golden.vqllm.matrix import VqMatrix, batches, checked, pick, scaled_rows, search, summed

_HEADROOM = 1  # powers of two by which feedback may move centroids beyond the largest weight


def quantize_with_feedback(
    matrix: Tensor,
    shape: MatrixShape,
    hessian: Tensor,
    training: Training = DEFAULT,
    beam: int = 1,
    scaled: bool = False,
    damping: float = 0.01,
) -> VqMatrix:
    """argmin_Q tr((W - Q) H (W - Q)^T), greedily over vectors of columns v, U^T U = H^-1:

        e = (w_v - q_v) U[v, v]^-1,   w_j -= e U[v, j] for all columns j behind v

    matrix: (rows, columns) W
    hessian: (columns, columns), sum of x x^T, any factor

    The codes of w_v are the nearest after both are multiplied by U[v, v]^-1, so each minimises
    |e|**2. The codebooks of a tile are trained when its first column is reached, on the weights as
    feedback has left them, by residual k-means as in ``quantize``. The mean over a vector of
    ``1 / U[k, k]**2``, times the square of a row's scale, weighs it. A column whose input is always
    0 counts as 0. Centroids beyond twice the largest weight are moved there.

    ValueError: as ``quantize``.
    """
    checked(matrix, shape)
    scales = None
    weight_of_row = matrix.new_ones(shape.rows)
    if scaled:
        scales, matrix = scaled_rows(matrix)
        weight_of_row = float_from_bits(scales, FP16).float() ** 2
    w = matrix.float().clone()
    w[:, hessian.diagonal() == 0] = 0
    u = inverse_root(hessian, damping)
    importance = u.diagonal() ** -2
    exponent = normalised(w.abs().amax()[None, None, None])[1] + _HEADROOM
    vq, tiles = shape.vq, shape.tiles
    books = torch.empty(len(tiles), vq.stages, vq.entries, vq.size, dtype=torch.int64)
    codes = torch.empty(shape.rows, shape.vectors, vq.stages, dtype=torch.int64)
    books, codes = books.to(w.device), codes.to(w.device)
    columns = shape.grid[1]
    for first in range(columns):
        numbers = range(first, len(tiles), columns)
        own = {number: tiles[number] for number in numbers}
        for some, samples in batches(w.unflatten(1, (shape.vectors, vq.size)), own):
            weight = torch.stack(
                [_weights(own[number], importance, weight_of_row, vq.size) for number in some]
            )
            books[some] = _train(samples, weight, vq.entries, vq.stages, training, exponent)
        for vector in range(tiles[first].vectors.start, tiles[first].vectors.stop):
            here = slice(vector * vq.size, (vector + 1) * vq.size)
            inverse = torch.linalg.inv(u[here, here])
            one = {
                number: Tile(tile.rows, slice(vector, vector + 1)) for number, tile in own.items()
            }
            error = torch.empty(shape.rows, vq.size, device=w.device)
            for some, samples in batches(w.unflatten(1, (shape.vectors, vq.size)), one):
                real = (float_from_bits(books[some], FP16) * 2.0**exponent).float()
                found = search(samples @ inverse, real @ inverse, beam)
                for number, x, code in zip(some, samples, found, strict=True):
                    rows = own[number].rows
                    codes[rows, vector] = code
                    stage = torch.arange(vq.stages, device=code.device)
                    words = summed(books[number][stage, code])
                    q = (float_from_bits(words, FP16) * 2.0**exponent).float()
                    error[rows] = (x - q) @ inverse
            w[:, here.stop :] -= error @ u[here, here.stop :]
    return VqMatrix(shape, books, exponent, codes, scales)


def _weights(tile: Tile, importance: Tensor, weight_of_row: Tensor, size: int) -> Tensor:
    """Weighs the vectors of a tile, row by row: (n,)."""
    of_vector = importance.unflatten(0, (-1, size)).mean(1)[tile.vectors]
    return (weight_of_row[tile.rows, None] * of_vector).flatten()


def _train(
    left: Tensor, weight: Tensor, entries: int, stages: int, training: Training, exponent: int
) -> Tensor:
    """Words of the codebooks of samples (S, n, size): (S, stages, entries, size)."""
    words = []
    for stage in range(stages):
        own = dataclasses.replace(training, seed=training.seed + stage)
        found = lloyd.kmeans(left, entries, weight, own).centroids
        words.append(bits_from_float((found.double() * 2.0**-exponent).clamp(-1, 1)))
        left = left - pick(found, lloyd.assign(left, found))
    return torch.stack(words, 1)
