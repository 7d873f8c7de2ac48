"""Binary floating-point formats of IEEE 754-2019 clause 3.4, as widths, and the tables of exp.

Pure Python: golden and hardware share this module.
"""

import dataclasses
import functools
from fractions import Fraction

from golden.config import Config, Range, declared


@dataclasses.dataclass(frozen=True, kw_only=True)
class FloatFormat(Config):
    """sign, ``exp_bits`` of biased exponent, ``frac_bits`` of trailing significand."""

    exp_bits: int = dataclasses.field(metadata=declared(Range(3, 8), "bits of the exponent"))
    frac_bits: int = dataclasses.field(metadata=declared(Range(2, 23), "bits of the fraction"))

    @property
    def bits(self) -> int:
        return 1 + self.exp_bits + self.frac_bits

    @property
    def precision(self) -> int:
        """Bits of a normal significand, the hidden one included."""
        return self.frac_bits + 1

    @property
    def bias(self) -> int:
        return 2 ** (self.exp_bits - 1) - 1

    @property
    def exp_max(self) -> int:
        """Biased exponent of infinity and NaN."""
        return 2**self.exp_bits - 1

    @property
    def grid_exponent(self) -> int:
        """Every finite value is an integer times 2**grid_exponent."""
        return 1 - self.bias - self.frac_bits

    @property
    def largest_grid_exponent(self) -> int:
        """Weight of the last significand bit of the largest finite values."""
        return self.grid_exponent + self.exp_max - 2

    @property
    def sign_bit(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        return self.exp_max << self.frac_bits

    @property
    def canonical_nan(self) -> int:
        """The one NaN that is ever produced: 0x7E00 in binary16."""
        return self.infinity | 1 << (self.frac_bits - 1)


FP16 = FloatFormat(exp_bits=5, frac_bits=10)
FP32 = FloatFormat(exp_bits=8, frac_bits=23)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpTables:
    """The tables that give exp of binary16: ``exp(x) = 2**k * power[i] * (1 + r)``, |r| <= 1/128.

    All are integers on the grid 2**-GRID. k is the floor of ``x * 23/16`` with x cut to
    K_PLACES fraction bits. k is so near ``x / ln(2)`` that i runs from -8 to 54 for |x| < 32.
    """

    GRID = 18  # fraction bits of x, of the tables and of the result before it is rounded
    INDEX_BITS = 6  # i is x - k * ln(2), modulo 1, on the grid 2**-6
    K_PLACES = 4
    LOW_BITS = 3  # k is split: k = 8 * high + low
    FACTOR_BITS = 10  # fraction bits of power[i] that are multiplied by r
    SQUARE_BITS = 4  # leading bits of r that select its square / 2

    power: tuple[int, ...]  # 64: exp((i + 1/2) / 64), rounded up; i from 56 on less 64
    high: tuple[int, ...]  # 16: 8 * high * ln(2) modulo 1, high as two's complement
    low: tuple[int, ...]  # 8: low * ln(2) - 2**-20 modulo 1
    square: tuple[int, ...]  # 16: r**2 / 2, r as two's complement


@functools.cache
def exp_tables() -> ExpTables:
    """The tables from exact series, so that no mathematical library has a say."""
    t = ExpTables
    one = 1 << t.GRID
    ln2 = sum(Fraction(1, n << n) for n in range(1, 64))

    def signed(code: int, bits: int) -> int:
        return code - (code >> (bits - 1) << bits)

    def power(code: int) -> int:
        i = code - (1 << t.INDEX_BITS) if code >= 56 else code
        x = Fraction(2 * i + 1, 2 << t.INDEX_BITS)
        term = value = Fraction(1)
        for n in range(1, 24):
            term = term * x / n
            value += term
        return int(value * one) + 1

    step = 1 << t.LOW_BITS
    return ExpTables(
        power=tuple(power(code) for code in range(1 << t.INDEX_BITS)),
        high=tuple(round(step * signed(code, 4) * ln2 * one) % one for code in range(16)),
        low=tuple(round(code * ln2 * one - Fraction(1, 4)) % one for code in range(step)),
        square=tuple(((2 * signed(code, 4) + 1) ** 2 + 24) // 32 for code in range(16)),
    )
