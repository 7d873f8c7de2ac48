"""KllmOrizuruUnit against golden.kllm.orizuru.select_unit: ties, absent leaves, carried bits.

Shown to fail:

- ``>`` for ``>=`` (equal keys);
- the min tree on the shared comparison itself;
- a right leaf that is taken although it is absent.
"""

import pytest

from golden.kllm.vectors.orizuru_unit import unit_vectors
from hdl.kllm.outliers.orizuru_unit import KllmOrizuruUnit, KllmOrizuruUnitConfig
from tb.simulate.run import simulate

CONFIGS = {
    "leaf": KllmOrizuruUnitConfig(),
    "leaf_carry": KllmOrizuruUnitConfig(stages=2, leaves=8, carry_bits=3, tag_bits=5),
    "inner": KllmOrizuruUnitConfig(shared=False, carry_bits=8),
    "inner_four_stages": KllmOrizuruUnitConfig(shared=False, stages=4, carry_bits=1),
    "pair": KllmOrizuruUnitConfig(leaves=2, stages=1, shared=False),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_orizuru_unit(name, seed):
    config = CONFIGS[name]
    vectors = unit_vectors(config, seed)
    simulate(KllmOrizuruUnit(config), "tb.kllm.tb_orizuru_unit", vectors=vectors, seed=seed)


def test_comparators():
    assert CONFIGS["leaf"].comparators == 8 + 7 + 7
    assert CONFIGS["inner"].comparators == 15 + 15
