"""KllmOutlier against golden.kllm.blocks.sparse_sums: exact sums of any finite FP16 values.

Shown to fail:

- sums eight bits and one bit short;
- ``present`` ignored;
- a subnormal outlier taken as normal;
- bit 5 of entry 1 stuck at 1;
- a copy that waits for an empty output (full_rate alone).
"""

import pytest

from golden.kllm.vectors.outlier import outlier_vectors
from hdl.kllm.outliers.outlier import KllmOutlier, KllmOutlierConfig
from tb.simulate.run import simulate

CONFIGS = {
    "three_columns": KllmOutlierConfig(bits_b=3, columns=3, outliers_max=127),  # 72-bit sums
    "one_column": KllmOutlierConfig(bits_b=2, columns=1, outliers_max=1),
    "wide": KllmOutlierConfig(bits_b=4, columns=7, outliers_max=9),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_outlier(name, seed):
    config = CONFIGS[name]
    vectors, params = outlier_vectors(config, seed)
    simulate(KllmOutlier(config), "tb.kllm.tb_outlier", vectors=vectors, params=params, seed=seed)
