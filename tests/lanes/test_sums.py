"""golden.lanes.sums against fractions.

Shown to fail: a sum that wraps at 62 bits; an exponent one off; the last column left out.
"""

import random
import struct
from fractions import Fraction

import pytest

from golden.lanes.sums import integer_packet, integer_sum, rounded


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
