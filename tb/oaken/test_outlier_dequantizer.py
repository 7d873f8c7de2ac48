"""OakenOutlierDequantizer against golden.oaken.dequantize.outliers.

Shown to fail: with a lane that does not saturate, with a lower outer side that adds, and without
the fifth bit of inner codes.
"""

import numpy as np
import pytest

from golden.oaken.dequantize import outliers
from golden.oaken.format import Group, ScaleWord, Threshold
from hdl.oaken.outlier_dequantizer import OakenOutlierDequantizer, OakenOutlierDequantizerConfig
from tb.oaken.support.dequant_vectors import some_tokens
from tb.run import simulate
from tb.words import layout_words

CONFIGS = {
    "default": OakenOutlierDequantizerConfig(),
    "one_stage": OakenOutlierDequantizerConfig(lanes=8, stages=1, tag_bits=7),
    "widest": OakenOutlierDequantizerConfig(lanes=64, stages=7, tag_bits=128),
}
WORDS = ("OUTER_LOW_STEP", "OUTER_HIGH_STEP", "INNER_MIN", "INNER_STEP")


def beats(config, seed, count=1500):
    rng = np.random.default_rng([seed, 42])
    encoded, thresholds = some_tokens(rng, count, config.lanes, config.lanes)
    golden = outliers(encoded, thresholds)
    magnitude = golden & 0x7FFF
    assert (magnitude == 0x7BFF).any()
    assert ((magnitude > 0) & (magnitude < 0x400)).any()
    tag = rng.integers(0, 2, (count, config.tag_bits))
    present = encoded.group != Group.MIDDLE
    outer = (encoded.group == Group.OUTER).long().numpy()
    # Fields of elements that are none are junk.
    junk = np.where(present, 0, rng.integers(0, 4, present.shape))
    fifth = encoded.fifth.numpy() | junk >> 1
    fields = {"present": present, "group": outer | junk & 1, "fifth": fifth}
    words = {
        "outer_low": thresholds[:, Threshold.OUTER_LOW],
        "outer_high": thresholds[:, Threshold.OUTER_HIGH],
        **{name.lower(): encoded.scale[:, ScaleWord[name]] for name in WORDS},
    }
    tag = tag @ (1 << np.arange(config.tag_bits, dtype=object))
    return {
        "i": layout_words(config.i_layout, code=encoded.code, outlier=fields, **words, tag=tag),
        "o": layout_words(config.o_layout, x=golden, tag=tag),
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
        OakenOutlierDequantizerConfig(**wrong)
    assert str(error.value) == f"OakenOutlierDequantizerConfig.{message}"
