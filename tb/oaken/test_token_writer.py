"""OakenTokenWriter against golden.oaken.quantize.pack_groups: vectors with and without data.

Shown to fail:

- a vector without data with the record of one group alone, or with a size;
- a size that goes on from that of the record before;
- a last block that does not wait for the queue of sizes;
- ``last`` on the final record of a vector alone;
- ``start`` taken at the end of each record, or a cycle late (full_rate);
- sparse bytes before the codes.
"""

import numpy as np
import pytest

from golden.oaken.config import KvShape
from golden.oaken.vectors.token_writer import full, mixed
from hdl.oaken.token_writer import OakenTokenWriter, OakenTokenWriterConfig
from tb.simulate.run import simulate

CONFIGS = {
    "smollm2": OakenTokenWriterConfig(lanes=16),
    "groups": OakenTokenWriterConfig(
        kv=KvShape(heads=4, head_dim=32, block=16, order="token", groups=2), lanes=8, data_bits=128,
    ),
    "whole_block": OakenTokenWriterConfig(
        kv=KvShape(heads=3, head_dim=64, order="token"), lanes=64, data_bits=512
    ),
    "one_block": OakenTokenWriterConfig(
        kv=KvShape(heads=2, head_dim=16, block=16, order="token", groups=2),
        lanes=16, data_bits=256,
    ),
    "llama2": OakenTokenWriter.configs["llama2"],
}  # fmt: skip


@pytest.mark.telling("smollm2", "groups", "whole_block")
@pytest.mark.parametrize("name", CONFIGS)
def test_token_writer(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 47])
    count = 40 if config.kv.elements < 1000 else 8
    vectors = mixed(config, rng, count).vectors("mixed")
    vectors |= full(config, rng, 4 + count // 5).vectors("full")
    simulate(OakenTokenWriter(config), "tb.oaken.tb_token_writer", vectors=vectors, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kv": KvShape()}, "kv must be of order token, not KvShape("),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenTokenWriterConfig(**wrong)
    assert str(error.value).startswith(f"OakenTokenWriterConfig.{message}")
