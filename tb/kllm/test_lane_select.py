"""KllmLaneSelect against golden.kllm.blocks.dense_sums: the bits of the counters' path.

Shown to fail:

- a bias that leaves out the elements of the second digit;
- the accumulators handed over a beat too late (``add`` in the cycle of ``load`` left out);
- the chain tied to its own column;
- ``i.ready`` without the wait for the chain;
- ``is_integer`` without effect on the grid (fixed16).
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.kllm.blocks import dense_sums
from golden.kllm.products import fixed_values, mirrored
from golden.kllm.select import word_table
from golden.kllm.vectors.lane_dense import packets_of
from golden.kllm.vectors.lane_select import beats_of
from golden.kllm.vectors.row_lookup import table_words
from golden.words import pack
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.dense import KllmLaneDense
from hdl.kllm.lane.select import KllmLaneSelect
from hdl.kllm.room import BLOCKS
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_lane_select"].configs["small"]
CONFIGS = {
    "small": SMALL,
    "three_digits": dataclasses.replace(SMALL, bits_a=3, elements=5, columns=5, integer_bits=8),
    "sixteen": KllmPeLaneConfig(elements=16, columns=4, k_max=70, counter="select", outliers_max=3),
    "fixed16": dataclasses.replace(SMALL, product="fixed16"),
    "fixed16_two_digits": dataclasses.replace(SMALL, bits_a=4, integer_bits=8, product="fixed16"),
    "fixed12": dataclasses.replace(SMALL, product="fixed12"),
    "fixed16_no_integer": dataclasses.replace(SMALL, integer_bits=0, product="fixed16"),
    "antisymmetric": dataclasses.replace(SMALL, product="fixed16", antisymmetric=True),
    "antisymmetric_sixteen": KllmPeLaneConfig(
        elements=16, columns=4, k_max=70, outliers_max=3, product="fixed16", antisymmetric=True
    ),
    "one_column": dataclasses.replace(SMALL, columns=1, elements=1, integer_bits=0, k_max=20),
}


def select_vectors(config: KllmPeLaneConfig, seed):
    """(vectors, params): phases of packets on one table each."""
    rng = np.random.default_rng([seed, 73])
    vectors, phases = {}, {}
    shape = config.select_config
    for name, integer, extreme in (
        ("kmeans", False, False), ("ones", False, True), ("integer", True, False),
        ("integer_ones", True, True),
    ):  # fmt: skip
        if integer and not config.integer_bits:
            continue
        weight = table_words(rng, shape, integer, extreme)
        grid = shape.integer_grid if integer else shape.grid
        ones = 1 << -grid if shape.is_fixed else 0x3C00
        weight[[0, -1]] = ones, -ones & 0xFFFF if shape.is_fixed else 0xBC00
        packets = packets_of(rng, config, integer)
        table = word_table(weight.tolist(), config.bits_a, shape.row_index_bits, config.product)
        digits = shape.digits if integer else 1
        full = torch.as_tensor(weight)
        if config.antisymmetric:
            full = mirrored(fixed_values(full.reshape(-1, shape.codes))).reshape(-1) & 0xFFFF
        sums = [
            dense_sums(
                *map(torch.as_tensor, packet), full, config.bits_b, grid if shape.is_fixed else None
            )
            for packet in packets
        ]
        vectors[f"{name}.i"] = beats_of(config, packets, table, digits)
        vectors[f"{name}.o"] = pack((torch.cat(sums).numpy(), 32))
        phases[name] = {
            "beats": [len(value) // config.elements * digits for value, _, _ in packets],
            "integer": int(integer),
        }
    return vectors, {"phases": phases}


@pytest.mark.telling("small", "fixed16_two_digits", "antisymmetric", "one_column")
@pytest.mark.parametrize("name", CONFIGS)
def test_lane_select(name, seed):
    config = CONFIGS[name]
    vectors, params = select_vectors(config, seed)
    simulate(
        KllmLaneSelect(config), "tb.kllm.tb_lane_select", vectors=vectors, params=params, seed=seed
    )


@pytest.mark.parametrize(
    ("block", "counter", "message"),
    [
        (KllmLaneSelect, "flipflop", "select, not 'flipflop'"),
        (KllmLaneDense, "select", "flipflop, not 'select'"),
    ],
)
def test_rejects(block, counter, message):
    """Each dense path names the counters that it serves."""
    component = block.__new__(block)
    component._MustUse__silence = True  # it never becomes hardware
    with pytest.raises(ValueError, match="counter must be") as error:
        component.__init__(dataclasses.replace(SMALL, counter=counter))
    assert str(error.value) == f"KllmPeLaneConfig.counter must be {message}"
