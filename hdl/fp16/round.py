"""``y = RNE((significand + sticky fraction) * 2**exponent)``: the only rounder of the library.

IEEE 754-2019 clause 4.3.1 (roundTiesToEven), 7.4 (overflow to infinity), subnormal results
exact to the same single rounding. Three phases, so that an operator can be cut between them:
``count`` (leading zeros, shift distance), ``shift`` and ``pack`` (increment, specials).
"""

import dataclasses

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value

from golden.fp16.format import FloatFormat
from hdl.bits import let
from hdl.fp16.shift import leading_zeros, shift_left


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounder:
    """Properties of the operand that are known at elaboration; its methods are the phases.

    Operand fields
    --------------
    significand : unsigned(width)  not normalised, may be zero
    exponent : signed  weight of its last bit, ``lowest <= exponent <= highest`` if it matters
    sticky : 1  a fraction strictly between 0 and 1 follows the last bit. Where it is set,
        one of two must be so. ``significand`` has the ``format.precision + 1`` bits from the
        leading one down, or the last bit weighs no more than half the smallest subnormal.
    sign : 1  sign of a result that is not an exact zero (an underflow to zero included)
    zero_sign : 1  sign of an exact zero
    is_nan, is_inf : 1  override the number, NaN first

    The result field is ``y``: ``format.bits`` bits.

    ``leading`` of the top bits of ``significand`` may hold its leading one, where the number
    counts and is not zero. 0: all of them. Fewer make the count and the shifter smaller.
    """

    format: FloatFormat
    width: int
    lowest: int
    highest: int
    leading: int = 0

    @property
    def _headroom(self) -> int:
        """Zeros put above the significand so that the shift to a subnormal is never to the right.

        With ``precision + 1`` of them an unshifted significand is below the half step, whatever
        its weight: more are never needed.
        """
        short = -(self.lowest + self.width - 2 + self.format.bias)
        return min(max(short, 0), self.format.precision + 1)

    @property
    def _candidates(self) -> int:
        """Places where the leading one can be."""
        return self.leading or self.width

    @property
    def _padded(self) -> int:
        """Width of the shifter: significand, headroom, and at least one bit to round away."""
        return max(self._headroom + self.width, self.format.precision + 1)

    @property
    def _highest_limit(self) -> int:
        return max(self.highest + self._headroom + self.width - 2 + self.format.bias, 0)

    def count(self, m: Module, f: dict) -> dict:
        """Distance to the left: to the leading one, but not beyond the subnormal grid."""
        # Shifted by `limit`, the top bit has biased exponent 1; below 0 all bits are sticky.
        offset = self._headroom + self.width - 2 + self.format.bias
        limit_bits = max(self._highest_limit.bit_length(), 1)
        raw_limit = let(m, "raw_limit", f["exponent"] + Const(offset, signed(16)))
        limit = Signal(limit_bits)
        if self.lowest + offset < 0:
            m.d.comb += limit.eq(Mux(raw_limit < 0, 0, raw_limit))
        else:
            m.d.comb += limit.eq(raw_limit)
        top = f["significand"][-self._candidates :]
        zeros, nonzero = leading_zeros(m, top) if len(top) > 1 else (Const(0, 1), top)
        zeros = let(m, "leading", zeros + self._headroom)
        above = let(m, "above", Cat(limit, Const(0, 1)).as_signed() - zeros)
        subnormal = let(m, "subnormal", (above < 0) | ~nonzero)
        # The largest distance, and never more than the shifter is wide.
        farthest = min(self._headroom + self._candidates - 1, self._highest_limit)
        distance = Signal(max(farthest.bit_length(), 1))
        exponent = Signal(limit_bits)  # biased, less 1
        m.d.comb += [
            distance.eq(Mux(subnormal, limit, zeros)),
            exponent.eq(Mux(subnormal, 0, above)),
        ]
        return {
            "significand": f["significand"],
            "sticky": f["sticky"],
            "distance": distance,
            "exponent": exponent,
            # Under an infinity the number may be anything, zero too.
            "sign": let(
                m,
                "sign",
                Mux(nonzero | f["sticky"] | f["is_inf"], f["sign"], f["zero_sign"]),
            ),
            "is_nan": f["is_nan"],
            "is_inf": f["is_inf"],
        }

    def shift(self, m: Module, f: dict) -> dict:
        """Normalise; keep ``precision`` bits, the half step and whether anything is below it."""
        below = self._padded - self._headroom - self.width
        padded = Cat(Const(0, below), f["significand"], Const(0, self._headroom))
        shifted = shift_left(m, padded, f["distance"], "normal")
        rest = self._padded - self.format.precision
        return {
            "kept": let(m, "kept", shifted[rest:]),
            "half": let(m, "half", shifted[rest - 1]),
            "below": let(m, "below", shifted[: rest - 1].any() | f["sticky"]),
            "exponent": f["exponent"],
            "sign": f["sign"],
            "is_nan": f["is_nan"],
            "is_inf": f["is_inf"],
        }

    def pack(self, m: Module, f: dict) -> dict:
        """Add the increment; its carry runs into the exponent, and from there into infinity."""
        format, exponent = self.format, f["exponent"]
        up = let(m, "up", f["half"] & (f["below"] | f["kept"][0]))
        # The hidden bit is added to (biased exponent - 1): a subnormal keeps exponent field 0.
        base = Cat(Const(0, format.frac_bits), exponent[: format.exp_bits])
        magnitude = Signal(format.bits - 1)
        m.d.comb += magnitude.eq(base + f["kept"] + up)
        infinite = f["is_inf"]
        if self._highest_limit >= format.exp_max - 1:
            infinite = infinite | (exponent >= format.exp_max - 1)
        y = Signal(format.bits)
        with m.If(f["is_nan"]):
            m.d.comb += y.eq(format.canonical_nan)
        with m.Elif(infinite):
            m.d.comb += y.eq(Cat(Const(format.infinity, format.bits - 1), f["sign"]))
        with m.Else():
            m.d.comb += y.eq(Cat(magnitude, f["sign"]))
        return {"y": y}

    @property
    def phases(self):
        return [self.count, self.shift, self.pack]

    def __call__(self, m: Module, f: dict) -> Value:
        """All phases at once."""
        for phase in self.phases:
            f = phase(m, f)
        return f["y"]
