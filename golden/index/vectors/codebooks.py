"""Words of codebooks that more than one bench loads."""

import numpy as np

from golden.fp16.format import FP16

_ONE = FP16.bias << FP16.frac_bits


def other_bits(words: np.ndarray) -> np.ndarray:
    """Most bits of FP16 ``words`` inverted; at most 1 in magnitude, as they are."""
    magnitude = words & 0x3FFF ^ 0x3FFF
    return ~words & FP16.sign_bit | np.minimum(magnitude, _ONE)
