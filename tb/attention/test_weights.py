"""AttentionWeights against golden.attention.softmax.row_weights.

Shown to fail with:

- the scores of another query, or those of the window left out of the maximum
- slots beyond the last key in the maximum, or weighed
- a query of -infinity taken as any
- NaN or +infinity seen only in the last beat, or kept for the next row
- the maximum or the sum of the row before
- one row held instead of two, or three, or one half of a RAM
- a row judged before its last score
- a third row given while two totals wait
- a bad query weighed
- ``last`` of the exact weights of a row without past keys
- the sign of a negative maximum
- the lowest bit of a word left out of a comparison, or bit 4 inverted
- bit 6 of a sum, or the highest bit of the last query's
- a first score of the window that is not finite, in the first query, forgotten
"""

import numpy as np
import pytest

from golden.attention.vectors.weights import row_vectors
from hdl.attention.weights import AttentionWeights, AttentionWeightsConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": AttentionWeightsConfig(past=100, window=36),
    "one_query": AttentionWeightsConfig(queries=1, past=33, window=1),
    "smollm2": AttentionWeightsConfig(queries=3, past=256, window=20),
    "two_keys": AttentionWeightsConfig(keys=2, queries=3, past=75, window=5),
    "four_keys": AttentionWeightsConfig(keys=4, queries=2, past=130, window=40),
}


@pytest.mark.telling("default", "two_keys")
@pytest.mark.parametrize("name", CONFIGS)
def test_weights(name, seed):
    words, ends = row_vectors(CONFIGS[name], np.random.default_rng([seed, 83]))
    simulate(
        AttentionWeights(CONFIGS[name]),
        "tb.attention.tb_weights",
        params={"words": words, "ends": ends},
        seed=seed,
    )
