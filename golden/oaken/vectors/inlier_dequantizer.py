"""Codes for OakenInlierDequantizer, with the values of golden."""

import numpy as np

from golden.oaken.dequantize import inliers
from golden.oaken.format import Group, ScaleWord
from golden.oaken.quantize import middle_bases, zero_point
from golden.oaken.vectors.dequant_tokens import check_reach, some_tokens
from golden.words import layout_words


def beats(config, seed, count=1500):
    rng = np.random.default_rng([seed, 40])
    encoded, thresholds = some_tokens(rng, count, config.lanes, config.lanes)
    golden = inliers(encoded, thresholds)
    check_reach(golden)
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
