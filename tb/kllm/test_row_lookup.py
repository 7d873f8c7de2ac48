"""KllmRowLookup against golden.kllm.select.look_up_rows: tables of products and of integers.

Shown to fail:

- a write of row 0 that leaves out the multiple of the last row;
- the mask of digit 0 left out in integer mode;
- the digits from the highest down;
- ``last`` on each digit of the final beat;
- ``i.ready`` that does not wait for the last digit;
- a word of ``fixed12`` of which the table takes 11 bits, and one of ``fixed16`` read as FP16;
- one bit of one entry that reaches every row;
- in rows: a row of multiples too few, or multiples that begin with what the last packet left;
- in rows: the first words in each row of the table, or a word taken before its multiples are made.
"""

import dataclasses

import numpy as np
import pytest

from golden.kllm.select import look_up_rows, word_table
from golden.kllm.vectors.row_lookup import table_words
from golden.words import layout_words
from hdl.kllm.lane.row_lookup import KllmRowLookup
from hdl.kllm.lane.select_config import KllmSelectConfig
from hdl.kllm.room import BLOCKS
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_row_lookup"].configs["small"]
CONFIGS = {
    "small": SMALL,
    "three_digits": KllmSelectConfig(
        bits_a=3, bits_b=2, elements=2, columns=1, k_max=20, integer_bits=8
    ),
    "two_digits_of_4": KllmSelectConfig(
        bits_a=4, bits_b=3, elements=3, columns=2, k_max=20, integer_bits=8, tag_bits=1
    ),
    "one_digit": KllmSelectConfig(
        bits_a=4, bits_b=2, elements=1, columns=1, k_max=20, integer_bits=4
    ),
    "no_integer": KllmSelectConfig(
        bits_a=2, bits_b=4, elements=5, columns=2, k_max=20, integer_bits=0
    ),
    "fixed16": dataclasses.replace(SMALL, product="fixed16"),
    "fixed16_two_digits": KllmSelectConfig(
        bits_a=4, bits_b=2, elements=2, columns=1, k_max=20, integer_bits=8, product="fixed16"
    ),
    "antisymmetric": dataclasses.replace(SMALL, antisymmetric=True, product="fixed16"),
    "antisymmetric_rounded": KllmSelectConfig(
        bits_a=2, bits_b=2, elements=2, columns=2, k_max=20, integer_bits=4, antisymmetric=True
    ),
    "fixed12_no_integer": KllmSelectConfig(
        bits_a=3, bits_b=3, elements=2, columns=2, k_max=20, integer_bits=0, product="fixed12"
    ),
    "rows": dataclasses.replace(SMALL, packet_words=16),
    "rows_of_half": KllmSelectConfig(
        bits_a=4, bits_b=3, elements=2, columns=1, k_max=20, integer_bits=8, packet_words=16
    ),
    "rows_antisymmetric": KllmSelectConfig(
        bits_a=3, bits_b=4, elements=2, columns=1, k_max=20, integer_bits=4, product="fixed16",
        antisymmetric=True, packet_words=16,
    ),
    "rows_no_integer": KllmSelectConfig(
        bits_a=2, bits_b=4, elements=3, columns=1, k_max=20, integer_bits=0, packet_words=16
    ),
}
CONFIGS |= {f"{name}_sums": dataclasses.replace(c, coding="sums") for name, c in CONFIGS.items()}
BEATS = 60
JUNK = 0xFFFF  # words of a row after the centroids


def opposite_words(rng, config: KllmSelectConfig, integer: bool) -> list[np.ndarray]:
    """Two tables: each bit of each word, but for FP16's that words of -1..1 share, is 0 once."""
    count = config.codes if integer else config.rows * config.codes
    if config.is_fixed:
        ones = 1 << -(config.integer_grid if integer else config.grid)
        words = rng.integers(-ones, ones, count)
        return [words & 0xFFFF, ~words & 0xFFFF]
    words = rng.integers(0, 1 << 16, count) & 0xBBFF
    return [words, words ^ 0xBBFF]


