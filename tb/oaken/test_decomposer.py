"""OakenDecomposer against golden.oaken.quantize.decompose: groups, shifts, special values.

Shown to fail:

- ``>=`` for the outer group;
- the inner threshold of the other side;
- no sticky bit in the subtraction;
- a NaN in the last lane overlooked;
- thresholds taken at every beat.
"""

import numpy as np
import pytest

from golden.oaken.format import Group
from golden.oaken.quantize import thresholds_valid
from hdl.oaken.decomposer import OakenDecomposer, OakenDecomposerConfig
from tb.oaken.support.quantize_vectors import (
    BAD_THRESHOLDS,
    KINDS,
    beats,
    decomposed,
    one_vector,
    spoil,
    vector_thresholds,
)
from tb.run import simulate
from tb.words import layout_words, pack

CONFIGS = {f"lanes_{lanes}": OakenDecomposerConfig(lanes=lanes) for lanes in (8, 16, 64)}


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


@pytest.mark.parametrize("name", CONFIGS)
def test_decomposer(name, seed):
    config = CONFIGS[name]
    vectors = decomposer_vectors(config, seed)
    simulate(OakenDecomposer(config), "tb.oaken.tb_decomposer", vectors=vectors, seed=seed)


def test_bad_thresholds_are_bad():
    """What the engine's bench takes for bad is what golden refuses."""
    assert not any(bool(thresholds_valid(each)) for each in BAD_THRESHOLDS)


@pytest.mark.parametrize("lanes", [4, 12, 128])
def test_rejects(lanes):
    with pytest.raises(ValueError, match="must be") as error:
        OakenDecomposerConfig(lanes=lanes)
    message = f"lanes must be a power of two in 8..64, not {lanes}"
    assert str(error.value) == f"OakenDecomposerConfig.{message}"
