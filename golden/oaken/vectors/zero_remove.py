"""Blocks for OakenZeroRemove, with the records of golden."""

import numpy as np
import torch

from golden.oaken.format import Group
from golden.oaken.quantize import Encoded, sparse_records
from golden.words import layout_words


def remove_vectors(config, seed, blocks=300):
    """Blocks of every fraction of entries, none and all among them; junk where there is none."""
    rng = np.random.default_rng([seed, 67])
    block, lanes = config.block, config.lanes
    group = np.full((blocks, block), Group.MIDDLE)
    for n in range(blocks):
        fraction = (0.0, 1.0, 0.1, 0.5, 0.9, 0.02)[n % 6]
        outlier = rng.random(block) < fraction
        if n % 13 == 5:  # a run that starts and ends anywhere
            edges = sorted(rng.integers(0, block + 1, 2))
            outlier = (np.arange(block) >= edges[0]) & (np.arange(block) < edges[1])
        group[n, outlier] = rng.choice([Group.INNER, Group.OUTER], int(outlier.sum()))
    fifth = rng.integers(0, 2, group.shape)
    keep = group != Group.MIDDLE
    encoded = Encoded(
        scale=torch.zeros(blocks, 6, dtype=torch.int64),
        code=torch.zeros(blocks, block, dtype=torch.int64),
        group=torch.tensor(group),
        fifth=torch.tensor(fifth * keep),
    )
    records = [heads[0] for heads in sparse_records(encoded, block, block)]
    byte = np.arange(block) | (group == Group.OUTER) << 6 | fifth << 7
    byte = np.where(keep, byte, rng.integers(0, 256, byte.shape))
    beats = block // lanes
    vector_last = rng.integers(0, 2, blocks)
    last = np.tile(np.arange(beats) == beats - 1, blocks)
    noise = np.where(last, np.repeat(vector_last, beats), rng.integers(0, 2, blocks * beats))
    padded = np.array([list(record) + [0] * (block + 1 - len(record)) for record in records])
    used = np.array([len(record) for record in records])
    return {
        "i": layout_words(
            config.i_layout,
            byte=byte.reshape(-1, lanes),
            keep=keep.reshape(-1, lanes),
            last=last,
            vector_last=noise,
        ),
        "o": layout_words(config.o_layout, data=padded, bytes=used, last=vector_last),
    }
