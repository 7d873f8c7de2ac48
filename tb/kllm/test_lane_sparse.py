"""KllmLaneSparse against golden.kllm.blocks.sparse_sums: each element of a beat may be the outlier.

Shown to fail:

- the index of element 0 in place of the chosen one;
- one column's index for every column;
- ``present`` ignored;
- one bit of the exponent of one entry stuck at 1.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.index.vectors.codebooks import other_bits
from golden.kllm.blocks import sparse_sums
from golden.words import layout_words, pack
from hdl.kllm.lane.sparse import KllmLaneSparse
from hdl.kllm.room import BLOCKS
from tb.simulate.run import simulate

BOOKS = 6  # codebooks: one per flow of random_flow
SMALL = BLOCKS["kllm_lane_sparse"].configs["small"]
CONFIGS = {
    "small": SMALL,
    "odd_elements": dataclasses.replace(SMALL, elements=3, columns=4, outliers_max=40),
    "one_element": dataclasses.replace(SMALL, elements=1, columns=1, macs=1, bits_b=2),
    "widest_beat": dataclasses.replace(SMALL, elements=16, columns=2, bits_b=4, outliers_max=127),
}


def random_books(rng, entries: int) -> np.ndarray:
    """(BOOKS, entries) words of -1..1: of each pair, one has most bits that the other has not."""
    shape = (BOOKS // 2, entries)
    words = rng.integers(0, 2, shape) << 15 | rng.integers(0, 0x3C01, shape)
    words[:, [0, -1]] = 0xBC00, 0x3C00
    return np.stack([words, other_bits(words)], axis=1).reshape(BOOKS, entries)


def sparse_vectors(config, seed):
    """(vectors, params): packets, the longest with as many outliers as are allowed."""
    rng = np.random.default_rng([seed, 32])
    entries, most = 1 << config.bits_b, config.outliers_max
    books = random_books(rng, entries)
    lengths = [most, 1, 1, 1, 2 * most, *rng.integers(1, 2 * most + 2, 24).tolist()]
    words_i, sums = [], [[] for _ in books]
    for n, length in enumerate(lengths):
        x = rng.integers(0, 2, length) << 15 | rng.integers(0, 0x7C00, length)
        if n == 4:
            x = np.resize([0x7BFF, 0xFBFF, 0x0001], length)
        present = np.zeros(length, dtype=bool)
        present[rng.permutation(length)[:most]] = n != 1
        x[~present] = 0x7E00  # not read
        element = rng.integers(0, config.elements, length)
        index = rng.integers(0, entries, (length, config.columns, config.elements))
        chosen = np.take_along_axis(index, element[:, None, None], axis=2)[:, :, 0]
        for found, book in zip(sums, books, strict=True):
            found += sparse_sums(*map(torch.as_tensor, (x, present, chosen, book)))
        last = np.arange(length) == length - 1
        fields = {"present": present, "x": x, "element": element, "index": index, "last": last}
        words_i.append(layout_words(config.outlier_layout, **fields))
    last = np.arange(len(sums[0])) % config.columns == config.columns - 1
    vectors = {"i": np.concatenate(words_i), "codebook_b": pack((books, 16))}
    for n, found in enumerate(sums):
        vectors[f"o{n}"] = layout_words(config.sparse_layout, sum=found, last=last)
    return vectors, {"lengths": lengths}


@pytest.mark.parametrize("name", CONFIGS)
def test_lane_sparse(name, seed):
    config = CONFIGS[name]
    vectors, params = sparse_vectors(config, seed)
    simulate(
        KllmLaneSparse(config), "tb.kllm.tb_lane_sparse", vectors=vectors, params=params, seed=seed
    )
