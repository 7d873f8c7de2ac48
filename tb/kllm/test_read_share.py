"""KllmReadShare: the reads of several readers, and the words of each."""

import random

import pytest

from golden.words import join
from hdl.kllm.room import BLOCKS
from hdl.kllm.slots.read_share import KllmReadShare
from tb.simulate.run import simulate

CONFIGS = BLOCKS["kllm_read_share"].configs


@pytest.mark.parametrize("name", CONFIGS)
def test_read_share(name, seed):
    config = CONFIGS[name]
    rng = random.Random(f"{seed} share")
    reads = []
    for reader in range(config.readers):
        mine = []
        for _ in range(30):
            count = rng.choice([1, 1, 2, 3, 16, 40])
            row = reader << 20 | rng.getrandbits(19)  # the reader is in the address
            mine.append((row, count))
        reads.append(mine)
    words = {
        f"i_{k}": [join((32 * row, config.address_bits), (count, 17)) for row, count in mine]
        for k, mine in enumerate(reads)
    }
    simulate(
        KllmReadShare(config), "tb.kllm.tb_read_share", seed=seed,
        params={"reads": reads, "words": words},
    )  # fmt: skip
