"""Codebooks with corners, for benches of what reads them."""

import numpy as np

from golden.million.config import PqShape
from golden.million.vectors.words import MINUS, ONE, finite, normal

CORNERS = (ONE, MINUS | ONE, 1, MINUS, 0x3FF, 0x400, 0xBBFF)


def corner_codebooks(rng, pq: PqShape, books: int) -> np.ndarray:
    """(books, M, 2**bits, sub) words of at most 1; the first rows are corners."""
    shape = (books, pq.subspaces, pq.entries, pq.sub)
    words = np.minimum(normal(rng, *shape, width=0.3) & 0x7FFF, ONE)
    words |= rng.integers(0, 2, shape) << 15
    some = finite(rng, *shape, top=ONE)
    words = np.where(rng.random((pq.entries, 1)) < 0.3, some, words)
    for row, word in enumerate(CORNERS):
        words[:, :, row] = word
    words[:, :, 7, ::2] = MINUS | ONE  # cancellation, where the words of a vector are equal
    words[:, :, 7, 1::2] = ONE
    return words
