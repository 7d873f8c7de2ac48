"""KllmRowReader against golden.kllm.phases.walk_rows.

Shown to fail with:

- a request that has no place
- rows of ``i`` taken while rows are on order
- a walk ready too early
- no stride for the first row
- no stride for the second row
- pairs ignored
- a bit of the step's number stuck at 0 (``longest_walks`` alone)
- a bit of the row's number stuck at 0
- a bit of the token's number stuck at 0 (``longest_walks`` alone)
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.kllm.phases import walk_rows
from hdl.kllm.function.job import row_walk_layout
from hdl.kllm.function.row_reader import KllmRowReader, KllmRowReaderConfig
from tb.simulate.run import simulate

CONFIGS = {name: KllmRowReaderConfig(depth=depth) for name, depth in
           {"depth_2": 2, "depth_4": 4, "depth_9": 9}.items()}  # fmt: skip
ROWS = 512


def random_walk(rng) -> dict[str, int]:
    pair = int(rng.integers(0, 2))
    return {
        "first": int(rng.integers(0, 200)), "second": int(rng.integers(1, 255)) << 8,
        "stride": int(rng.integers(0, 12)), "steps": int(rng.integers(1, 9)),
        "tokens": int(rng.integers(1, 7)), "pair": pair,
    }  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_row_reader(name, seed):
    rng = np.random.default_rng([seed, 82])
    memory = [int.from_bytes(rng.bytes(32), "little") for _ in range(ROWS)]
    others = [int.from_bytes(rng.bytes(32), "little") for _ in range(40)]
    walks = [random_walk(rng) for _ in range(20)]
    long = random_walk(rng) | {"steps": 40, "tokens": 3}
    walks.append(long)
    longest = [
        long | {"steps": (1 << 13) - 1, "tokens": 1, "pair": 0},
        long | {"stride": 1, "steps": 1, "tokens": 255, "pair": 0},
    ]
    simulate(
        KllmRowReader(CONFIGS[name]),
        "tb.kllm.tb_row_reader",
        params={
            "memory": memory,
            "others": others,
            "walks": [row_walk_layout.const(walk).as_bits() for walk in walks],
            "rows": [walk_rows(**walk) for walk in walks],
            "longest": [row_walk_layout.const(walk).as_bits() for walk in longest],
            "longest_rows": [walk_rows(**walk) for walk in longest],
        },
        seed=seed,
    )


@pytest.mark.parametrize("depth", [1, 65])
def test_rejects(depth):
    with pytest.raises(ConfigError, match="depth"):
        KllmRowReaderConfig(depth=depth)
