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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bits_b": 5}, "bits_b must be 2..4, not 5"),
        ({"columns": 65}, "columns must be 1..64, not 65"),
        ({"outliers_max": 0}, "outliers_max must be 1..16383, not 0"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmOutlierConfig(**wrong)
    assert str(error.value) == f"KllmOutlierConfig.{message}"
