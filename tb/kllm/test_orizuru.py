"""KllmOrizuru against golden.kllm.orizuru.pop_token: order, ties, faults, cycles.

Shown to fail:

- equal keys won by the later node while loading;
- a popped leaf left in its row;
- stale rows or stale leaves beyond the token taken for its own;
- the min tree reading in the cycle of the max tree;
- leaves that stay from the token before (parallel);
- one bit of one key of one unit that sticks, or follows another bit (parallel).
"""

import pytest

from golden.kllm.format import OrizuruStatus
from golden.kllm.vectors.orizuru import orizuru_vectors
from hdl.kllm.outliers.orizuru import KllmOrizuru, KllmOrizuruConfig
from tb.simulate.run import simulate

# Configuration, tokens of each length, most pops of a tree
CASES = {
    "shared_256": (
        KllmOrizuruConfig(n_max=256, architecture="shared"),
        {1: 30, 2: 60, 8: 250, 16: 200, 17: 150, 100: 400, 255: 100, 256: 300},
        9,
    ),
    "shared_576": (
        KllmOrizuruConfig(n_max=576, elements=8, architecture="shared"),
        {8: 60, 100: 60, 256: 20, 257: 20, 576: 60},
        12,
    ),
    "shared_4096": (
        KllmOrizuruConfig(n_max=4096, architecture="shared"),
        {100: 30, 576: 20, 4096: 24},
        20,
    ),
    "shared_5000": (
        KllmOrizuruConfig(n_max=5000, architecture="shared"),
        {8: 10, 300: 10, 4097: 3, 5000: 4},
        20,
    ),
    "shared_16": (
        KllmOrizuruConfig(n_max=16, elements=4, architecture="shared"),
        {1: 40, 3: 100, 8: 150, 16: 200},
        15,
    ),
    "shared_one_word": (
        KllmOrizuruConfig(n_max=100, elements=1, architecture="shared"),
        {1: 10, 8: 40, 100: 20},
        60,
    ),
    "two_stages": (
        KllmOrizuruConfig(n_max=352, architecture="shared", stages=2),
        {1: 10, 8: 100, 17: 60, 100: 100, 352: 60},
        9,
    ),
    "four_stages": (
        KllmOrizuruConfig(n_max=300, elements=4, architecture="shared", stages=4),
        {8: 60, 100: 60, 257: 20, 300: 30},
        12,
    ),
    "three_stages_of_one_level": (
        KllmOrizuruConfig(n_max=16, architecture="shared", stages=3),
        {1: 40, 3: 100, 16: 100},
        15,
    ),
    "three_stages_of_four_levels": (
        KllmOrizuruConfig(n_max=5000, architecture="shared", stages=3),
        {8: 10, 300: 10, 5000: 3},
        20,
    ),
    "parallel_256": (
        KllmOrizuruConfig(n_max=256, architecture="parallel"),
        {1: 20, 8: 150, 17: 60, 100: 150, 256: 150},
        9,
    ),
    "parallel_4096": (
        KllmOrizuruConfig(n_max=4096, architecture="parallel"),
        {100: 6, 576: 3, 4096: 4},
        20,
    ),
    "parallel_576": (
        KllmOrizuruConfig(n_max=576, elements=8, architecture="parallel"),
        {8: 40, 100: 40, 257: 15, 576: 30},
        12,
    ),
}


@pytest.mark.telling("shared_576", "shared_4096", "shared_16", "parallel_256", "two_stages")
@pytest.mark.parametrize("name", CASES)
def test_orizuru(name, seed):
    config, lengths, most = CASES[name]
    vectors, counts, seen = orizuru_vectors(config, lengths, most, seed)
    assert seen == OrizuruStatus(31)
    cycles = sum(token[0] for token in counts) / len(counts)
    flow = max(6, min(len(counts), int(1500 / cycles)))
    params = {
        "tokens": counts,
        "flow": flow,
        "cuts": [*range(1, 60, 4), *(int(n * cycles) for n in (1, 2, 3))],
    }
    simulate(KllmOrizuru(config), "tb.kllm.tb_orizuru", vectors=vectors, params=params, seed=seed)


def test_units():
    assert KllmOrizuruConfig(architecture="parallel").units == 273
    assert KllmOrizuruConfig(architecture="parallel").trees_config.nodes == (256, 16, 1)
    assert KllmOrizuruConfig(n_max=576).trees_config.nodes == (36, 3, 1)
    assert KllmOrizuruConfig(architecture="shared").units == 2
