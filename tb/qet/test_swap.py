"""QetSwap against golden.qet.swap: parts, maps and ``last``, at the full rate.

Shown to fail with:

- a comparison without the sign, or of words as integers; -0 equal to +0; equal words exchanged
- a map that is inverted; the bits of later levels before those of earlier ones
- L before S; all parts S before all parts L; keys in place of words at the end
- ``last`` lost, or that of a later beat
- registers without reset, or that load without a transfer; a register that never becomes empty
- a register that waits for an empty one, or that does not move into an empty one
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.qet.vectors.networks import swap_vectors
from hdl.qet.swap import QetSwap, QetSwapConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": QetSwapConfig(),
    "no level": QetSwapConfig(levels=0, networks=3),
    "one pair": QetSwapConfig(levels=1, networks=1),
    "many pairs": QetSwapConfig(levels=1, networks=32, bits=32),
    "two levels": QetSwapConfig(levels=2, networks=3, bits=32),
    "one widest": QetSwapConfig(levels=5, networks=1),
    "widest": QetSwapConfig(levels=5, networks=2, bits=32),
}


@pytest.mark.telling("no level", "one pair", "two levels")
@pytest.mark.parametrize("name", CONFIGS)
def test_swap(name, seed):
    config = CONFIGS[name]
    vectors = swap_vectors(config, np.random.default_rng([seed, 220]))
    simulate(QetSwap(config), "tb.qet.tb_swap", vectors=vectors, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"networks": 0}, "networks must be 1..468, not 0"),
        ({"levels": 5, "bits": 32, "networks": 60}, "networks must be 1..59, not 60"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        QetSwapConfig(**wrong)
    assert str(error.value) == f"QetSwapConfig.{message}"
