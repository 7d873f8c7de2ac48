"""Indices for KllmConcat, with the pairs of golden."""

import numpy as np
import torch

from golden.kllm.blocks import concatenate
from golden.words import layout_words


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
