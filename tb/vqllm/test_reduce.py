"""VqReduce against sums of Python's integers: splits, stripes, lanes, bad vectors.

Shown to fail with:

- the next stripe goes on with the next cores
- ``bad`` of the last lanes alone; ``last`` at the end of a stripe
- the sum of the row before kept
- bit 6 of the row's number left out where a stripe ends, or where the job ends
"""

import pytest

from golden.config import ConfigError
from golden.vqllm.vectors.reduce import reduce_vectors
from hdl.vqllm.reduce import VqReduce, VqReduceConfig
from hdl.vqllm.row.config import VqRowSumsConfig
from tb.simulate.run import simulate

SUMS = VqRowSumsConfig(macs=4, batch=2, columns=32, rows=8)
CONFIGS = {
    "four": VqReduceConfig(sums=SUMS),
    "two_lanes": VqReduceConfig(sums=SUMS, cores=8, lanes=2),
    "one_lane": VqReduceConfig(sums=SUMS, lanes=1),
    "one_core": VqReduceConfig(sums=SUMS, cores=1, lanes=1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_reduce(name, seed):
    config = CONFIGS[name]
    vectors, params = reduce_vectors(config, seed)
    simulate(VqReduce(config), "tb.vqllm.tb_reduce", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 8}, "lanes must be a power of two in 1..4, not 8"),
        ({"sums": None}, "sums must be a configuration of sums without groups, not None"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqReduceConfig(**wrong)
    assert str(error.value) == f"VqReduceConfig.{message}"
