"""QetUnswap against golden.qet.swap.unswap: any values, with any maps, at the full rate.

Shown to fail with:

- a map that is inverted; the map of another network, level or pair; S and L exchanged
- the first level undone first
- ``last`` lost; a register without reset, that loads without a transfer, or never becomes empty
- a register that takes a beat only when it is empty
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.qet.vectors.networks import unswap_vectors
from hdl.qet.unswap import QetUnswap, QetUnswapConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": QetUnswapConfig(),
    "no level": QetUnswapConfig(levels=0, networks=3, bits=7),
    "one pair": QetUnswapConfig(levels=1, networks=1, bits=1),
    "many pairs": QetUnswapConfig(levels=1, networks=40),
    "two levels": QetUnswapConfig(levels=2, networks=3, bits=32),
    "one widest": QetUnswapConfig(levels=5, networks=1, bits=11),
    "widest": QetUnswapConfig(levels=5, networks=2, bits=32),
}


@pytest.mark.telling("no level", "one pair", "two levels")
@pytest.mark.parametrize("name", CONFIGS)
def test_unswap(name, seed):
    config = CONFIGS[name]
    vectors = unswap_vectors(config, np.random.default_rng([seed, 221]))
    simulate(QetUnswap(config), "tb.qet.tb_swap", vectors=vectors, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"networks": 2.0}, "networks must be 1..468, not 2.0"),
        ({"levels": 0, "bits": 1, "networks": 65536}, "networks must be 1..65535, not 65536"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        QetUnswapConfig(**wrong)
    assert str(error.value) == f"QetUnswapConfig.{message}"
