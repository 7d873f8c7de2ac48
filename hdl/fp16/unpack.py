"""``value = (-1)**sign * significand * 2**(exponent + format.grid_exponent - 1)``: words decoded.

Every operator starts here: subnormals need no case of their own afterwards, because ``exponent``
is never 0 and the hidden bit is explicit. Combinational.
"""

from amaranth import Const, Module, Mux, Signal, signed
from amaranth.hdl import Value

from golden.fp16.format import FloatFormat
from hdl.bits import let
from hdl.fp16.shift import leading_zeros, shift_left
from hdl.ports import Payload


def raw_layout(format: FloatFormat) -> Payload:
    """The decoded word. ``is_nan`` and ``is_inf`` override the numeric fields."""
    return Payload(
        sign=(1, "sign bit"),
        exponent=(format.exp_bits, "biased; 1 for zero and subnormals"),
        significand=(format.precision, "hidden bit on top; not normalised"),
        is_nan=(1, "NaN"),
        is_inf=(1, "infinity"),
        is_zero=(1, "+0 or -0"),
    )


def unpack(m: Module, word, format: FloatFormat, name: str):
    """Decode ``word`` (``format.bits`` bits); a Signal of ``raw_layout(format)``."""
    raw = Signal(raw_layout(format), name=f"{name}_raw")
    fraction = word[: format.frac_bits]
    biased = word[format.frac_bits : format.bits - 1]
    normal = biased.any()
    special = biased.all()
    m.d.comb += [
        raw.sign.eq(word[format.bits - 1]),
        raw.exponent.eq(Mux(normal, biased, 1)),
        raw.significand[:-1].eq(fraction),
        raw.significand[-1].eq(normal),
        raw.is_nan.eq(special & fraction.any()),
        raw.is_inf.eq(special & ~fraction.any()),
        raw.is_zero.eq(~normal & ~fraction.any()),
    ]
    return raw


def normalise(m: Module, raw, format: FloatFormat, name: str) -> tuple[Value, Value]:
    """``(significand, weight)`` of a word decoded: leading one on top, and its weight, signed.

    A zero stays zero, and its weight is unspecified. The weight of a finite number lies in
    ``format.grid_exponent .. format.largest_grid_exponent + format.frac_bits``.
    """
    zeros, _ = leading_zeros(m, raw.significand, f"{name}_zeros")
    significand = shift_left(m, raw.significand, zeros, f"{name}_normal")
    top = Const(format.grid_exponent - 1 + format.frac_bits, signed(10))
    weight = Signal(signed(10), name=f"{name}_weight")
    m.d.comb += weight.eq(raw.exponent - zeros + top)
    return let(m, f"{name}_significand", significand), weight
