"""KllmConcat against golden.kllm.blocks.concatenate: every pair of indices, sidebands, flow.

Shown to fail: with the activation below the weight index in a pair, and with ``i_a.ready`` that
does not wait for ``i_w.valid``.
"""

import pytest

from golden.kllm.vectors.concat import concat_vectors
from hdl.kllm.lane.concat import KllmConcat, KllmConcatConfig
from tb.simulate.run import simulate

CONFIGS = {
    "tagged": KllmConcatConfig(value_bits=3, bits_b=2, elements=3, columns=4, tag_bits=9),
    "one_pair_no_tag": KllmConcatConfig(value_bits=8, bits_b=4, elements=1, columns=1),
    "wide": KllmConcatConfig(value_bits=26, bits_b=3, elements=5, columns=2, tag_bits=1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_concat(name, seed):
    config = CONFIGS[name]
    vectors = concat_vectors(config, seed)
    simulate(KllmConcat(config), "tb.kllm.tb_concat", vectors=vectors, seed=seed)
