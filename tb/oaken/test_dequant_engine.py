"""OakenDequantEngine against golden.oaken.quantize.decode: encoded, synthetic, damaged tokens.

Shown to fail:

- the zero code rounded instead of floored;
- an error that outlives its request;
- a last beat that does not wait for a place for its status (statuses_late);
- zero insertion that is told of one request at a time (full_rate);
- scale words accepted that no encoder writes.
"""

import numpy as np
import pytest

from golden.oaken.vectors.dequant_engine import mixed
from golden.oaken.vectors.dequant_job import Job
from golden.oaken.vectors.dequant_tokens import some_tokens
from hdl.oaken.dequant_engine import OakenDequantEngine, OakenDequantEngineConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": OakenDequantEngineConfig(),
    "eight": OakenDequantEngineConfig(
        lanes=8, block=16, data_bits=64, blocks_max=5, stages=1, scale_stages=1
    ),
    "wide": OakenDequantEngineConfig(lanes=64, block=64, data_bits=1024, blocks_max=2, stages=5),
    "half": OakenDequantEngineConfig(lanes=32, block=32, data_bits=512, scale_stages=7),
    "one_beat": OakenDequantEngineConfig(lanes=16, block=16, data_bits=256, blocks_max=1),
}


def full(config, rng) -> Job:
    job = Job(config, rng)
    blocks = min(config.blocks_max, 2)
    for tokens in (1, 1, 1, 1, 1, 1, 1, 1, 9, 1, 20, 2, 2, 2):
        encoded, thresholds = some_tokens(rng, tokens, blocks * config.block, config.block)
        job.add(encoded, thresholds[0], first=0)
    return job


@pytest.mark.telling("default", "half", "one_beat")
@pytest.mark.parametrize("name", CONFIGS)
def test_dequant_engine(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 45])
    vectors = mixed(config, rng).vectors("mixed")
    phases = ["mixed"]
    if config.zero_insert.chunk_bytes > config.lanes:  # a word or a part of it feeds every beat
        vectors |= full(config, rng).vectors("full")
        phases.append("full")
    simulate(
        OakenDequantEngine(config),
        "tb.oaken.tb_dequant_engine",
        vectors=vectors,
        params={"phases": phases},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 4}, "lanes must be a power of two in 8..64, not 4"),
        ({"lanes": 64, "block": 32}, "lanes must be a power of two in 8..32, not 64"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenDequantEngineConfig(**wrong)
    assert str(error.value) == f"OakenDequantEngineConfig.{message}"
