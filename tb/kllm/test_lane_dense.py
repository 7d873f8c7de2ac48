"""KllmLaneDense against golden.kllm.blocks.dense_sums: both modes.

Shown to fail:

- the weights of the next word of bins;
- a row of the table that takes the word of its first bin only;
- ``column`` that goes on with each word of a column.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.kllm.blocks import dense_sums
from golden.kllm.vectors.lane_dense import packets_of
from golden.words import layout_words, pack
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.dense import KllmLaneDense
from hdl.kllm.room import BLOCKS
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_lane_dense"].configs["small_flipflop"]
CONFIGS = {
    "flipflop": SMALL,
    "odd_elements": dataclasses.replace(SMALL, columns=4, macs=4, elements=3),
    "one_column": dataclasses.replace(
        SMALL, columns=1, macs=64, elements=1, integer_bits=0, k_max=20
    ),
}


def words_of(config: KllmPeLaneConfig, packets: list[tuple]) -> np.ndarray:
    """The beats of ``i``."""
    value_bits, elements = config.counter_config.value_bits, config.elements
    words = []
    for value, index, inlier in packets:
        pack((value, value_bits))  # raises where a value would lose a bit
        pair = (value[:, None] << config.bits_b | index).reshape(-1, elements, config.columns)
        pair = pair.transpose(0, 2, 1)
        beats = len(pair)
        words.append(
            layout_words(
                config.pairs_layout,
                pair=pair,
                inlier=inlier.reshape(beats, elements),
                last=np.arange(beats) == beats - 1,
            )
        )
    return np.concatenate(words)


def dense_vectors(config: KllmPeLaneConfig, seed):
    """(vectors, params): phases of packets on one table of weights each."""
    rng = np.random.default_rng([seed, 31])
    vectors, phases = {}, {}
    bins = config.counter_config.bins
    for name, integer, extreme in (
        ("kmeans", False, False), ("ones", False, True), ("integer", True, False),
        ("integer_ones", True, True), ("kmeans_again", False, False),
    ):  # fmt: skip
        if integer and not config.integer_bits:
            continue
        entries = 1 << config.bits_b if integer else bins
        weight = rng.integers(0, 2, entries) << 15 | rng.integers(0, 0x3C01, entries)
        if extreme:
            weight = np.resize([0x3C00, 0x3C00, 0xBC00, 0x0001], entries)
        weight[[0, -1]] = 0x3C00, 0xBC00
        packets = packets_of(rng, config, integer)
        table = torch.as_tensor(weight)
        sums = [
            dense_sums(*map(torch.as_tensor, packet), table, config.bits_b).numpy()
            for packet in packets
        ]
        vectors[f"{name}.i"] = words_of(config, packets)
        vectors[f"{name}.o"] = pack((np.concatenate(sums), 32))
        order = rng.permutation(bins)
        junk = rng.integers(0, 0x3C01, bins)  # bins that the mode does not read
        held = np.concatenate([weight, junk])[:bins]
        product = layout_words(config.product_layout, bin=order, word=held[order])
        vectors[f"{name}.product"] = product
        phases[name] = {
            "beats": [len(value) // config.elements for value, _, _ in packets],
            "integer": int(integer),
        }
    return vectors, {"phases": phases}


@pytest.mark.parametrize("name", CONFIGS)
def test_lane_dense(name, seed):
    config = CONFIGS[name]
    vectors, params = dense_vectors(config, seed)
    simulate(
        KllmLaneDense(config), "tb.kllm.tb_lane_dense", vectors=vectors, params=params, seed=seed
    )
