"""MillionDecodeEngine: both sides at the same time, as test_decode_keys and test_decode_values.

Shown to fail:

- a stream of the keys linked to the values;
- the codebook of the keys on both sides.
"""

import pytest

from golden.million.vectors.decode_jobs import SHAPES
from golden.million.vectors.decode_keys import key_vectors
from golden.million.vectors.decode_values import value_vectors
from hdl.million.decode_engine import MillionDecodeEngine, MillionDecodeEngineConfig
from tb.simulate.run import simulate


@pytest.mark.telling("small")
@pytest.mark.parametrize("name", ["small", "four_keys"])
def test_decode_engine(name, seed):
    config = MillionDecodeEngineConfig(**SHAPES[name])
    vectors, sides = {}, []
    for prefix, (words, side) in {
        "k_": key_vectors(config.keys_side, seed),
        "v_": value_vectors(config.values_side, seed),
    }.items():
        vectors |= {prefix + stream: each for stream, each in words.items()}
        sides.append(side | {"prefix": prefix})
    block = MillionDecodeEngine(config)
    simulate(block, "tb.million.tb_decode", vectors=vectors, params={"sides": sides}, seed=seed)