def product_words(rng, config: KllmSelectConfig, integer: int, word: np.ndarray) -> np.ndarray:
    """Words of ``product``: of a table, in an order that the block allows."""
    if config.packet_words > 1:
        if integer:
            junk = np.full(config.packet_words - config.codes, JUNK)
            word = np.concatenate([word, junk])
        rows = word.reshape(-1, config.packet_words)
        order = rng.permutation(len(rows))
        return layout_words(
            config.product_layout, row=order, word=rows[order],
            multiply=np.full(len(rows), integer),
        )  # fmt: skip
    # Row 0 first; the other rows in any order.
    order = rng.permutation(config.codes)
    if not integer:
        others = config.codes + rng.permutation(config.rows * config.codes - config.codes)
        order = np.concatenate([order, others])
    return layout_words(config.product_layout, bin=order, word=word[order])


def lookup_vectors(config: KllmSelectConfig, seed):
    """(vectors, params): phases of beats on one table each."""
    rng = np.random.default_rng([seed, 71])
    vectors, phases = {}, {}
    kinds = [("kmeans", 0, 0), ("largest", 0, 1), ("integer", 1, 0), ("integer_largest", 1, 1)]
    kinds.append(("kmeans_again", 0, 0))
    kinds = kinds if config.integer_bits else kinds[:2]
    tables = [(*kind[:2], table_words(rng, config, *map(bool, kind[1:]))) for kind in kinds]
    for integer in range(2 if config.integer_bits else 1):
        for n, word in enumerate(opposite_words(rng, config, bool(integer))):
            tables.append((f"opposite_{integer}_{n}", integer, word))
    for name, integer, word in tables:
        vectors[f"{name}.product"] = product_words(rng, config, integer, word)
        # In K-Means mode the bits above the index are junk.
        entry_bits = max(config.bits_a, config.integer_bits)
        value = rng.integers(0, 1 << entry_bits, (BEATS, config.elements))
        value[:2] = [[0], [(1 << entry_bits) - 1]]
        inlier = rng.random((BEATS, config.elements)) < 0.8
        inlier[:2], inlier[2] = True, False
        table = word_table(word.tolist(), config.bits_a, config.row_index_bits, config.product)
        digits = config.digits if integer else 1
        shared = {
            "index": rng.integers(0, 1 << config.bits_b, (BEATS, config.columns, config.elements)),
            "last": rng.random(BEATS) < 0.3,
        }
        if config.tag_bits:
            shared["tag"] = rng.integers(0, 1 << config.tag_bits, BEATS)
        vectors[f"{name}.i"] = layout_words(
            config.beat_layout, value=value, inlier=inlier, **shared
        )
        of_beats = [
            look_up_rows(table, each.tolist(), counts.tolist(), digits)
            for each, counts in zip(value, inlier, strict=True)
        ]
        rows = np.array(of_beats).reshape(BEATS * digits, config.elements, config.codes)
        passed = {field: np.repeat(each, digits, axis=0) for field, each in shared.items()}
        place = np.tile(np.arange(digits), BEATS)
        passed["last"] = passed["last"] & (place == digits - 1)
        if config.digits > 1:
            passed["digit"] = place
        vectors[f"{name}.o"] = layout_words(config.rows_layout, row=rows, **passed)
        multiplies = integer and config.packet_words > 1
        phases[name] = {
            "integer": integer, "digits": digits, "taken": config.rows - 1 if multiplies else 0
        }  # fmt: skip
    return vectors, {"phases": phases}


@pytest.mark.telling("small", "antisymmetric_rounded", "fixed12_no_integer", "rows")
@pytest.mark.parametrize("name", CONFIGS)
def test_row_lookup(name, seed):
    config = CONFIGS[name]
    vectors, params = lookup_vectors(config, seed)
    simulate(
        KllmRowLookup(config), "tb.kllm.tb_row_lookup", vectors=vectors, params=params, seed=seed
    )
