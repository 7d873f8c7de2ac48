"""OakenOutlierQuantizer against golden.oaken.quantize: scales and codes of both outlier groups.

Shown to fail:

- the steps of the outer sides crossed;
- outer quotients above 15 cut to four bits;
- a step of 0 for ranges that round to it.
"""

import pytest

from golden.oaken.vectors.groups import group_vectors
from golden.oaken.vectors.outlier_quantizer import SCALE, codes_of
from hdl.oaken.outlier_quantizer import OakenOutlierQuantizer, OakenOutlierQuantizerConfig
from tb.simulate.run import simulate

CONFIGS = {
    "usual": OakenOutlierQuantizerConfig(lanes=16, vectors=200),
    "narrow": OakenOutlierQuantizerConfig(lanes=8, vectors=8),
    "wide": OakenOutlierQuantizerConfig(lanes=32, vectors=3),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_outlier_quantizer(name, seed):
    config = CONFIGS[name]
    block = OakenOutlierQuantizer(config)
    vectors = group_vectors(config, seed, SCALE, codes_of)
    scale_latency = block.timing.delay("from a vector's last beat on scan to i")
    params = {"scale_latency": scale_latency, "latency": block.timing.latency, "longest": 8}
    simulate(block, "tb.oaken.tb_group_quantizer", vectors=vectors, params=params, seed=seed)
