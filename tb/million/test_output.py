"""MillionOutput against golden.million.output: sums merged, rounded and divided, in query order.

Shown to fail with:

- N not scaled, W off the grid, their sum two bits short
- N of another query or part, one element of a word for all
- the reciprocal or ``bad`` of query 0, a bad query's words not NaN, the scale of the next group
- words of queries that do not count, their exact sums left over, ``last`` of the wrong query
- outputs before the last part, or before their exact sums
- N of a group over that of the one before, with or without its last reads
- an element lost where a beat is not taken
- a sum of weights one bit short
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.million.config import HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.vectors.output import vectors
from hdl.million.output import MillionOutput, MillionOutputConfig
from tb.simulate.run import simulate


def sized(head_dim, subspaces, bits, window=36, **rate):
    cache = MillionConfig(
        pq=PqShape(head_dim=head_dim, subspaces=subspaces, bits=bits),
        head=HeadShape(heads=1, group=2),
        window=WindowShape(sinks=0, block=window),
        layers=1,
    )
    return MillionOutputConfig(cache=cache, rate=RateShape(**rate))


CONFIGS = {
    "small": sized(16, 4, 4, macs=8, queries=2, window_macs=8, lanes=8),
    "one_query": sized(16, 4, 5, macs=4, queries=1, window_macs=16, lanes=4),
    "two_elements": sized(32, 8, 5, macs=16, queries=3, window_macs=4, lanes=16),
    "eight_elements": sized(64, 16, 4, macs=16, queries=5, window_macs=16, lanes=8),
    "three_parts": sized(48, 12, 4, macs=16, queries=2, window_macs=16, lanes=8),
    "smollm2": sized(64, 32, 8, queries=3),
    "full": sized(128, 64, 8),
    "long_window": sized(64, 32, 8, window=256, macs=64, queries=8, window_macs=64, lanes=64),
}


@pytest.mark.telling("small", "one_query", "two_elements", "three_parts")
@pytest.mark.parametrize("name", CONFIGS)
def test_output(name, seed):
    config = CONFIGS[name]
    words, params = vectors(config, np.random.default_rng([seed, 85]))
    simulate(
        MillionOutput(config), "tb.million.tb_output", params={"words": words, **params}, seed=seed
    )


def test_elements():
    """Outputs take half the cycles of a word's pass over a codebook."""
    assert [CONFIGS[name].elements for name in CONFIGS] == [2, 1, 2, 8, 8, 1, 1, 1]
    for config in CONFIGS.values():
        size, entries = config.cache.pq.head_dim, config.cache.pq.entries
        assert 2 * size <= entries * config.elements or config.elements >= 8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": RateShape(lanes=64, macs=256)}, "macs must be a divisor of head_dim = 128"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        MillionOutputConfig(**wrong)
