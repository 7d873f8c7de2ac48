"""KllmActivity against golden.kllm.engines.activity: every count in every cycle, and resets.

Shown to fail:

- a count that stays at 0, or that no reset ends;
- the bit of a unit that counts for the next one;
- two units that count as one;
- cycles in which a unit is at work alone;
- a count without its highest bit.
"""

import numpy as np
import pytest

from golden.kllm.engines import activity
from hdl.kllm.activity import KllmActivity, KllmActivityConfig
from hdl.kllm.room import BLOCKS
from tb.simulate.run import simulate

CONFIGS = {**BLOCKS["kllm_activity"].configs, "bit": KllmActivityConfig(bits=1)}
CYCLES = 600


def at_work(units: int, rng) -> list[int]:
    """Each unit alone, then all of them at random, some more often than others, and for long."""
    words = [1 << unit for unit in range(units) for _ in range(unit + 1)]
    chances = rng.permutation(np.linspace(0.02, 0.5, units))
    held = rng.integers(0, 2, units)
    while len(words) < CYCLES:
        held = np.where(rng.random(units) < chances, rng.integers(0, 2, units), held)
        words.append(sum(int(bit) << unit for unit, bit in enumerate(held)))
    return words


@pytest.mark.parametrize("name", CONFIGS)
def test_activity(name, seed):
    config = CONFIGS[name]
    busy = at_work(config.units, np.random.default_rng([seed, 71]))
    counts = [activity(busy[:n], config.units, config.bits) for n in range(len(busy) + 1)]
    assert len({tuple(each) for each in zip(*counts, strict=True)}) == 1 + config.units
    params = {"busy": busy, "counts": counts}
    simulate(KllmActivity(config), "tb.kllm.tb_activity", params=params, seed=seed)


def test_activity_by_hand():
    """Counts of three cycles, and modulo 4 of five."""
    assert activity([], 2) == [0, 0, 0]
    assert activity([0b01, 0b11, 0b10], 3) == [3, 2, 2, 0]
    assert activity([0b1] * 5, 1, bits=2) == [1, 1]
