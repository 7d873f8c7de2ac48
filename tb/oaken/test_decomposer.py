"""OakenDecomposer against golden.oaken.quantize.decompose: groups, shifts, special values.

Shown to fail:

- ``>=`` for the outer group;
- the inner threshold of the other side;
- no sticky bit in the subtraction;
- a NaN in the last lane overlooked;
- thresholds taken at every beat.
"""

import pytest

from golden.oaken.quantize import thresholds_valid
from golden.oaken.vectors.decomposer import decomposer_vectors
from golden.oaken.vectors.kv_vectors import BAD_THRESHOLDS
from hdl.oaken.decomposer import OakenDecomposer, OakenDecomposerConfig
from tb.simulate.run import simulate

CONFIGS = {f"lanes_{lanes}": OakenDecomposerConfig(lanes=lanes) for lanes in (8, 16, 64)}


@pytest.mark.parametrize("name", CONFIGS)
def test_decomposer(name, seed):
    config = CONFIGS[name]
    vectors = decomposer_vectors(config, seed)
    simulate(OakenDecomposer(config), "tb.oaken.tb_decomposer", vectors=vectors, seed=seed)


def test_bad_thresholds_are_bad():
    """Golden refuses what the engine's bench takes for bad."""
    assert not any(bool(thresholds_valid(each)) for each in BAD_THRESHOLDS)
