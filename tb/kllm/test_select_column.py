"""KllmSelectColumn against golden.kllm.select.column_sum: packets, digits, the chain.

Shown to fail:

- a sign bit that is not inverted;
- one carry of the tree left out;
- ``first`` without effect;
- the digit's place one bit short;
- ``load`` and ``shift`` exchanged;
- coding=sums: a word without its bias, and a place of an antisymmetric row not inverted;
- antisymmetric: the 1 of one negated word left out, and the place of one not inverted.
"""

import dataclasses

import numpy as np
import pytest

from golden.kllm.select import column_sum
from golden.words import pack, wide_fields
from hdl.kllm.lane.select_column import KllmSelectColumn
from hdl.kllm.lane.select_config import KllmSelectConfig
from hdl.kllm.room import BLOCKS
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_select_column"].configs["small"]
CONFIGS = {
    "small": SMALL,
    "three_digits": dataclasses.replace(SMALL, bits_a=3, elements=5, integer_bits=8),
    "sixteen": KllmSelectConfig(bits_a=4, bits_b=4, elements=16, k_max=64, integer_bits=8),
    "one_element": KllmSelectConfig(bits_a=2, bits_b=2, elements=1, k_max=3, integer_bits=0),
    "two_elements": KllmSelectConfig(bits_a=4, bits_b=3, elements=2, k_max=5, integer_bits=4),
    "fixed16": KllmSelectConfig(
        bits_a=4, bits_b=2, elements=3, k_max=64, integer_bits=8, product="fixed16"
    ),
    "antisymmetric": KllmSelectConfig(
        bits_a=4, bits_b=4, elements=16, k_max=64, integer_bits=8, product="fixed16",
        antisymmetric=True,
    ),
    "antisymmetric_rounded": dataclasses.replace(SMALL, bits_b=2, elements=3, antisymmetric=True),
    "fixed12": dataclasses.replace(SMALL, product="fixed12"),
    "longest": KllmSelectConfig(bits_a=2, bits_b=2, elements=3, k_max=16383, integer_bits=8),
}
CONFIGS |= {f"{name}_sums": dataclasses.replace(c, coding="sums") for name, c in CONFIGS.items()}


@dataclasses.dataclass
class Column:
    """The content of a column's registers, by its contract; None: unknown."""

    config: KllmSelectConfig
    beats: list | None = None  # of the packet in the accumulator
    tree: tuple | None = None
    held: int | None = None

    def biased(self, beats) -> int:
        """The sum of ``beats`` with the bias of each word, modulo 2**sum_bits, signed."""
        config = self.config
        bias = 1 << config.word_bits - 1
        total = column_sum(beats, config.bits_a)
        total += sum(config.elements * bias << config.bits_a * digit for _, _, digit in beats)
        half = 1 << config.sum_bits - 1
        return (total + half) % (2 * half) - half

    def step(self, beat, digit: int, chain: int, *, enter, add, first, load, shift) -> None:
        if load:
            self.held = None if self.beats is None else self.biased(self.beats)
        elif shift:
            self.held = chain
        if add:
            known = self.tree is not None and (first or self.beats is not None)
            before = [] if first else self.beats
            self.beats = [*before, (*self.tree, digit)] if known else None
        if enter:
            self.tree = beat


def column_vectors(config: KllmSelectConfig, seed, cycles=600):
    """(vectors, params): the inputs of each cycle, and what ``held`` is after it, if known.

    ``alone``: the sum of a packet of this cycle's beat alone, of digit 0.
    """
    rng = np.random.default_rng([seed, 72])
    top = 1 << config.word_bits - 1
    least = 1 - top if config.antisymmetric else -top  # its negation must be a word
    rows = rng.integers(least, top, (cycles, config.elements, config.codes))
    codes = 1 << config.bits_b
    index = rng.integers(0, codes, (cycles, config.elements))
    for at, extreme in enumerate((least, top - 1, 0, -1)):
        rows[4 + at :: 16] = extreme
    index[:codes] = np.arange(codes)[:, None]
    column = Column(config)
    inputs, known, held, alone = [], [], [], []
    for cycle in range(cycles):
        if cycle < cycles // 2:  # free steps, in any combination
            enter, add, first, load, shift = (rng.random(5) < (0.8, 0.8, 0.2, 0.2, 0.2)).tolist()
        else:  # packets of 9 beats at full rate, and a chain that drains between
            enter, add, first = True, True, cycle % 9 == 1
            load, shift = cycle % 9 == 1, True
        digit = int(rng.integers(0, config.digits))
        chain = int(rng.integers(-(1 << 62), 1 << 62)) >> 63 - config.sum_bits
        beat = (rows[cycle].tolist(), index[cycle].tolist())
        column.step(beat, digit, chain, enter=enter, add=add, first=first, load=load, shift=shift)
        inputs.append((enter, add, first, load, shift, digit, chain))
        known.append(column.held is not None)
        held.append(column.held or 0)
        alone.append(column.biased([(*beat, 0)]))
    steps = np.array([each[:6] for each in inputs], dtype=np.int64)
    vectors = {
        "row": pack((rows, config.word_bits)),
        "index": pack((index, config.bits_b)),
        "steps": pack((steps[:, :5], 1), (steps[:, 5], 4)),
        "chain": pack(*wide_fields([each[6] for each in inputs], config.sum_bits)),
        "held": pack(*wide_fields(held, config.sum_bits)),
        "alone": pack(*wide_fields(alone, config.sum_bits)),
    }
    return vectors, {"known": [int(each) for each in known]}


@pytest.mark.telling("small", "one_element", "antisymmetric_rounded")
@pytest.mark.parametrize("name", CONFIGS)
def test_select_column(name, seed):
    config = CONFIGS[name]
    vectors, params = column_vectors(config, seed)
    assert sum(params["known"]) > len(params["known"]) // 2
    simulate(
        KllmSelectColumn(config),
        "tb.kllm.tb_select_column",
        vectors=vectors,
        params=params,
        seed=seed,
    )
