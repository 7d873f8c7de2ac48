"""LaneFp16 against golden.lanes.sums.fp16_packet.

Shown to fail:

- the one that completes a negative product left out;
- the accumulator left where it was when the exponent grows;
- the largest exponent kept over the end of a packet;
- the exponent of a subnormal word taken as 0;
- the place of the grid taken a beat too early.
"""

import pytest

from golden.lanes.vectors.fp16 import fp16_vectors
from hdl.lanes.config import LaneFp16Config
from hdl.lanes.fp16 import LaneFp16
from hdl.lanes.room import BLOCKS
from tb.simulate.run import simulate

SMALL = BLOCKS["lane_fp16"].configs["small"]
CONFIGS = {
    "small": SMALL,
    "sixteen": LaneFp16Config(columns=2, k_max=200),
    "no_guard": LaneFp16Config(elements=5, columns=4, k_max=100, guard_bits=0),
    "most_guard": LaneFp16Config(elements=2, columns=3, k_max=100, guard_bits=40),
    "smallest": LaneFp16Config(elements=1, columns=1, k_max=1),
    "longest": LaneFp16Config(elements=4, columns=2, k_max=16383),
    "most_columns": LaneFp16Config(elements=1, columns=64, k_max=100, guard_bits=1),
}


@pytest.mark.telling("small", "smallest")
@pytest.mark.parametrize("name", CONFIGS)
def test_fp16(name, seed):
    config = CONFIGS[name]
    vectors, params = fp16_vectors(config, seed)
    simulate(LaneFp16(config), "tb.lanes.tb_lane", vectors=vectors, params=params, seed=seed)
