"""The words that OakenOutlierQuantizer gives of the scales and the codes of golden."""

import numpy as np

from golden.oaken.format import Group, ScaleWord

SCALE = (
    ScaleWord.OUTER_LOW_STEP, ScaleWord.OUTER_HIGH_STEP, ScaleWord.INNER_MIN, ScaleWord.INNER_STEP,
)  # fmt: skip


def codes_of(code, fifth, group):
    kept = group != Group.MIDDLE
    return {
        "code": np.where(kept, code, 0),
        "fifth": np.where(kept, fifth, 0),
        "outer": group == Group.OUTER,
        "keep": kept,
    }
