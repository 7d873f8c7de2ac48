"""Rows of scores that more than one bench sends."""

import numpy as np

from golden.fp16.format import FP16


def one_above(rng, word: int, count: int) -> np.ndarray:
    """``count`` times ``word``, and the next one above it in one place."""
    x = np.full(count, word)
    x[rng.integers(0, count)] += -1 if word & FP16.sign_bit else 1
    return x
