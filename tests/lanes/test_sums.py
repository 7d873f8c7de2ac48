"""golden.lanes.sums against fractions.

Shown to fail:

- a sum that wraps at 62 bits; an exponent one off; the last column left out;
- the exponent of a subnormal taken as 0; a product's truncation that is two places too high;
- an index that is not folded where the sum is negated; the planes at one place;
- the sum not moved when the exponent grows.
"""

import random
import struct
from fractions import Fraction

import pytest

from golden.lanes.format import plane_words, weight_value
from golden.lanes.sums import (
    fp16_packet,
    fp16_sum,
    integer_packet,
    integer_sum,
    rounded,
    table_packet,
    table_sum,
    w4a16_packet,
)


def nearest(value: Fraction) -> int:
    """The FP32 word nearest to ``value``, ties to even, by bisection over words."""
    if value < 0:
        return 1 << 31 | nearest(-value)
    low, high = 0, 0x7F7FFFFF
    while low < high:  # the largest word that is not above value
        middle = (low + high + 1) // 2
        low, high = (middle, high) if word_value(middle) <= value else (low, middle - 1)
    below, above = value - word_value(low), word_value(low + 1) - value
    return low + (above < below or (above == below and low % 2))


def word_value(word: int) -> Fraction:
    return Fraction(struct.unpack("<f", struct.pack("<I", word))[0])


@pytest.mark.parametrize("exponent", [0, -24, 9, -90])
def test_rounded_is_the_nearest(exponent):
    rng = random.Random(exponent)
    for bits in (1, 23, 24, 25, 26, 40, 62, 63, 77):
        for _ in range(20):
            total = rng.choice((1, -1)) * rng.getrandbits(bits)
            assert rounded(total, exponent) == nearest(Fraction(total) * Fraction(2) ** exponent)
    assert rounded(3 << 23 | 1, 0) == nearest(Fraction(3 << 23 | 1))  # a tie to even


def test_integer_packet():
    rng = random.Random(1)
    packet = [
        (
            [rng.randint(-128, 127) for _ in range(5)],
            [[rng.randint(-8, 7) for _ in range(5)] for _ in range(3)],
        )
        for _ in range(40)
    ]
    for c, word in enumerate(integer_packet(packet)):
        exact = sum(Fraction(x) * y for a, w in packet for x, y in zip(a, w[c], strict=True))
        assert integer_sum([(a, w[c]) for a, w in packet]) == exact
        assert word == nearest(exact)
    assert len(integer_packet(packet)) == 3


def fp16_value(word: int) -> Fraction:
    """An FP16 word whose exponent 31 counts as a number."""
    sign, exponent, fraction = word >> 15, word >> 10 & 31, word & 0x3FF
    value = (
        Fraction(fraction | 0x400, 1 << 25) * 2**exponent
        if exponent
        else Fraction(fraction, 1 << 24)
    )
    return -value if sign else value


def fp16_beats(rng, exponents: tuple[int, int], count: int) -> list:
    def word():
        return rng.getrandbits(1) << 15 | rng.randint(*exponents) << 10 | rng.getrandbits(10)

    return [([word() for _ in range(4)], [word() for _ in range(4)]) for _ in range(count)]


@pytest.mark.parametrize("exponents", [(0, 20), (11, 31), (5, 5)])
def test_fp16_sum_is_exact_within_the_guard(exponents):
    """Products whose exponents are within 40 of each other lose nothing with 40 guard bits."""
    rng = random.Random(str(exponents))
    for count in (1, 2, 30):
        beats = fp16_beats(rng, exponents, count)
        total, exponent = fp16_sum(beats, 40)
        exact = sum(fp16_value(x) * fp16_value(y) for a, w in beats
                    for x, y in zip(a, w, strict=True))  # fmt: skip
        assert total * Fraction(2) ** exponent == exact
        packet = [(a, [w, w[::-1]]) for a, w in beats]
        assert fp16_packet(packet, 40)[0] == nearest(exact)


@pytest.mark.parametrize("guard_bits", [0, 4])
def test_fp16_sum_loses_less_than_a_unit_each(guard_bits):
    """A unit of the final grid for each product, and one for each beat at which the grid moves."""
    rng = random.Random(guard_bits)
    for _ in range(30):
        beats = fp16_beats(rng, (0, 31), 20)
        total, exponent = fp16_sum(beats, guard_bits)
        unit = Fraction(2) ** exponent
        exact = sum(fp16_value(x) * fp16_value(y) for a, w in beats
                    for x, y in zip(a, w, strict=True))  # fmt: skip
        assert abs(total * unit - exact) < unit * (20 * 4 + 20)
        top = max((x >> 10 & 31 or 1) + (y >> 10 & 31 or 1)
                  for a, w in beats for x, y in zip(a, w, strict=True))  # fmt: skip
        assert exponent == top - 50 - guard_bits


def test_fp16_sum_by_hand():
    """1 and 3 * 2**-24, on a grid that holds both and on one that does not."""
    one, small, negative = (([word], [0x3C00]) for word in (0x3C00, 0x0003, 0x8003))
    assert fp16_sum([one, small], 4) == (1 << 24 | 3, -24)
    assert fp16_sum([one, small], 2) == (1 << 22, -22)
    assert fp16_sum([one, negative], 2) == (1 << 22, -22)  # a product: towards zero
    assert fp16_sum([negative, one], 2) == ((1 << 22) - 1, -22)  # the sum: towards minus infinity


def test_w4a16_packet_looks_up():
    rng = random.Random(3)
    table = [rng.getrandbits(16) for _ in range(16)]
    index = [[[rng.getrandbits(4) for _ in range(3)] for _ in range(2)] for _ in range(5)]
    a = [[rng.getrandbits(16) for _ in range(3)] for _ in range(5)]
    words = [[[table[i] for i in column] for column in beat] for beat in index]
    expected = fp16_packet(list(zip(a, words, strict=True)), 4)
    assert w4a16_packet(list(zip(a, index, strict=True)), table, 4) == expected


@pytest.mark.parametrize("bits", range(1, 9))
def test_table_sum_is_a_sum_of_products(bits):
    """Every code, and the ends of the activations."""
    rng = random.Random(bits)
    beats, exact, packet = [], 0, []
    for _ in range(20):
        a = [rng.choice([-128, 127, 0, rng.randint(-128, 127)]) for _ in range(8)]
        codes = [rng.choice([0, 2**bits - 1, rng.getrandbits(bits)]) for _ in range(8)]
        words = [plane_words(codes[:4], bits), plane_words(codes[4:], bits)]
        assert all(0 <= word < 16 for planes in words for word in planes)
        exact += sum(x * weight_value(code, bits) for x, code in zip(a, codes, strict=True))
        beats.append((a, words))
        packet.append((a, [words, words]))
    assert table_sum(beats) == exact
    assert table_packet(packet) == [nearest(Fraction(exact))] * 2
    assert {weight_value(code, bits) for code in range(2**bits)} == set(
        range(1 - 2**bits, 2**bits, 2)
    )
