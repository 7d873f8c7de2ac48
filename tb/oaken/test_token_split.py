"""OakenTokenSplit against golden.oaken.dequantize.split_records: sound and damaged records.

Shown to fail:

- scales taken at each block;
- a chunk that waits until the bytes read have left (full_rate);
- a full block taken for a fault, or a count without a bound;
- a sparse transfer that ends at each block of a bad request;
- the last byte of a full block lost;
- an error a byte early;
- a fault in a skipped record forgotten, or found at its block again;
- bytes left over given to the next request, missing bytes waited for;
- a fault that outlives its request;
- scale words given without room.
"""

import numpy as np
import pytest

from golden.oaken.format import SCALE_BYTES
from golden.oaken.vectors.token_split import full, mixed, skipped
from hdl.oaken.token_split import OakenTokenSplit, OakenTokenSplitConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": OakenTokenSplitConfig(),
    "eight": OakenTokenSplitConfig(lanes=8, block=16, blocks=5, data_bits=64, ahead=2),
    "whole_block": OakenTokenSplitConfig(lanes=64, block=64, blocks=2, data_bits=512, ahead=12),
    "one_block": OakenTokenSplitConfig(lanes=32, block=32, blocks=1, data_bits=256, ahead=3),
}
SKIPPED = 40  # records


def skip_limit(config) -> int:
    """Cycles of a long skip and of the record after it: a step per block, or its bytes.

    A block has at most twice its mean of outliers, on the average of so many.
    """
    record = SCALE_BYTES + config.blocks * (config.dense_bytes + 1 + config.block // 10)
    cycles = max(config.blocks, -(-record // config.chunk_bytes))
    return (SKIPPED + 1) * cycles + 12


@pytest.mark.telling("default", "whole_block")
@pytest.mark.parametrize("name", CONFIGS)
def test_token_split(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 46])
    vectors = mixed(config, rng).vectors("mixed") | skipped(config, rng, SKIPPED).vectors("skip")
    phases = ["mixed", "skip"]
    if config.chunk_bytes >= 64:
        vectors |= full(config, rng).vectors("full")
        phases.append("full")
    simulate(
        OakenTokenSplit(config),
        "tb.oaken.tb_token_split",
        vectors=vectors,
        params={"phases": phases, "skip_limit": skip_limit(config)},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 64, "block": 32}, "lanes must be at most block = 32, not 64"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenTokenSplitConfig(**wrong)
    assert str(error.value) == f"OakenTokenSplitConfig.{message}"
