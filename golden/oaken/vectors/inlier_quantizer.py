"""The words that OakenInlierQuantizer gives of the scales and the codes of golden."""

import numpy as np

from golden.oaken.format import Group, ScaleWord

SCALE = (ScaleWord.MIDDLE_MIN, ScaleWord.MIDDLE_STEP)


def codes_of(code, fifth, group):
    return {"code": np.where(group == Group.MIDDLE, code, 0)}
