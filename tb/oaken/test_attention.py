"""OakenAttention against golden.oaken.attention: every word of every attend, every status."""

import pytest

from golden.oaken.vectors.attention import random_script
from hdl.oaken.attention import OakenAttention
from tb.simulate.run import simulate

CONFIGS = {"small": OakenAttention.configs["small"]}


@pytest.mark.parametrize("name", CONFIGS)
def test_attention(name, seed):
    config = CONFIGS[name]
    params = {"scripts": {"random": random_script(config, seed, 20)}}
    simulate(OakenAttention(config), "tb.oaken.tb_attention", params=params, seed=seed)
