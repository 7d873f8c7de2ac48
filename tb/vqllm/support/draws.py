"""Matrices whose codes are drawn from a histogram, for the runs of plans."""

import numpy as np
import torch

from golden.vqllm.access import reordered
from golden.vqllm.config import MatrixShape
from golden.vqllm.matrix import VqMatrix


def drawn(rng: np.random.Generator, shape: MatrixShape, skew: float) -> VqMatrix:
    """Codes drawn independently, codebooks of random words; reordered by its look-ups."""
    vq, tiles = shape.vq, len(shape.tiles)
    books = rng.normal(0, 0.3, (tiles, vq.stages, vq.entries, vq.size)).clip(-1, 1)
    words = books.astype(np.float16).view(np.uint16).astype(np.int64)
    share = np.arange(1.0, vq.entries + 1) ** -skew
    codes = rng.choice(vq.entries, (shape.rows, shape.vectors, vq.stages), p=share / share.sum())
    return reordered(VqMatrix(shape, torch.tensor(words), 0, torch.tensor(codes)))
