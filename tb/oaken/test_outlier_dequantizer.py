"""OakenOutlierDequantizer against golden.oaken.dequantize.outliers.

Shown to fail: with a lane that does not saturate, with a lower outer side that adds, and without
the fifth bit of inner codes.
"""

import pytest

from golden.oaken.vectors.outlier_dequantizer import beats
from hdl.oaken.outlier_dequantizer import OakenOutlierDequantizer, OakenOutlierDequantizerConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": OakenOutlierDequantizerConfig(),
    "one_stage": OakenOutlierDequantizerConfig(lanes=8, stages=1, tag_bits=7),
    "widest": OakenOutlierDequantizerConfig(lanes=64, stages=7, tag_bits=128),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_outlier_dequantizer(name, seed):
    config = CONFIGS[name]
    simulate(
        OakenOutlierDequantizer(config),
        "tb.oaken.tb_dequantizer",
        vectors=beats(config, seed),
        seed=seed,
    )
