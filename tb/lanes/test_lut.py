"""LaneLut against golden.lanes.sums.table_packet.

Shown to fail:

- the one that completes a negated entry left out;
- two activations of a table exchanged;
- a plane one place too low;
- the words of the weights not held for the tables.
"""

import dataclasses

import numpy as np
import pytest

from golden.config import ConfigError
from golden.lanes.format import GROUP, plane_words
from golden.lanes.sums import table_packet
from hdl.lanes.config import LaneLutConfig
from hdl.lanes.lut import LaneLut
from hdl.lanes.room import BLOCKS
from tb.lanes.support.packets import lane_vectors, lengths
from tb.run import simulate

SMALL = BLOCKS["lane_lut"].configs["small"]
CONFIGS = {
    "small": SMALL,
    "int8_int4": LaneLutConfig(columns=4, k_max=200),
    "int16_int2": LaneLutConfig(elements=12, columns=5, k_max=100, bits_a=16, bits_w=2),
    "narrow": LaneLutConfig(elements=4, columns=2, k_max=30, bits_a=2, bits_w=8),
    "smallest": LaneLutConfig(elements=4, columns=1, k_max=1, bits_a=2, bits_w=1),
    "longest": LaneLutConfig(elements=4, columns=2, k_max=16383),
    "most_columns": LaneLutConfig(elements=4, columns=64, k_max=200, bits_a=3, bits_w=2),
}


def lut_vectors(config: LaneLutConfig, seed):
    """(vectors, params): random operands, and those at the ends of their ranges."""
    rng = np.random.default_rng([seed, 283])
    low, high = -(1 << config.bits_a - 1), (1 << config.bits_a - 1) - 1
    most = 2**config.bits_w - 1

    def packet(kind: str, beats: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (beats, config.elements)
        codes = (beats, config.columns, config.groups, GROUP)
        if kind == "random":
            a, code = (
                rng.integers(low, high, shape, endpoint=True),
                rng.integers(0, most + 1, codes),
            )
        elif kind == "ends":
            a, code = rng.choice([low, high, 0, -1], shape), rng.choice([0, most], codes)
        else:
            a, code = np.full(shape, low), np.full(codes, 0)
        flat = [plane_words(four, config.bits_w) for four in code.reshape(-1, GROUP).tolist()]
        return a, np.array(flat).reshape(*codes[:3], config.bits_w)

    phases = {
        kind: [packet(kind, beats) for beats in lengths(config, rng)]
        for kind in ("random", "ends", "lowest")
    }
    return lane_vectors(config, phases, table_packet)


@pytest.mark.parametrize("name", CONFIGS)
def test_lut(name, seed):
    config = CONFIGS[name]
    vectors, params = lut_vectors(config, seed)
    simulate(LaneLut(config), "tb.lanes.tb_lane", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"elements": 0}, "elements must be 4 or 8 or 12 or 16, not 0"),
        ({"elements": 6}, "elements must be 4 or 8 or 12 or 16, not 6"),
        ({"columns": 65}, "columns must be 1..64, not 65"),
        ({"k_max": 16384}, "k_max must be 1..16383, not 16384"),
        ({"bits_a": 1}, "bits_a must be 2..16, not 1"),
        ({"bits_a": 17}, "bits_a must be 2..16, not 17"),
        ({"bits_w": 0}, "bits_w must be 1..8, not 0"),
        ({"bits_w": 9}, "bits_w must be 1..8, not 9"),
    ],
)
def test_rejects(change, message):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(SMALL, **change)
    assert str(error.value) == f"LaneLutConfig.{message}"
