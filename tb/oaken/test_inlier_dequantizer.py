"""OakenInlierDequantizer against golden.oaken.dequantize.inliers.

Shown to fail:

- the upper side from code zero_code + 1 on;
- a lane that does not saturate (by the outlier dequantizer's test).
"""

import numpy as np
import pytest
import torch

from golden.oaken.dequantize import inliers
from golden.oaken.format import Group, ScaleWord
from golden.oaken.quantize import middle_bases, zero_point
from hdl.oaken.inlier_dequantizer import OakenInlierDequantizer, OakenInlierDequantizerConfig
from tb.oaken.support.dequant_vectors import some_tokens
from tb.run import simulate
from tb.words import layout_words

CONFIGS = {
    "default": OakenInlierDequantizerConfig(),
    "one_stage": OakenInlierDequantizerConfig(lanes=8, stages=1, tag_bits=7),
    "widest": OakenInlierDequantizerConfig(lanes=64, stages=7, tag_bits=128),
}


def beats(config, seed, count=1500):
    rng = np.random.default_rng([seed, 40])
    encoded, thresholds = some_tokens(rng, count, config.lanes, config.lanes)
    golden = inliers(encoded, thresholds)
    magnitude = golden & 0x7FFF
    assert (magnitude == 0x7BFF).any()
    assert ((magnitude > 0) & (magnitude < 0x400)).any()
    low, high = middle_bases(encoded.scale, thresholds)
    zero_code = zero_point(encoded.scale)
    assert set(zero_code.tolist()) == set(range(1, 16))
    tag = rng.integers(0, 2, (count, config.tag_bits))
    return {
        "i": layout_words(
            config.i_layout,
            code=encoded.code,
            inlier=encoded.group == Group.MIDDLE,
            base_low=low,
            base_high=high,
            zero_code=zero_code,
            step=encoded.scale[:, ScaleWord.MIDDLE_STEP],
            tag=tag,
        ),
        "o": layout_words(config.o_layout, x=golden, tag=tag),
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
    """To FP32: some exact sums have more than 24 significant bits."""
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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 4}, "lanes must be a power of two in 8..64, not 4"),
        ({"stages": 0}, "stages must be 1..16, not 0"),
        ({"tag_bits": 0}, "tag_bits must be 1..128, not 0"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenInlierDequantizerConfig(**wrong)
    assert str(error.value) == f"OakenInlierDequantizerConfig.{message}"
