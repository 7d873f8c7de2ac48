"""MillionDecodeValues against golden.million.decode.decode_sums: exact sums, and cycles.

Shown to fail (those of the look-up: test_decode_keys):

- a beat of the next job before the sums have left; ``first`` with the last beat;
- slots beyond the keys, or codes beyond the entries, that add something;
- the weight of query 0 for all; sums in another order;
- ``code`` taken without its weight;
- a sum short of bits; the sign of an entry ignored.
"""

import pytest

from golden.million.vectors.decode_jobs import SHAPES
from golden.million.vectors.decode_values import value_vectors
from hdl.million.decode_values import MillionDecodeValues, MillionDecodeValuesConfig
from tb.simulate.run import simulate

CONFIGS = {name: MillionDecodeValuesConfig(**shape) for name, shape in SHAPES.items()}


@pytest.mark.telling("small", "one_query", "three_parts")
@pytest.mark.parametrize("name", CONFIGS)
def test_decode_values(name, seed):
    config = CONFIGS[name]
    vectors, side = value_vectors(config, seed)
    params = {"sides": [side]}
    block = MillionDecodeValues(config)
    simulate(block, "tb.million.tb_decode", vectors=vectors, params=params, seed=seed)
