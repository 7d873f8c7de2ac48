"""``value = (-1)**sign * significand * 2**(exponent + format.grid_exponent - 1)``: words decoded.

Every operator starts here: subnormals need no case of their own afterwards, because ``exponent``
is never 0 and the hidden bit is explicit. Combinational.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import data

from golden.fp16.format import FloatFormat

__all__ = ["raw_layout", "unpack"]


def raw_layout(format: FloatFormat) -> data.StructLayout:
    """The decoded word. ``is_nan`` and ``is_inf`` override the numeric fields."""
    return data.StructLayout(
        {
            "sign": 1,
            "exponent": format.exp_bits,  # biased; 1 for zero and subnormals
            "significand": format.precision,  # hidden bit on top; not normalised
            "is_nan": 1,
            "is_inf": 1,
            "is_zero": 1,
        }
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
