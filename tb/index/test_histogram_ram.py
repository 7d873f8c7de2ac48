"""IndexHistogramRam against golden.index.histogram.bank_histogram: bins, cycles, resets.

Shown to fail:

- without forwarding;
- a sum forwarded from the packet before, or from a cycle without a write;
- the bins of a set not cleared, or cleared in one part alone;
- the set read before the final write;
- an index beyond the rows counted, or not flagged, or flagged in all banks but one;
- ``bad`` kept for the next packet;
- a bin one bit short;
- a pause between two packets (full_rate alone);
- no clearing after reset.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.index.histogram import bank_histogram, bank_words
from golden.words import layout_words
from hdl.index.histogram_ram import IndexHistogramRam, IndexHistogramRamConfig
from hdl.index.room import BLOCKS
from tb.simulate.run import simulate

CONFIGS = {
    **{name: BLOCKS["index_histogram_ram"].configs[name] for name in ("small", "smollm2")},
    "default": IndexHistogramRamConfig(),
    "two_elements": IndexHistogramRamConfig(
        banks=6, bits=3, elements=2, values=3, word_banks=2, k_max=150
    ),
    "four_elements": IndexHistogramRamConfig(
        banks=8, bits=4, elements=4, values=1, word_banks=8, k_max=401, amount_max=1000
    ),
    "three_elements_of_one_bank": IndexHistogramRamConfig(
        banks=1, bits=1, elements=3, values=2, word_banks=1, k_max=47, amount_max=1
    ),
    "longest": IndexHistogramRamConfig(banks=2, bits=2, elements=4, values=1, word_banks=1),
}


@dataclasses.dataclass
class Packet:
    rows: int
    index: np.ndarray  # (beats, elements, banks)
    amount: np.ndarray  # (beats, elements, values)
    inlier: np.ndarray  # (beats, elements)


class Packets:
    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.packets: list[Packet] = []

    def add(self, beats, rows=None, *, index=None, amount=None, inlier=1.0, beyond=0.0):
        """``beats`` beats; index, amount: of all, or random ones; beyond: share beyond the rows."""
        config, rng = self.config, self.rng
        rows = config.rows if rows is None else rows
        shape = (beats, config.elements)
        indices = rng.integers(0, rows, (*shape, config.banks))
        if index is not None:
            indices[:] = np.asarray(index).reshape(-1, 1, 1)
        if rows < config.rows:
            wrong = rng.integers(rows, config.rows, indices.shape)
            indices = np.where(rng.random(indices.shape) < beyond, wrong, indices)
        amounts = rng.integers(0, config.amount_max + 1, (*shape, config.values))
        if amount is not None:
            amounts[:] = amount
        inliers = rng.random(shape) < inlier
        inliers &= np.cumsum(inliers).reshape(shape) <= config.k_max
        if rows < config.rows:  # what does not count may be anything
            indices[~inliers] = rng.integers(0, config.rows, config.banks)
        self.packets.append(Packet(rows, indices, amounts, inliers))


def histogram_packets(rng, config) -> tuple[list[Packet], int]:
    """All packets, and how many of them the runs with idle and stall cycles move."""
    build = Packets(config, rng)
    most = min(config.k_max // config.elements, 40)
    large = config.banks * config.rows > 1000
    rows, top = config.rows, config.amount_max
    few = max(1, rows // 2 - 1)
    build.add(1)
    build.add(0)
    build.add(most, few, index=0, amount=top)  # a same row in each beat
    build.add(1, few, index=0, amount=top)  # the row that the packet before wrote last
    build.add(2, 1, index=0)
    build.add(3, few, beyond=0.5)
    build.add(most, few, inlier=0.5)
    some = len(build.packets)
    if not large:
        build.add(most, index=np.arange(most) % min(2, rows))  # two rows in turn
        build.add(most, index=np.arange(most) // 2 % min(3, rows))
        build.add(most, inlier=0.0)
        build.add(0, 1)
        build.add(0, few)
        build.add(most, few, inlier=0.5, beyond=0.3)
        build.add(most, few)
        for _ in range(4):
            build.add(1, 1, index=0)  # single rows of single beats
        for _ in range(6):
            build.add(int(rng.integers(0, most + 1)), int(rng.integers(1, rows + 1)))
        some = len(build.packets)
    for bank in range(config.banks) if few < rows and not large else (0, config.banks - 1):
        build.add(2, few)  # one index alone lies beyond the rows
        build.packets[-1].index[rng.integers(2), rng.integers(config.elements), bank] = few
    for row in (0, rows - 1):  # the largest sum
        build.add(config.k_max // config.elements if not large else most, index=row, amount=top)
    if not large and config.k_max % config.elements:
        build.add(-(-config.k_max // config.elements), index=rows - 1, amount=top)
    # Sums in which each bit takes both values, in few rows, often the same twice.
    longest = config.k_max // config.elements
    build.add(longest)
    build.packets[-1].index[:] //= max(1, rows // 2)
    build.add(2)
    return build.packets, some


def histogram_vectors(config, seed):
    rng = np.random.default_rng([seed, 72])
    packets, some = histogram_packets(rng, config)
    words, beats, lengths = {"packet": [], "i": [], "o": []}, 0, []
    for packet in packets:
        count = len(packet.index)
        info = {"rows": np.array([packet.rows]), "empty": np.array([count == 0])}
        words["packet"].append(layout_words(config.packet_layout, **info))
        last = np.arange(count) == count - 1
        if count:
            beat = {"index": packet.index, "amount": packet.amount, "inlier": packet.inlier}
            words["i"].append(layout_words(config.i_layout, **beat, last=last))
        index = torch.tensor(packet.index[packet.inlier]).reshape(-1, config.banks)
        amount = torch.tensor(packet.amount[packet.inlier]).reshape(-1, config.values)
        bins = bank_words(bank_histogram(index, amount, packet.rows), config.word_banks)
        bad = np.full(len(bins), bool((index >= packet.rows).any()))
        ends = np.arange(len(bins)) == len(bins) - 1
        words["o"].append(layout_words(config.o_layout, bin=bins.numpy(), bad=bad, last=ends))
        beats += count
        lengths.append((count, len(bins)))
    vectors = {name: np.concatenate(each) for name, each in words.items()}
    return vectors, {"packets": lengths, "some": some}


@pytest.mark.telling("small", "default")
@pytest.mark.parametrize("name", CONFIGS)
def test_histogram_ram(name, seed):
    config = CONFIGS[name]
    vectors, params = histogram_vectors(config, seed)
    simulate(
        IndexHistogramRam(config),
        "tb.index.tb_histogram_ram",
        vectors=vectors,
        params=params,
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"word_banks": 24}, "word_banks must be a divisor of banks = 64, not 24"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        IndexHistogramRamConfig(**wrong)
    assert str(error.value) == f"IndexHistogramRamConfig.{message}"
