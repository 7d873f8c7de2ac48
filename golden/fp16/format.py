"""Binary floating-point formats of IEEE 754-2019 clause 3.4, as widths. Pure Python."""

import dataclasses

from golden.config import Config

__all__ = ["FP16", "FP32", "FloatFormat"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FloatFormat(Config):
    """sign, ``exp_bits`` of biased exponent, ``frac_bits`` of trailing significand."""

    exp_bits: int  # 3..8
    frac_bits: int  # 2..23

    def __post_init__(self) -> None:
        self._check_range("exp_bits", 3, 8)
        self._check_range("frac_bits", 2, 23)

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
