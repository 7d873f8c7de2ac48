"""VqKvEncoder against golden.index.pq.exact_codes at CQ's shapes.

The vectors and the bench are those of million_pq_encoder. They have ties to the lowest index,
vectors with a NaN or an infinity, and short codebooks of several KV heads.
Faults of the block are planted in that bench.
"""

import pytest

from hdl.vqllm.kv_encoder import VqKvEncoder
from hdl.vqllm.room import BLOCKS
from tb.million.test_pq_encoder import encoder_vectors
from tb.simulate.run import simulate

REGISTERED = BLOCKS["vq_kv_encoder"]
CONFIGS = {"cq4": REGISTERED.config, **REGISTERED.configs}


@pytest.mark.telling("small")
@pytest.mark.parametrize("name", CONFIGS)
def test_kv_encoder(name, seed):
    config = CONFIGS[name]
    vectors, params = encoder_vectors(config, seed, check=config.pq.bits == 4)
    block = VqKvEncoder(config)
    simulate(block, "tb.million.tb_pq_encoder", vectors=vectors, params=params, seed=seed)
