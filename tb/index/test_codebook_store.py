"""IndexCodebookStore against golden.index.store: every output in every cycle.

Shown to fail:

- a magnitude one unit above 1 accepted;
- one bit of a lane's magnitude that reads as 0, or as 1;
- infinity that is no NONFINITE;
- a fault of the last lane, or of the last word, ignored;
- the next book at the end of the one before, where the codebook is short;
- a word beyond the books written;
- the words of a load of no entries written;
- a load whose number of entries has bit 1 alone, taken as one of no entries;
- a load of too few words that is good;
- ``swap`` obeyed without ``loaded``;
- the load written into the buffer in use;
- ``low`` granted while ``scan`` reads;
- a fault that the next ``load_info`` does not clear;
- ``entries`` that change before ``swap``.
"""

import numpy as np
import pytest
import torch
from amaranth import Shape

from golden.index.format import CodebookFault
from golden.index.store import load_fault, store_addresses, store_words
from golden.words import layout_words
from hdl.index.codebook_store import IndexCodebookStore, IndexCodebookStoreConfig
from hdl.index.room import BLOCKS
from tb.simulate.run import simulate

CONFIGS = {
    "default": IndexCodebookStoreConfig(),
    "small": BLOCKS["index_codebook_store"].configs["small"],
    "odd": IndexCodebookStoreConfig(macs=5, parts=3, entries=6, books=3),
    "one_word": IndexCodebookStoreConfig(macs=1, parts=1, entries=1, exponent_min=0),
    "one_part": IndexCodebookStoreConfig(macs=2, parts=1, entries=7, books=4, exponent_max=9),
}
ONE, INFINITY = 0x3C00, 0x7C00
WRONG = [0x3C01, 0xBC01, 0x7BFF, 0xFBFF, INFINITY, 0xFC00, 0x7C01, 0x7E00, 0xFFFF]


class Loads:
    """Packets of load, what they carry, and golden's verdict."""

    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.vectors, self.loads = {}, []

    def codebook(self, entries):
        """Words within -1..1: uniform, subnormal, zeros and ones."""
        config, rng = self.config, self.rng
        words = rng.integers(0, ONE + 1, (config.books, entries, config.parts * config.macs))
        few = rng.choice([0, 1, 0x3FF, ONE], words.shape)
        words = np.where(rng.random(words.shape) < 0.2, few, words)
        words = words | rng.integers(0, 2, words.shape) << 15
        # As many subspaces as elements: (books, subspaces, entries, 1)
        return torch.tensor(words).permute(0, 2, 1)[..., None]

    def add(self, entries, exponent=0, *, wrong=None, words_more=0):
        """A load; wrong: (word, lane, value) put there; words_more: beyond those that fit."""
        config = self.config
        fits = 1 <= entries <= config.entries
        words = store_words(self.codebook(entries if fits else 1), config.macs)
        expected = len(words)
        if words_more > 0:
            words = torch.cat((words, store_words(self.codebook(words_more), config.macs)))
        words = words[: expected + words_more] if words_more else words
        if wrong:
            words[wrong[0], wrong[1]] = wrong[2]
        fault = load_fault(words, expected)
        if not (fits and config.exponent_min <= exponent <= config.exponent_max):
            fault |= CodebookFault.SHAPE
            expected = 0
        rows = entries if fits else 1
        address = store_addresses(config.books, rows, config.entries, config.parts)
        n = len(self.loads)
        last = np.arange(len(words)) == len(words) - 1
        info = {"entries": np.array([entries]), "exponent": np.array([exponent])}
        self.vectors[f"{n}.info"] = layout_words(config.info_layout, **info)
        self.vectors[f"{n}.load"] = layout_words(config.load_layout, word=words, last=last)
        self.vectors[f"{n}.address"] = address[:expected].numpy()
        self.loads.append({"entries": entries, "exponent": exponent, "fault": int(fault)})


def _holds(shape: range, value: int) -> bool:
    """Whether a field of ``shape`` has a word for ``value``."""
    bits = Shape.cast(shape)
    low = -(1 << bits.width - 1) if bits.signed else 0
    return low <= value < low + (1 << bits.width)


def store_loads(config, seed) -> Loads:
    rng = np.random.default_rng([seed, 71])
    loads = Loads(config, rng)
    most, low, high = config.entries, config.exponent_min, config.exponent_max
    is_large = config.words > 100
    loads.add(most, high)
    loads.add(most, low, wrong=(0, config.macs - 1, 0x7E00))
    loads.add(1, low)
    loads.add(most)
    last = config.words - 1
    cases = [(word, None) for word in WRONG] + [(0x7E00, (last, config.macs - 1))]
    for value, where in cases[::3] if is_large else cases:
        at = where or (int(rng.integers(config.words)), int(rng.integers(config.macs)))
        loads.add(most, wrong=(*at, value))
    # In each lane: finite words one bit from a NaN, and words one bit from 1.
    bits = [0x7FFF ^ 1 << bit for bit in range(10, 15)] + [ONE | 1 << bit for bit in range(10)]
    cases = [(lane, value) for lane in range(config.macs) for value in bits]
    for lane, value in rng.permutation(cases)[: 60 if is_large else None].tolist():
        loads.add(1, wrong=(int(rng.integers(config.books * config.parts)), lane, value))
    loads.add(max(1, most // 2), 1)
    for more in (-1, 1, 2, 2 * config.parts):
        if config.books * config.parts * max(1, most - 1) + more > 0:
            loads.add(max(1, most - 1), words_more=more)
    loads.add(most)
    for entries in (0, most + 1):
        if _holds(config.entries_shape, entries):
            loads.add(entries, words_more=2 * config.words)
    for bit in range(most.bit_length()):
        loads.add(1 << bit)
    for exponent in (low - 1, high + 1):
        if _holds(config.exponent_shape, exponent):
            loads.add(most, exponent)
    loads.add(most, 1)
    for _ in range(2 if is_large else 6):
        exponent = int(rng.integers(low, high + 1))
        loads.add(int(rng.integers(1, most + 1)), exponent)
    return loads


@pytest.mark.parametrize("name", CONFIGS)
def test_codebook_store(name, seed):
    config = CONFIGS[name]
    loads = store_loads(config, seed)
    faults = [load["fault"] for load in loads.loads]
    assert {0, 1, 2, 4} <= set(faults)
    simulate(
        IndexCodebookStore(config),
        "tb.index.tb_codebook_store",
        vectors=loads.vectors,
        params={"loads": loads.loads},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"entries": 4096, "parts": 4, "books": 33}, "books must be 1..32 at these sizes, not 33"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        IndexCodebookStoreConfig(**wrong)
    assert str(error.value) == f"IndexCodebookStoreConfig.{message}"
