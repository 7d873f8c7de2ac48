"""VqDequantizer against golden.vqllm.matrix.summed: sums of every binade, ties, +0.

Shown to fail with:

- a sum one bit short; an entry of a stage left out, or of another element
- subnormal entries shifted once too often, or with a hidden bit
- ``last`` of the beat before
- of a lattice: element 7 without parity, or by bit 7; the sign of the next element
- the shift of a lattice the other way, or that of stage 0
- ``point`` of the other stage, or of vector 0
"""

import dataclasses

import numpy as np
import pytest

from golden.config import ConfigError
from golden.vqllm.config import NAMED, VqShape
from golden.vqllm.vectors.dequantizer import dequantizer_vectors, entries
from hdl.vqllm.dequantizer import VqDequantizer, VqDequantizerConfig
from tb.simulate.run import simulate

GPTVQ2 = NAMED["gptvq2"]
CONFIGS = {
    "default": VqDequantizerConfig(),
    "aqlm3": VqDequantizerConfig(vq=NAMED["aqlm3"], vectors=1),
    "three": VqDequantizerConfig(vq=VqShape(size=3, stages=3), vectors=3),
    "four": VqDequantizerConfig(vq=VqShape(size=1, stages=4), vectors=5),
    "widest": VqDequantizerConfig(vq=VqShape(size=16, stages=4), vectors=2),
    "quip4": VqDequantizerConfig(vq=NAMED["quip4"], vectors=8),
    "lattice_alone": VqDequantizerConfig(vq=dataclasses.replace(NAMED["quip4"], stages=1)),
}


@pytest.mark.telling("three", "four", "quip4", "lattice_alone")
@pytest.mark.parametrize("name", CONFIGS)
def test_dequantizer(name, seed):
    config = CONFIGS[name]
    vectors = dequantizer_vectors(config, seed)
    # All of them, but not all codes of a lattice, come with idle cycles, too.
    some = len(entries(np.random.default_rng([seed, 160]), config))
    simulate(
        VqDequantizer(config), "tb.vqllm.tb_dequantizer",
        vectors=vectors, params={"some": some}, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"vq": GPTVQ2},
            f"vq must be of 2..4 stages: an entry of one stage is the vector, not {GPTVQ2}",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqDequantizerConfig(**wrong)
    assert str(error.value) == f"VqDequantizerConfig.{message}"
