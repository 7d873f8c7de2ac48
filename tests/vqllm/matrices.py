"""Quantized matrices of all shapes, trained in a moment."""

import torch

from golden.index.lloyd import Training
from golden.vqllm.config import MatrixShape, VqShape
from golden.vqllm.matrix import VqMatrix, quantize

SHAPES = {
    "two stages": MatrixShape(rows=24, columns=48, vq=VqShape(entries=32)),
    "ragged tiles": MatrixShape(
        rows=20,
        columns=36,
        vq=VqShape(size=4, entries=8, stages=1, tile_rows=16, tile_columns=16),
    ),
    "channel groups": MatrixShape(
        rows=40, columns=8, vq=VqShape(size=2, entries=16, stages=1, tile_columns=2)
    ),
    "four stages of one element": MatrixShape(
        rows=9, columns=11, vq=VqShape(size=1, entries=4, stages=4)
    ),
    "vectors of three": MatrixShape(rows=10, columns=24, vq=VqShape(size=3, entries=8, stages=2)),
    "vectors of 16": MatrixShape(rows=12, columns=64, vq=VqShape(size=16, entries=16, stages=3)),
}


def matrix_of(name: str, seed: int = 3, scaled: bool = False, beam: int = 1) -> VqMatrix:
    shape = SHAPES[name]
    return quantize(real_of(shape, seed), shape, None, Training(seed=seed), beam, scaled)


def real_of(shape: MatrixShape, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape.rows, shape.columns, generator=generator)
