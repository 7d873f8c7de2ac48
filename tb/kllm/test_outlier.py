"""KllmOutlier, and with few multipliers, against golden.kllm.blocks.sparse_sums: exact sums.

Shown to fail:

- sums eight bits and one bit short;
- ``present`` ignored;
- a subnormal outlier taken as normal;
- bit 5 of entry 1 stuck at 1;
- a copy that waits for an empty output (full_rate alone).

In turn:

- a ring that a word without ``present`` moves;
- sums of the packet before where no word is present;
- a word taken while sums go out.
"""

import pytest

from golden.kllm.vectors.outlier import outlier_vectors
from hdl.kllm.outliers.outlier import KllmOutlier, KllmOutlierConfig
from hdl.kllm.outliers.outlier_in_turn import KllmOutlierInTurn
from tb.simulate.run import simulate

CONFIGS = {
    "three_columns": KllmOutlierConfig(bits_b=3, columns=3, outliers_max=127),  # 72-bit sums
    "one_column": KllmOutlierConfig(bits_b=2, columns=1, outliers_max=1),
    "wide": KllmOutlierConfig(bits_b=4, columns=7, outliers_max=9),
}
IN_TURN = {
    "two_parts": KllmOutlierConfig(bits_b=3, columns=6, outliers_max=127, parts=2),
    "four_parts": KllmOutlierConfig(columns=16, outliers_max=9, parts=4),
    "one_multiplier": KllmOutlierConfig(bits_b=2, columns=5, outliers_max=3, parts=5),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_outlier(name, seed):
    config = CONFIGS[name]
    vectors, params = outlier_vectors(config, seed)
    simulate(KllmOutlier(config), "tb.kllm.tb_outlier", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize("name", IN_TURN)
def test_in_turn(name, seed):
    config = IN_TURN[name]
    vectors, params = outlier_vectors(config, seed)
    block = KllmOutlierInTurn(config)
    simulate(block, "tb.kllm.tb_outlier", vectors=vectors, params=params, seed=seed)
