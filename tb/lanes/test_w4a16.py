"""LaneW4a16 against golden.lanes.sums.w4a16_packet. tb/lanes/test_fp16.py has the multipliers.

Shown to fail:

- two entries of the table exchanged;
- an entry written without valid;
- the highest bit of an index left out;
- a bit of an entry stuck at 0 or at 1.
"""

import pytest

from golden.lanes.vectors.w4a16 import w4a16_vectors
from hdl.lanes.config import LaneW4a16Config
from hdl.lanes.room import BLOCKS
from hdl.lanes.w4a16 import LaneW4a16
from tb.simulate.run import simulate

SMALL = BLOCKS["lane_w4a16"].configs["small"]
CONFIGS = {
    "small": SMALL,
    "sixteen": LaneW4a16Config(columns=2, k_max=200),
    "two_bits": LaneW4a16Config(elements=5, columns=4, k_max=100, bits_w=2, guard_bits=0),
    "smallest": LaneW4a16Config(elements=1, columns=1, k_max=1, guard_bits=40),
    "longest": LaneW4a16Config(elements=4, columns=2, k_max=16383, bits_w=2),
    "most_columns": LaneW4a16Config(elements=1, columns=64, k_max=100),
}


@pytest.mark.telling("small", "longest")
@pytest.mark.parametrize("name", CONFIGS)
def test_w4a16(name, seed):
    config = CONFIGS[name]
    vectors, params = w4a16_vectors(config, seed)
    simulate(LaneW4a16(config), "tb.lanes.tb_lane", vectors=vectors, params=params, seed=seed)
