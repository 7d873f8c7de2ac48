"""OakenZeroRemove against golden.oaken.quantize.sparse_records: a block's bytes, packed.

Shown to fail:

- the moves from the longest to the shortest;
- a count that a block inherits from the one before;
- bytes of the block before left after the last entry.
"""

import numpy as np
import pytest
import torch

from golden.oaken.format import Group
from golden.oaken.quantize import Encoded, sparse_records
from hdl.oaken.zero_remove import OakenZeroRemove, OakenZeroRemoveConfig
from tb.run import simulate
from tb.words import layout_words

CONFIGS = {
    "usual": OakenZeroRemoveConfig(),
    "block_of_a_beat": OakenZeroRemoveConfig(lanes=64),
    "small": OakenZeroRemoveConfig(lanes=8, block=16),
    "lanes_32": OakenZeroRemoveConfig(lanes=32, block=32),
}


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


@pytest.mark.parametrize("name", CONFIGS)
def test_zero_remove(name, seed):
    config = CONFIGS[name]
    vectors = remove_vectors(config, seed)
    simulate(OakenZeroRemove(config), "tb.oaken.tb_zero_remove", vectors=vectors, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 48}, "lanes must be a power of two in 8..64, not 48"),
        ({"block": 128}, "block must be 16 or 32 or 64, not 128"),
        ({"lanes": 32, "block": 16}, "lanes must be at most block = 16, not 32"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenZeroRemoveConfig(**wrong)
    assert str(error.value) == f"OakenZeroRemoveConfig.{message}"
