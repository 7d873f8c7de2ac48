"""LaneInteger against golden.lanes.sums.integer_packet.

Shown to fail:

- a partial product of a sign bit that is not inverted;
- the constant one element short;
- one carry of the tree left out;
- the chain tied to its own column;
- a stage that moves while the accumulators wait for the chain.
"""

import pytest

from golden.lanes.vectors.integer import integer_vectors
from hdl.lanes.config import LaneIntegerConfig
from hdl.lanes.integer import LaneInteger
from hdl.lanes.room import BLOCKS
from tb.simulate.run import simulate

SMALL = BLOCKS["lane_integer"].configs["small"]
CONFIGS = {
    "small": SMALL,
    "int8": LaneIntegerConfig(columns=4, k_max=200),
    "int4": LaneIntegerConfig(columns=5, k_max=200, bits_a=4, bits_w=4),
    "narrow": LaneIntegerConfig(elements=7, columns=2, k_max=30, bits_a=2, bits_w=8),
    "smallest": LaneIntegerConfig(elements=1, columns=1, k_max=1, bits_a=2, bits_w=2),
    "longest": LaneIntegerConfig(elements=2, columns=2, k_max=16383),
    "most_columns": LaneIntegerConfig(elements=2, columns=64, k_max=200, bits_a=3, bits_w=2),
}


@pytest.mark.telling("small", "smallest")
@pytest.mark.parametrize("name", CONFIGS)
def test_integer(name, seed):
    config = CONFIGS[name]
    vectors, params = integer_vectors(config, seed)
    simulate(LaneInteger(config), "tb.lanes.tb_lane", vectors=vectors, params=params, seed=seed)
