"""Histograms in flip-flops and in RAMs: from how many bins on the RAMs are smaller."""

from golden.markers import table
from golden.sram import ram
from hdl.index.histogram_bank import IndexHistogramBank, IndexHistogramBankConfig
from hdl.index.histogram_parallel import IndexHistogramParallel, IndexHistogramParallelConfig
from hdl.index.histogram_ram import IndexHistogramRam, IndexHistogramRamConfig
from synth.area import DFF_28NM, load_libraries
from synth.tables.common import SRAM_UM2_PER_BIT, Map, Tables, mapper

_K_MAX = 16383  # the most that index_histogram_parallel takes
_HALVES = ((2, 2), (3, 2), (3, 3), (4, 3), (4, 4))  # bits of the two halves of an index
_WEIGHT_BITS = (4, 6, 8, 10, 12)
_ENABLED_FLIP_FLOP = 1.5 * DFF_28NM  # the enable costs a half more, as in the own cell table


def _rams(bank: IndexHistogramBankConfig) -> tuple[float, float]:
    """um2 of all RAMs of a bank at 28 nm: by CACTI, and by Table I's middle assumption."""
    count, memory = 2 * bank.elements, bank.memory
    cacti = ram("1r1w", memory.depth, memory.width).um2
    return count * cacti, count * memory.bits * SRAM_UM2_PER_BIT["middle"]


def histogram_tables(map_block: Map) -> dict[str, str]:
    """Sections ``index_counts`` and ``index_weights``: um2 at 28 nm, two sets of bins each."""
    counts = []
    for elements in (1, 4):
        for bits_a, bits_b in _HALVES:
            flip_flops = IndexHistogramParallelConfig(
                bits_a=bits_a, bits_b=bits_b, elements=elements, k_max=_K_MAX, integer_bits=0,
                word_bins=1,
            )  # fmt: skip
            rams = IndexHistogramRamConfig(
                banks=1, bits=bits_a + bits_b, elements=elements, values=1, word_banks=1,
                k_max=_K_MAX, amount_max=1,
            )  # fmt: skip
            first = map_block(IndexHistogramParallel(flip_flops), "index_histogram_parallel")
            second = map_block(IndexHistogramRam(rams), "index_histogram_ram")
            cacti, middle = _rams(rams.bank)
            counts.append(
                (
                    f"{elements}",
                    f"{flip_flops.bins}",
                    f"{first.um2_28nm:,.0f}",
                    f"{second.um2_28nm:,.0f}",
                    f"{cacti:,.0f}",
                    f"{middle:,.0f}",
                    f"{(second.um2_28nm + cacti) / first.um2_28nm:.2f}",
                    f"{(second.um2_28nm + middle) / first.um2_28nm:.2f}",
                )
            )
    weights = []
    for bits in _WEIGHT_BITS:
        bank = IndexHistogramBankConfig(bits=bits, values=1)
        logic = map_block(IndexHistogramBank(bank), "index_histogram_bank").um2_28nm
        cacti, middle = _rams(bank)
        least = 2 * bank.memory.bits * _ENABLED_FLIP_FLOP
        weights.append(
            (
                f"{bank.rows:,}",
                f"{2 * bank.memory.bits:,}",
                f"{least:,.0f}",
                f"{logic:,.0f}",
                f"{cacti:,.0f}",
                f"{middle:,.0f}",
                f"{(logic + cacti) / least:.2f}",
                f"{(logic + middle) / least:.2f}",
            )
        )
    common = ("RAMs, CACTI", "RAMs, middle", "ratio, CACTI", "ratio, middle")
    return {
        "index_counts": table(
            ("elements", "bins", "index_histogram_parallel", "index_histogram_ram, logic", *common),
            counts,
        ),
        "index_weights": table(
            ("bins", "bits", "flip-flops alone", "a bank, logic", *common), weights
        ),
    }


TABLES = {
    "histograms": Tables(
        ("index_counts", "index_weights"),
        lambda options: (histogram_tables(mapper(load_libraries())), 0.0),
    )
}
