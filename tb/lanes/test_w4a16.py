"""LaneW4a16 against golden.lanes.sums.w4a16_packet. tb/lanes/test_fp16.py has the multipliers.

Shown to fail:

- two entries of the table exchanged;
- an entry written without valid;
- the highest bit of an index left out;
- a bit of an entry stuck at 0 or at 1.
"""

import dataclasses

import pytest

from golden.config import ConfigError
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"elements": 17}, "elements must be 1..16, not 17"),
        ({"guard_bits": 41}, "guard_bits must be 0..40, not 41"),
        ({"bits_w": 1}, "bits_w must be 2..4, not 1"),
        ({"bits_w": 5}, "bits_w must be 2..4, not 5"),
    ],
)
def test_rejects(change, message):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(SMALL, **change)
    assert str(error.value) == f"LaneW4a16Config.{message}"
