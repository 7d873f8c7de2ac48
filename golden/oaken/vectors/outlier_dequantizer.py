"""Codes for OakenOutlierDequantizer, with the values of golden."""

import numpy as np

from golden.oaken.dequantize import outliers
from golden.oaken.format import Group, ScaleWord, Threshold
from golden.oaken.vectors.dequant_tokens import check_reach, some_tokens
from golden.words import layout_words

WORDS = ("OUTER_LOW_STEP", "OUTER_HIGH_STEP", "INNER_MIN", "INNER_STEP")


def beats(config, seed, count=1500):
    rng = np.random.default_rng([seed, 42])
    encoded, thresholds = some_tokens(rng, count, config.lanes, config.lanes)
    golden = outliers(encoded, thresholds)
    check_reach(golden)
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
