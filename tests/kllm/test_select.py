"""golden.kllm.select: the selecting lane's sums are those of the counters, bit for bit.

Shown to fail:

- a product one place on in its row;
- the digits added at one place;
- a word of the table that loses its hidden bit.
"""

import random
from fractions import Fraction

import pytest
import torch

from golden.fp16.format import FP32
from golden.fp16.ops import fixed_point, from_fixed
from golden.index.format import GRID_PRODUCT_ROUNDED
from golden.kllm.blocks import dense_sums
from golden.kllm.format import integer_digits
from golden.kllm.select import column_sum, look_up_rows, word_table

SHAPES = [(4, 4, 0), (4, 4, 8), (3, 2, 8), (2, 3, 4), (4, 3, 4)]


def centroid_words(rng, count: int) -> list[int]:
    """FP16 words in -1..1, the corners first."""
    corners = [0x3C00, 0xBC00, 0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x3BFF]
    drawn = [rng.getrandbits(1) << 15 | rng.randrange(0x3C01) for _ in range(count)]
    return (corners + drawn)[:count]


def packet(rng, value_bits: int, bits_b: int, length: int):
    """(value, index, inlier) of one column."""
    value = [rng.getrandbits(value_bits) for _ in range(length)]
    return value, [rng.getrandbits(bits_b) for _ in value], [rng.random() < 0.8 for _ in value]


def selected(table, shape, elements: int, of_packet, digits: int) -> int:
    """The exact sum of a packet, ``elements`` at a time."""
    value, index, inlier = of_packet
    beats = []
    for at in range(0, len(value), elements):
        part = slice(at, at + elements)
        rows = look_up_rows(table, value[part], inlier[part], digits)
        beats += [(row, index[part], digit) for digit, row in enumerate(rows)]
    return column_sum(beats, shape[0])


def check(words, shape, of_packet, digits: int, elements: int) -> None:
    """The sum, rounded once, is ``dense_sums``; unrounded it is a sum of fractions."""
    bits_a, bits_b, _ = shape
    table = word_table(words, bits_a, bits_b)
    total = selected(table, shape, elements, of_packet, digits)
    value, index, inlier = (torch.tensor(each) for each in of_packet)
    golden = dense_sums(value, index[:, None], inlier, torch.tensor(words), bits_b)
    assert from_fixed(total, GRID_PRODUCT_ROUNDED, FP32).item() == golden.item()
    exact = Fraction(0)
    fixed = fixed_point(torch.tensor(words)).tolist()
    for v, j, counts in zip(*of_packet, strict=True):
        if counts and len(words) > 1 << bits_b:
            exact += Fraction(fixed[v << bits_b | j], 2**24)
        elif counts:
            exact += v * Fraction(fixed[j], 2**24)
    assert Fraction(total, 2**24) == exact


@pytest.mark.parametrize("shape", SHAPES)
def test_select_gives_the_sums_of_the_counters(shape):
    bits_a, bits_b, integer_bits = shape
    rng = random.Random(17)
    for length in (1, 2, 5, 64, 200):
        elements = rng.randrange(1, 17)
        products = centroid_words(rng, 1 << bits_a + bits_b)
        check(products, shape, packet(rng, bits_a, bits_b, length), 1, elements)
        if integer_bits:
            digits = integer_digits(integer_bits, bits_a)
            centroids = centroid_words(rng, 1 << bits_b)
            check(centroids, shape, packet(rng, integer_bits, bits_b, length), digits, elements)


def test_word_table_refuses_other_counts():
    with pytest.raises(ValueError, match="words must be 16 or 256, not 20"):
        word_table([0] * 20, 4, 4)
