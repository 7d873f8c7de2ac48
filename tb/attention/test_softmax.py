"""AttentionSoftmax against golden.attention.softmax.partial and reciprocal.

Shown to fail with:

- the smallest element for the largest
- padding in the maximum
- padding in the sum
- a row of -infinity taken as any
- +infinity taken as any
- the sum of the row before
- differences taken beyond the row
- the sum cut off before its last beat
- the lowest bit of a word left out of a comparison
"""

import numpy as np
import pytest

from golden.attention.vectors.softmax import row_vectors
from golden.config import ConfigError
from hdl.attention.softmax import AttentionSoftmax, AttentionSoftmaxConfig
from tb.simulate.run import simulate

CONFIGS = {
    "width_1": AttentionSoftmaxConfig(width=1, elements=99),
    "width_2": AttentionSoftmaxConfig(width=2, elements=102),
    "width_4": AttentionSoftmaxConfig(width=4, elements=100),
    "width_8": AttentionSoftmaxConfig(elements=264),
    "width_16": AttentionSoftmaxConfig(width=16, elements=512),
}


@pytest.mark.telling("width_4", "width_8")
@pytest.mark.parametrize("name", CONFIGS)
def test_softmax(name, seed):
    words, counts = row_vectors(CONFIGS[name], np.random.default_rng([seed, 81]))
    assert any(count < 0 for count in counts)
    simulate(
        AttentionSoftmax(CONFIGS[name]),
        "tb.attention.tb_softmax",
        params={"words": words, "counts": counts},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"elements": 4095}, "elements must be a multiple of width 8, not 4095"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        AttentionSoftmaxConfig(**wrong)
