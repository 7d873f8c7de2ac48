"""Words of the tables that the selecting lane looks up."""

import numpy as np


def table_words(rng, config, integer: bool, extreme: bool) -> np.ndarray:
    """Words in -1..1 of a table, as a packet carries them.

    FP16 has every exponent; with ``extreme`` the words of the largest magnitude. Fixed point has
    every magnitude.
    """
    count = config.codes if integer else config.rows * config.codes
    if config.is_fixed:
        ones = 1 << -(config.integer_grid if integer else config.grid)
        low = np.minimum(ones, 1 << rng.integers(0, ones.bit_length(), count))
        words = rng.integers(-low, low + 1)
        if extreme:
            words = np.resize([ones, -ones, 1, ones - 1, -1, 1 - ones], count)
        return words & 0xFFFF
    words = rng.integers(0, 2, count) << 15 | rng.integers(0, 0x3C01, count)
    if extreme:
        words = np.resize([0x3C00, 0xBC00, 0x0001, 0x3BFF, 0x8001, 0x03FF], count)
    return words
