"""VqExchange against Algorithm 1: each element in its lane and beat, at the full rate.

Shown to fail with:

- the link of another step, or the piece of another lane
- the next vectors taken before the last beat, or only when the registers are empty
- registers that load without a transfer; ``last`` with every beat; a beat number without reset
- beats of several sizes: the number of pieces of the next vectors, mini-groups of the most lanes, a
  beat number that does not begin again
- in place: a step early, one side of a swap, the last step left out, ``last`` of the next vectors
- in place: vectors taken during the steps, or only after the beats of the ones before
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.vqllm.config import ExchangeShape
from golden.vqllm.vectors.pieces import beats_of
from hdl.vqllm.exchange import VqExchange, VqExchangeConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": VqExchangeConfig(),
    "gptvq2": VqExchangeConfig(shape=ExchangeShape(size=4, need=2, lanes=16)),
    "cq4": VqExchangeConfig(shape=ExchangeShape(size=2, need=1, lanes=32)),
    "widest": VqExchangeConfig(shape=ExchangeShape(size=16, need=1, lanes=16)),
    "three elements": VqExchangeConfig(shape=ExchangeShape(size=12, need=3, lanes=4)),
    "variable": VqExchangeConfig(shape=ExchangeShape(size=16, need=2, lanes=16), variable=True),
    "in place": VqExchangeConfig(in_place=True),
    "in place, two": VqExchangeConfig(shape=ExchangeShape(size=8, need=4, lanes=6), in_place=True),
}


@pytest.mark.telling("default", "three elements", "variable", "in place, two")
@pytest.mark.parametrize("name", CONFIGS)
def test_exchange(name, seed):
    config = CONFIGS[name]
    vectors, params = beats_of(config, np.random.default_rng([seed, 166]))
    simulate(
        VqExchange(config),
        "tb.vqllm.tb_exchange",
        vectors=vectors,
        params=params | {"waits": False},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"in_place": True, "variable": True}, "variable must be false with in_place, not True"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqExchangeConfig(**wrong)
    assert str(error.value) == f"VqExchangeConfig.{message}"
