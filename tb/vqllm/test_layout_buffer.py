"""VqLayoutBuffer against Algorithm 1: each element in its lane and beat, at the full rate.

Shown to fail with:

- rows or banks without skew; a piece of the wrong lane
- reads of the side that is written; a side that is readable or free one row early
- writes without a free side, and with only one side in use
- a read while a word waits; ``i.ready`` in the first cycle
- one ``last`` for both sides, or with every beat; a side that is not reset
"""

import numpy as np
import pytest

from golden.vqllm.config import ExchangeShape
from golden.vqllm.vectors.pieces import beats_of
from hdl.vqllm.layout_buffer import VqLayoutBuffer, VqLayoutBufferConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": VqLayoutBufferConfig(),
    "gptvq2": VqLayoutBufferConfig(shape=ExchangeShape(size=4, need=2, lanes=16)),
    "cq4": VqLayoutBufferConfig(shape=ExchangeShape(size=2, need=1, lanes=32)),
    "widest": VqLayoutBufferConfig(shape=ExchangeShape(size=16, need=1, lanes=16)),
    "to four": VqLayoutBufferConfig(shape=ExchangeShape(size=8, need=4, lanes=6)),
    "three elements": VqLayoutBufferConfig(shape=ExchangeShape(size=12, need=3, lanes=4)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_layout_buffer(name, seed):
    config = CONFIGS[name]
    vectors, params = beats_of(config, np.random.default_rng([seed, 167]))
    simulate(
        VqLayoutBuffer(config),
        "tb.vqllm.tb_exchange",
        vectors=vectors,
        params=params | {"waits": True},
        seed=seed,
    )
