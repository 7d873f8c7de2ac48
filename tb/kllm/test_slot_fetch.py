"""KllmSlotFetch against golden.kllm.phases.fetched.

Shown to fail with:

- answers given to the other slot
- a request that has no place
- no turns
- every request to the first slot
- a bit of a slot's number that another one inverts
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.kllm.phases import fetched
from hdl.kllm.function.slot_fetch import KllmSlotFetch, KllmSlotFetchConfig
from tb.simulate.run import simulate

CONFIGS = {
    "outliers": KllmSlotFetchConfig(),
    "entries": KllmSlotFetchConfig(word_bits=144, count_max=37, position_bits=10, depth=4),
    "all_positions": KllmSlotFetchConfig(count_max=16, position_bits=4, depth=3),
    "smallest": KllmSlotFetchConfig(word_bits=1, count_max=3, position_bits=2, depth=2),
}
SLOTS, WALKS = 20, 24


@pytest.mark.parametrize("name", CONFIGS)
def test_slot_fetch(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 85])
    slots = rng.permutation(256)[:SLOTS].tolist()
    memory = {
        slot: [
            int.from_bytes(rng.bytes(512), "little") % (1 << config.word_bits)
            for _ in range(config.count_max)
        ]
        for slot in slots
    }
    walks, words = [], []
    for n in range(WALKS):
        count = rng.integers(0, config.count_max + 1, 2)
        if n < 4:  # one slot, none, all
            count = config.count_max * np.array([(1, 0), (0, 1), (0, 0), (1, 1)][n])
        walk = {"slot": rng.choice(slots, 2).tolist(), "count": count.tolist()}
        walks.append(config.walk_layout.const(walk).as_bits())
        words.append(fetched(memory, walk["slot"], walk["count"]))
    simulate(
        KllmSlotFetch(config),
        "tb.kllm.tb_slot_fetch",
        params={"memory": memory, "walks": walks, "words": words},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"position_bits": 5}, "position_bits must be 6..16, not 5"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        KllmSlotFetchConfig(**wrong)
