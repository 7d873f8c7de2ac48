"""IndexNearest against golden.index.nearest.cluster_by_midpoints.

Shown to fail:

- -0 below +0;
- a NaN threshold below or a NaN element above everything;
- ``>=`` in place of ``>``;
- thresholds handed over before the token's last beat;
- midpoints taken while a token is in flight;
- a scale taken in mid-packet;
- a packet of any length taken as valid;
- indices that a fault does not silence;
- with several multipliers: a ring that turns by one, unused words taken as thresholds;
- with several parts: indices of another part.
"""

import numpy as np
import pytest

from golden.index.vectors.nearest import unit_vectors
from hdl.index.nearest import IndexNearest, IndexNearestConfig
from tb.simulate.run import simulate

CONFIGS = {
    "table1": IndexNearestConfig(),
    "three_bits": IndexNearestConfig(bits_a=3, elements=5, tag_bits=7),
    "two_bits": IndexNearestConfig(bits_a=2, elements=1, tag_bits=1),
    "five_products": IndexNearestConfig(multipliers=5, elements=3),
    "unused_words": IndexNearestConfig(multipliers=4, elements=2),
    "three_products": IndexNearestConfig(bits_a=3, multipliers=3, elements=2),
    "four_parts": IndexNearestConfig(tag_bits=5, multipliers=5, parts=4),
    "an_element_a_cycle": IndexNearestConfig(bits_a=2, elements=6, parts=6),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_nearest(name, seed):
    config = CONFIGS[name]
    vectors, params = unit_vectors(config, seed)
    simulate(
        IndexNearest(config),
        "tb.index.tb_nearest",
        vectors=vectors,
        params=params,
        seed=seed,
    )


def test_vectors_have_ties_and_every_index():
    """Every index occurs, and so do ties, at which one more or less of x matters."""
    vectors, _ = unit_vectors(CONFIGS["table1"], 1)
    rows = np.unpackbits(vectors["random.o"], axis=1, bitorder="little")[:, :64]
    index = rows.reshape(-1, 4) @ [1, 2, 4, 8]
    assert set(index) == set(range(16))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"multipliers": 0}, "multipliers must be 1..5, not 0"),
        ({"bits_a": 2, "multipliers": 2}, "multipliers must be 1..1, not 2"),
        ({"parts": 3}, "parts must be a divisor of elements = 16, not 3"),
        ({"elements": 4, "parts": 5}, "parts must be 1..4, not 5"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        IndexNearestConfig(**wrong)
    assert str(error.value) == f"IndexNearestConfig.{message}"
