"""Blocks of indices and codebooks by name."""

from hdl.index.codebook_store import IndexCodebookStore, IndexCodebookStoreConfig
from hdl.index.histogram_parallel import IndexHistogramParallel, IndexHistogramParallelConfig
from hdl.index.histogram_ram import IndexHistogramRam, IndexHistogramRamConfig
from hdl.index.nearest import IndexNearest, IndexNearestConfig
from hdl.index.reducer import IndexReducer, IndexReducerConfig
from hdl.index.table import IndexTable, IndexTableConfig
from hdl.registry import Registered, Room

# Histograms of the size of KLLM's lane: Table I, three bits, bins in RAMs, and a small one.
_HISTOGRAMS = {
    "table1": IndexHistogramParallelConfig(),
    "table1_w4a3": IndexHistogramParallelConfig(bits_a=3),
    "table1_sram": IndexHistogramParallelConfig(architecture="sram", word_bins=1),
    "small": IndexHistogramParallelConfig(
        bits_a=2, bits_b=3, elements=4, k_max=100, integer_bits=4, word_bins=8
    ),
}

BLOCKS = {
    "index_codebook_store": Registered(
        component=IndexCodebookStore,
        config=IndexCodebookStoreConfig(),
        configs={
            "smollm2": IndexCodebookStoreConfig(parts=1),
            "per_head": IndexCodebookStoreConfig(parts=1, books=3),
            "small": IndexCodebookStoreConfig(macs=4, parts=4, entries=16),
        },
        golden="golden.index.store:store_words",
    ),
    "index_histogram_parallel": Registered(
        component=IndexHistogramParallel,
        config=IndexHistogramParallelConfig(),
        configs=_HISTOGRAMS,
        golden="golden.index.histogram:index_histogram",
    ),
    "index_histogram_ram": Registered(
        component=IndexHistogramRam,
        config=IndexHistogramRamConfig(),
        configs={
            "smollm2": IndexHistogramRamConfig(banks=32, values=3),
            "four_keys": IndexHistogramRamConfig(elements=4),
            "small": IndexHistogramRamConfig(
                banks=4, bits=4, values=2, word_banks=2, k_max=100, amount_max=255
            ),
        },
        golden="golden.index.histogram:bank_histogram",
    ),
    "index_nearest": Registered(
        component=IndexNearest,
        config=IndexNearestConfig(),
        configs={
            "table1": IndexNearestConfig(),
            "table1_w4a3": IndexNearestConfig(bits_a=3),
            "small": IndexNearestConfig(bits_a=2, elements=4),
        },
        golden="golden.index.nearest:cluster_by_midpoints",
    ),
    "index_reducer": Registered(
        component=IndexReducer,
        config=IndexReducerConfig(),
        configs={
            name: IndexReducerConfig.of_counter(counter, counter.word_bins)
            for name, counter in _HISTOGRAMS.items()
        },
        golden="golden.index.histogram:reduce_counts",
    ),
    "index_table": Registered(
        component=IndexTable,
        config=IndexTableConfig(),
        configs={"table1": IndexTableConfig(), "small": IndexTableConfig(bits_a=2, width=4)},
        golden="golden.index.codebook:look_up",
    ),
}

ROOM = Room(blocks=BLOCKS, tables=("libraries", "index"), fault_weight=2)
