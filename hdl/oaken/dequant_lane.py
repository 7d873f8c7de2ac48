"""Arithmetic that both dequantizers share: one element, and words as integers on a grid."""

import dataclasses

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value

from golden.config import choice, flag
from golden.fp16.format import FP16, FP32
from golden.oaken.format import MAX_FINITE
from hdl.bits import let
from hdl.fp16.pipeline import Operator, OperatorConfig
from hdl.fp16.round import Rounder
from hdl.fp16.shift import shift_left
from hdl.fp16.unpack import unpack
from hdl.kinds import NUMBER

GRID = FP16.grid_exponent  # -24: every finite word and every base is a multiple of 2**GRID
BASE_BITS = 43  # of a base on the grid, two's complement: magnitudes up to 2**18
_EXPONENT_TOP = FP32.bias + 17  # of the largest base, |base| < 2**18
_TOTAL_BITS = 48  # base + 31 * (a step of any exponent field)
_FINITE_BITS = 40  # of a magnitude below 2**16


def scaled(m: Module, significand, exponent, name: str) -> Value:
    """``significand * 2**(exponent - 1)``: FP16 words decoded, as integers on the grid."""
    places = (1 << len(exponent)) - 2
    return shift_left(m, Cat(significand, Const(0, places)), (exponent - 1)[: len(exponent)], name)


def fixed16(m: Module, word, name: str) -> tuple[Value, Value]:
    """``(sign, magnitude)`` of an FP16 word on the grid, 41 bits; NaN and infinity as numbers."""
    raw = unpack(m, word, FP16, name)
    return raw.sign, scaled(m, raw.significand, raw.exponent, f"{name}_fixed")


def signed_value(m: Module, sign, magnitude, name: str) -> Value:
    value = Signal(signed(len(magnitude) + 1), name=name)
    m.d.comb += value.eq(Mux(sign, -magnitude, magnitude))
    return value


def fixed32(m: Module, word, name: str) -> Value:
    """An FP32 word that is a multiple of 2**GRID below 2**18, as a signed integer on the grid."""
    biased = word[FP32.frac_bits : FP32.bits - 1]
    magnitude = Cat(Const(0, 18), word[: FP32.frac_bits], biased.any())
    right = let(m, f"{name}_distance", (_EXPONENT_TOP - biased)[:6])
    magnitude = let(m, f"{name}_magnitude", magnitude >> right)
    return signed_value(m, word[-1], magnitude, f"{name}_value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenDequantLaneConfig(OperatorConfig):
    """Codes of one lane."""

    code_bits: int = choice(5, (4, 5), "bits of q; 4 of the middle group")
    subtracts: bool = flag(True, "base - q * step can be requested")

    @property
    def operands(self) -> dict:
        sign = {"subtract": (1, "base - q * step")} if self.subtracts else {}
        return {
            "base": (signed(BASE_BITS), "integer in units of 2**-24"),
            "step": (FP16.bits, "FP16 word, its sign is ignored", FP16),
            "q": (self.code_bits, "unsigned code", NUMBER),
        } | sign

    @property
    def results(self) -> dict:
        return {"x": (FP16.bits, "FP16 word", FP16)}


class OakenDequantLane(Operator):
    """``x = sat(rne16(base +- q * step))``: the exact sum, rounded once, at most 65504.

    base: integer on the grid 2**-24; step: FP16 word, its sign is ignored; -0 never comes.
    Registers are spread over multiply | shift | add | magnitude | count | shift | round.
    """

    def phases(self) -> list:
        config = self.config
        rounder = Rounder(format=FP16, width=_FINITE_BITS, lowest=GRID, highest=GRID)

        def multiply(m: Module, f: dict) -> dict:
            raw = unpack(m, f["step"], FP16, "step")
            return {
                "base": f["base"],
                "product": let(m, "product", f["q"] * raw.significand),
                "exponent": let(m, "exponent", raw.exponent),
                "subtract": f["subtract"] if config.subtracts else Const(0, 1),
            }

        def shift(m: Module, f: dict) -> dict:
            distance = scaled(m, f["product"], f["exponent"], "distance")
            return {"base": f["base"], "distance": distance, "subtract": f["subtract"]}

        def total(m: Module, f: dict) -> dict:
            value = Signal(signed(_TOTAL_BITS), name="total")
            distance = f["distance"]
            inverted = distance ^ f["subtract"].replicate(len(distance))
            high = f["subtract"].replicate(_TOTAL_BITS - len(distance))
            # base - d = base + ~d + 1
            m.d.comb += value.eq(f["base"] + Cat(inverted, high).as_signed() + f["subtract"])
            return {"value": value}

        def magnitude(m: Module, f: dict) -> dict:
            value = f["value"]
            absolute = Signal(_TOTAL_BITS, name="absolute")
            m.d.comb += absolute.eq(Mux(value[-1], -value, value))
            return {
                "significand": absolute[:_FINITE_BITS],
                "exponent": Const(GRID, signed(12)),
                "sticky": Const(0, 1),
                "sign": value[-1],
                "zero_sign": Const(0, 1),
                "is_nan": Const(0, 1),
                "is_inf": let(m, "beyond", absolute[_FINITE_BITS:].any()),
            }

        def saturate(m: Module, f: dict) -> dict:
            word = rounder.pack(m, f)["y"]
            infinite = word[FP16.frac_bits : FP16.bits - 1].all()
            largest = Cat(Const(MAX_FINITE, FP16.bits - 1), word[-1])
            return {"x": let(m, "saturated", Mux(infinite, largest, word))}

        return [multiply, shift, total, magnitude, rounder.count, rounder.shift, saturate]
