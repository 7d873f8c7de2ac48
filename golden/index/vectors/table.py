"""Tables and rows for IndexTable, with the words of golden."""

import numpy as np
import torch

from golden.index.codebook import look_up
from golden.words import layout_words, pack

PHASES, ROWS = 3, 60


def table_vectors(config, seed):
    """(vectors, params): per phase a table, rows, their outliers and what golden looks up."""
    rng = np.random.default_rng([seed, 62])
    entry_bits = max(config.bits_a, config.integer_bits)
    vectors = {}
    share = rng.choice([0, 0, 0, 1 / 16, 0.2, 0.5, 1], ROWS)
    outlier = rng.random((ROWS, 16)) < share[:, None]
    outlier[:3] = [np.arange(16) == 15, np.zeros(16), np.ones(16)]
    first = rng.integers(0, 1 << 16, 1 << config.bits_a)
    for phase in range(PHASES):
        # The second table is the complement of the first: each of its bits is seen at 0 and at 1.
        table = (first, first ^ 0xFFFF, rng.integers(0, 1 << 16, first.size))[phase]
        index = rng.integers(0, 1 << config.bits_a, (ROWS, 16))
        junk = rng.integers(0, 1 << entry_bits, (ROWS, 16)) >> config.bits_a << config.bits_a
        x = rng.integers(0, 1 << 16, (ROWS, 16))
        golden = look_up(
            torch.tensor(index),
            torch.tensor(outlier),
            torch.tensor(x),
            torch.tensor(table).expand(ROWS, -1),
        )
        vectors[f"{phase}.table"] = pack((table, 16))
        vectors[f"{phase}.i"] = layout_words(config.i_layout, value=index | junk, outlier=outlier)
        vectors[f"{phase}.outlier"] = pack((x[outlier], 16))
        vectors[f"{phase}.o"] = layout_words(config.o_layout, word=golden)
    return vectors, {"phases": PHASES, "outliers": outlier.sum(axis=1).tolist()}
