"""IndexHistogramParallel against golden.index.histogram: both architectures and modes, cycles.

K-Means and integer packets are mixed on one block.

Shown to fail:

- without forwarding;
- without waiting for the write of the last beat;
- without clearing as a bin is read;
- an integer bit obeyed where there is no such mode (sram);
- ``is_open`` that ignores ``last`` (flipflop);
- slots beyond the last bin filled;
- the copy delayed until the second set is empty (full_rate alone);
- bit 13 of bin 10 lost (only with the longest packets);
- bit 2 of bin 10 inverted in each cycle without a beat, from 2,048 on;
- bit 7 of the count of bin 1 lost in the copy, or bit 13 in place of bit 12 (only with the longest
  packets).
"""

import pytest

from golden.index.vectors.histogram_parallel import counter_vectors
from hdl.index.histogram_parallel import IndexHistogramParallel, IndexHistogramParallelConfig
from tb.simulate.run import simulate

CONFIGS = {
    "flipflop_1_bin_words": IndexHistogramParallelConfig(
        bits_a=2, bits_b=2, elements=3, k_max=40, integer_bits=4, word_bins=1
    ),
    "flipflop_8_bin_words": IndexHistogramParallelConfig(
        bits_a=3, bits_b=2, elements=16, k_max=300, integer_bits=8, word_bins=8
    ),
    "flipflop_32_bin_words": IndexHistogramParallelConfig(
        bits_a=3, bits_b=3, elements=4, k_max=70, integer_bits=4, word_bins=32
    ),
    "flipflop_more_slots_than_bins": IndexHistogramParallelConfig(
        bits_a=2, bits_b=2, elements=1, k_max=20, integer_bits=0, word_bins=32
    ),
    "sram": IndexHistogramParallelConfig(
        bits_a=2, bits_b=2, elements=3, k_max=40, integer_bits=8, architecture="sram", word_bins=1
    ),
    "sram_no_integer": IndexHistogramParallelConfig(
        bits_a=2, bits_b=3, elements=1, k_max=17, integer_bits=0, architecture="sram", word_bins=1
    ),
    "flipflop_odd_elements": IndexHistogramParallelConfig(
        bits_a=2, bits_b=3, elements=5, k_max=100, integer_bits=8, word_bins=4
    ),
    "flipflop_longest": IndexHistogramParallelConfig(
        bits_a=2, bits_b=2, elements=2, k_max=16383, integer_bits=0, word_bins=32
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_histogram_parallel(name, seed):
    config = CONFIGS[name]
    vectors, params = counter_vectors(config, seed)
    simulate(
        IndexHistogramParallel(config),
        "tb.index.tb_histogram_parallel",
        vectors=vectors,
        params=params,
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"architecture": "sram", "word_bins": 2},
            "word_bins must be a power of two in 1..1, not 2",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        IndexHistogramParallelConfig(**wrong)
    assert str(error.value) == f"IndexHistogramParallelConfig.{message}"
