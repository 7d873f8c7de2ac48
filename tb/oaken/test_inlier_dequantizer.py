"""OakenInlierDequantizer against golden.oaken.dequantize.inliers.

Shown to fail:

- the upper side from code zero_code + 1 on;
- a lane that does not saturate (by the outlier dequantizer's test).
"""

import numpy as np
import pytest
import torch

from golden.oaken.format import ScaleWord
from golden.oaken.quantize import middle_bases
from golden.oaken.vectors.dequant_tokens import some_tokens
from golden.oaken.vectors.inlier_dequantizer import beats
from hdl.oaken.inlier_dequantizer import OakenInlierDequantizer, OakenInlierDequantizerConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": OakenInlierDequantizerConfig(),
    "one_stage": OakenInlierDequantizerConfig(lanes=8, stages=1, tag_bits=7),
    "widest": OakenInlierDequantizerConfig(lanes=64, stages=7, tag_bits=128),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_inlier_dequantizer(name, seed):
    config = CONFIGS[name]
    simulate(
        OakenInlierDequantizer(config),
        "tb.oaken.tb_dequantizer",
        vectors=beats(config, seed),
        seed=seed,
    )


def test_some_bases_are_rounded():
    """Some exact sums are rounded to FP32: they have more than 24 significant bits."""
    rng = np.random.default_rng(41)
    encoded, thresholds = some_tokens(rng, 3000, 16, 16)
    low, high = middle_bases(encoded.scale, thresholds)
    exact = torch.stack(
        [_value(thresholds[:, k]) + _value(encoded.scale[:, ScaleWord.MIDDLE_MIN]) for k in (1, 2)]
    )
    rounded = torch.stack([low, high]).to(torch.int32).view(torch.float32).double()
    assert (exact != rounded).sum() > 100


def _value(words):
    return words.to(torch.int16).view(torch.float16).double()
