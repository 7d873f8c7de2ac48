"""IndexReducer against golden.index.histogram.reduce_counts: exact sums, one rounding, full rate.

Shown to fail:

- the accumulator one bit short;
- subnormal weights shifted once too often;
- ``is_open`` that never falls;
- ``move`` blind to a free rounder;
- ``move`` blind to a place without a finished sum.
"""

import pytest

from golden.index.vectors.reducer import reducer_vectors
from hdl.index.histogram_parallel import IndexHistogramParallelConfig
from hdl.index.reducer import IndexReducer, IndexReducerConfig
from tb.simulate.run import simulate


def of_counter(macs, **fields):
    return IndexReducerConfig.of_counter(IndexHistogramParallelConfig(**fields), macs)


CONFIGS = {
    "one_mac": of_counter(1, bits_a=2, bits_b=2, k_max=100, integer_bits=4, word_bins=1),
    "eight_macs": of_counter(8, bits_a=3, bits_b=2, k_max=3000, integer_bits=8, word_bins=8),
    "32_macs": of_counter(32),  # as in Table I
    "longest": of_counter(8, k_max=16383, word_bins=8),
    # 32,768 softmax weights of 1.0, in units of 2**-24
    "weights": IndexReducerConfig(
        macs=2, count_bits=40, wide_slots=0, wide_bits=40, total_max=2**39
    ),
    "widest": IndexReducerConfig(
        macs=2, count_bits=40, wide_slots=1, wide_bits=48, total_max=2**48 - 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_reducer(name, seed):
    config = CONFIGS[name]
    vectors, params = reducer_vectors(config, seed)
    simulate(IndexReducer(config), "tb.index.tb_reducer", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"wide_slots": 33}, "wide_slots must be 0..32, not 33"),
        ({"wide_bits": 13}, "wide_bits must be 14..48, not 13"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        IndexReducerConfig(**wrong)
    assert str(error.value) == f"IndexReducerConfig.{message}"
