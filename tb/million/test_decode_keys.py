"""MillionDecodeKeys against golden.million.decode.decode_scores: exact sums, one rounding, cycles.

Shown to fail:

- a first switch that frees a codebook already loaded; ``switch`` that never goes back;
- a job that begins before its codebook is there; both buffers in one half of the banks;
- codes of slots beyond the keys judged, or their scores not 0; ``beyond`` with > for >=; a bad code
  of the job before;
- queries, slope, exponent or bad queries of the next job for the last beat;
- queries taken before the ones there have been used;
- the distance of slot 0 for all; ``bad`` without slopes;
- the sign of the query ignored; the exponent not in slope * distance;
- that product or the grid late by a cycle; the sum short of bits;
- the queue of scores one place short.
"""

import pytest

from golden.million.config import PqShape, RateShape
from golden.million.vectors.decode_jobs import SHAPES
from golden.million.vectors.decode_keys import key_vectors
from hdl.million.decode_keys import MillionDecodeKeys, MillionDecodeKeysConfig
from tb.simulate.run import simulate

CONFIGS = {name: MillionDecodeKeysConfig(**shape) for name, shape in SHAPES.items()} | {
    "longest_vector": MillionDecodeKeysConfig(
        pq=PqShape(head_dim=256, subspaces=128, bits=4),
        rate=RateShape(macs=256, queries=1, lanes=64),
        max_keys=40,
    ),
}


@pytest.mark.telling("small", "one_query", "three_parts")
@pytest.mark.parametrize("name", CONFIGS)
def test_decode_keys(name, seed):
    config = CONFIGS[name]
    vectors, side = key_vectors(config, seed)
    params = {"sides": [side]}
    block = MillionDecodeKeys(config)
    simulate(block, "tb.million.tb_decode", vectors=vectors, params=params, seed=seed)
