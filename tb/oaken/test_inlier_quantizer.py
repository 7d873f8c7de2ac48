"""OakenInlierQuantizer against golden.oaken.quantize: scales and codes of the middle group.

Shown to fail:

- codes of the lower side up to zc;
- maxima inherited from the vector before;
- elements below MIN at their distance from it.
"""

import pytest

from golden.oaken.vectors.groups import group_vectors
from golden.oaken.vectors.inlier_quantizer import SCALE, codes_of
from hdl.oaken.inlier_quantizer import OakenInlierQuantizer, OakenInlierQuantizerConfig
from tb.simulate.run import simulate

CONFIGS = {
    "usual": OakenInlierQuantizerConfig(lanes=16, vectors=200),
    "narrow": OakenInlierQuantizerConfig(lanes=8, vectors=8),
    "wide": OakenInlierQuantizerConfig(lanes=32, vectors=3),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_inlier_quantizer(name, seed):
    config = CONFIGS[name]
    block = OakenInlierQuantizer(config)
    vectors = group_vectors(config, seed, SCALE, codes_of)
    scale_latency = block.timing.delay("from a vector's last beat on scan to i")
    params = {"scale_latency": scale_latency, "latency": block.timing.latency, "longest": 8}
    simulate(block, "tb.oaken.tb_group_quantizer", vectors=vectors, params=params, seed=seed)
