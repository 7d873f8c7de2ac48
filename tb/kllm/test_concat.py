"""KllmConcat against golden.kllm.blocks.concatenate: every pair of indices, sidebands, flow.

Shown to fail: with the activation below the weight index in a pair, and with ``i_a.ready`` that
does not wait for ``i_w.valid``.
"""

import numpy as np
import pytest
import torch

from golden.kllm.blocks import concatenate
from hdl.kllm.concat import KllmConcat, KllmConcatConfig
from tb.run import simulate
from tb.words import layout_words

CONFIGS = {
    "tagged": KllmConcatConfig(value_bits=3, bits_b=2, elements=3, columns=4, tag_bits=9),
    "one_pair_no_tag": KllmConcatConfig(value_bits=8, bits_b=4, elements=1, columns=1),
    "wide": KllmConcatConfig(value_bits=26, bits_b=3, elements=5, columns=2, tag_bits=1),
}


def concat_vectors(config, seed, beats=120):
    rng = np.random.default_rng([seed, 11])
    top_a, top_b = 2**config.value_bits, 2**config.bits_b
    value = rng.integers(0, top_a, (beats, config.elements))
    index = rng.integers(0, top_b, (beats, config.columns, config.elements))
    value[:2], index[:2] = [[0], [top_a - 1]], [[[top_b - 1]], [[0]]]
    value[2], index[2] = top_a - 1, top_b - 1
    common = {
        "inlier": rng.integers(0, 2, (beats, config.elements)),
        "last": rng.integers(0, 2, beats),
    }
    if config.tag_bits:
        common["tag"] = rng.integers(0, 2**config.tag_bits, beats)
    pair = concatenate(torch.as_tensor(value), torch.as_tensor(index), config.bits_b).numpy()
    return {
        "i_a": layout_words(config.a_layout, value=value, **common),
        "i_w": layout_words(config.w_layout, index=index),
        "o": layout_words(config.o_layout, pair=pair, **common),
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_concat(name, seed):
    config = CONFIGS[name]
    vectors = concat_vectors(config, seed)
    simulate(KllmConcat(config), "tb.kllm.tb_concat", vectors=vectors, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"value_bits": 1}, "value_bits must be 2..32, not 1"),
        ({"elements": 17}, "elements must be 1..16, not 17"),
        ({"columns": 0}, "columns must be 1..64, not 0"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmConcatConfig(**wrong)
    assert str(error.value) == f"KllmConcatConfig.{message}"
