"""Vectors for OakenDecomposer, with the groups of golden."""

import numpy as np

from golden.oaken.format import Group
from golden.oaken.vectors.kv_vectors import (
    KINDS,
    beats,
    decomposed,
    one_vector,
    spoil,
    vector_thresholds,
)
from golden.words import layout_words, pack


def decomposer_vectors(config, seed):
    rng = np.random.default_rng([seed, 65])
    lanes = config.lanes
    thresholds, inputs, outputs = [], [], []
    groups = set()
    for n in range(max(40 * 8 // lanes, 20) * len(KINDS)):
        t = vector_thresholds(rng)
        words = one_vector(rng, KINDS[n % len(KINDS)], t, lanes * int(rng.integers(1, 5)))
        if n % 7 == 3:
            words = spoil(rng, words, len(words) - 1 if n % 2 else None)
        y, group = decomposed(words, t)
        special = (beats(words, lanes) & 0x7FFF) >= 0x7C00
        thresholds.append(t)
        count = len(words) // lanes
        inputs.append((beats(words, lanes), np.arange(count) == count - 1))
        outputs.append((beats(y, lanes), beats(group, lanes), special.any(-1)))
        groups |= set(group.tolist())
    assert groups == set(Group)
    x, last = (np.concatenate(each) for each in zip(*inputs, strict=True))
    y, group, nonfinite = (np.concatenate(each) for each in zip(*outputs, strict=True))
    return {
        "thresholds": pack((np.array(thresholds), 16)),
        "i": layout_words(config.i_layout, x=x, last=last),
        "o": layout_words(config.o_layout, y=y, group=group, nonfinite=nonfinite, last=last),
    }
