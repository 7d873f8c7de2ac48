"""Conversions, rounded to nearest even: FpFromInt, FpToInt, FpConvert and their functions.

IEEE 754-2019 clauses 5.4.1 (convertFromInt, convertToInteger), 5.4.2 (convertFormat).
"""

import dataclasses

from amaranth import Cat, Const, Module, Mux, Signal, signed, unsigned

from golden.config import bounded, flag
from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.bits import let
from hdl.fp16.from_fixed import from_fixed_phases
from hdl.fp16.pipeline import Operator, OperatorConfig, compute, operator_configs, word
from hdl.fp16.round import Rounder
from hdl.fp16.shift import shift_right_sticky
from hdl.fp16.unpack import unpack


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpConvertConfig(OperatorConfig):
    """Elaboration-time parameters of FpConvert."""

    i: FloatFormat = FP32  # of the operand
    o: FloatFormat = FP16  # of the result

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_format("i")
        self._check_format("o")

    @property
    def operands(self) -> dict:
        return {"a": word(self.i, "operand")}

    @property
    def results(self) -> dict:
        return {"y": word(self.o, "rounded value")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpFromIntConfig(OperatorConfig):
    """Elaboration-time parameters of FpFromInt."""

    width: int = bounded(32, 2, 32, "bits of the integer")
    signed: bool = flag(True, "whether the integer has a sign, in two's complement")
    o: FloatFormat = FP16  # of the result

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_format("o")

    @property
    def shape(self):
        return signed(self.width) if self.signed else unsigned(self.width)

    @property
    def operands(self) -> dict:
        return {"value": (self.shape, "integer operand")}

    @property
    def results(self) -> dict:
        return {"y": word(self.o, "rounded value")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpToIntConfig(OperatorConfig):
    """Elaboration-time parameters of FpToInt."""

    i: FloatFormat = FP16  # of the operand
    width: int = bounded(32, 2, 32, "bits of the integer")
    signed: bool = flag(True, "whether the integer has a sign, in two's complement")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_format("i")

    @property
    def shape(self):
        return signed(self.width) if self.signed else unsigned(self.width)

    @property
    def operands(self) -> dict:
        return {"a": word(self.i, "operand")}

    @property
    def results(self) -> dict:
        return {
            "y": (self.shape, "rounded integer"),
            "saturated": (1, "the integer nearest to a is out of range, y is the nearest in range"),
            "nan": (1, "a is NaN"),
        }


def convert_phases(i: FloatFormat, o: FloatFormat) -> list:
    """unpack | count | shift | round; fields a -> y."""
    rounder = Rounder(
        format=o, width=i.precision, lowest=i.grid_exponent, highest=i.largest_grid_exponent
    )

    def decode(m: Module, f: dict) -> dict:
        raw = unpack(m, f["a"], i, "a")
        weight = let(m, "weight", raw.exponent + Const(i.grid_exponent - 1, signed(12)))
        return {
            "significand": raw.significand,
            "exponent": weight,
            "sticky": Const(0, 1),
            "sign": raw.sign,
            "zero_sign": raw.sign,
            "is_nan": raw.is_nan,
            "is_inf": raw.is_inf,
        }

    return [decode, *rounder.phases]


def convert(m: Module, a, i_format: FloatFormat, o_format: FloatFormat):
    """``RNE(a)`` in o_format, combinational."""
    return compute(m, convert_phases(i_format, o_format), {"a": a})["y"]


def to_int_phases(i: FloatFormat, width: int, is_signed: bool) -> list:
    """unpack | align | round and clamp; fields a -> y, saturated, nan."""
    # Leading bits of this weight and less can be in range; anything above surely is not.
    top = min(i.bias, width)
    below = max(i.precision - 1 - top, 0) + 1  # bits after the binary point, one at least

    def decode(m: Module, f: dict) -> dict:
        return {"raw": unpack(m, f["a"], i, "a")}

    def align(m: Module, f: dict) -> dict:
        raw = f["raw"]
        whole = top + 1 + below
        placed = Cat(Const(0, whole - i.precision), raw.significand)
        distance = let(m, "distance", Const(top + i.bias, signed(12)) - raw.exponent)
        far = let(m, "far", distance > top + below)  # below the half step whatever the bits
        amount = let(m, "amount", distance[: (top + below).bit_length()])
        shifted, lost = shift_right_sticky(m, placed, amount, "align")
        return {
            "integer": let(m, "integer", Mux(far, 0, shifted[below:])),
            "half": let(m, "half", ~far & shifted[below - 1]),
            "below": let(m, "below", far | lost | shifted[: below - 1].any()),
            "sign": raw.sign,
            "huge": let(m, "huge", (distance < 0) | raw.is_inf),
            "nan": let(m, "is_nan", raw.is_nan),
        }

    def clamp(m: Module, f: dict) -> dict:
        up = f["half"] & (f["below"] | f["integer"][0])
        rounded = let(m, "rounded", f["integer"] + up)
        high = (1 << width - 1) - 1 if is_signed else (1 << width) - 1
        low = 1 << width - 1 if is_signed else 0  # magnitude of the lowest
        limit = let(m, "limit", Mux(f["sign"], Const(low, width), Const(high, width)))
        over = let(m, "over", f["huge"] | (rounded > limit))
        magnitude = let(m, "magnitude", Mux(over, limit, rounded)[:width])
        y = Signal(signed(width) if is_signed else unsigned(width))
        m.d.comb += y.eq(Mux(f["nan"], 0, Mux(f["sign"], -magnitude, magnitude)))
        return {"y": y, "saturated": let(m, "saturated", over & ~f["nan"]), "nan": f["nan"]}

    return [decode, align, clamp]


def to_int(m: Module, a, width: int, is_signed: bool = True, i_format: FloatFormat = FP16):
    """``(y, saturated, nan)`` of FpToInt, combinational."""
    result = compute(m, to_int_phases(i_format, width, is_signed), {"a": a})
    return result["y"], result["saturated"], result["nan"]


class FpConvert(Operator):
    """``y = RNE(a)`` from the format config.i to config.o.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal; every NaN becomes the canonical NaN of
    config.o, too large becomes infinity. Rounding points: one, the result; none where config.o
    holds all values of config.i. Registers are spread over unpack | count | shift | round.
    Golden: ``golden.fp16.ops.convert``.
    """

    def phases(self) -> list:
        return convert_phases(self.config.i, self.config.o)


class FpFromInt(Operator):
    """``y = RNE(value)`` of an integer.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Zero gives +0, too large gives infinity. Rounding points: one,
    the result. Registers are spread over magnitude | count | shift | round.
    Golden: ``golden.fp16.ops.from_int``.
    """

    name = "fp16_from_int"
    golden = "golden.fp16.ops:from_int"
    reference = "tests/fp16/test_golden.py: test_from_int_equals_softfloat"
    default = FpFromIntConfig(stages=1)
    configs = operator_configs(default, int4=FpFromIntConfig(stages=1, width=4))

    def phases(self) -> list:
        return from_fixed_phases(self.config.shape, (0,), self.config.o)


class FpToInt(Operator):
    """``y = clamp(RNE(a))``: to the nearest integer, ties to even, then into the range.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal. NaN gives 0 and nan = 1. A value out of
    range after rounding, infinities too, gives the nearest end of the range and saturated = 1.
    Rounding points: one, before the clamp. Registers are spread over
    unpack | align | round and clamp. Golden: ``golden.fp16.ops.to_int``.
    """

    name = "fp16_to_int"
    golden = "golden.fp16.ops:to_int"
    reference = "tests/fp16/test_golden.py: test_to_int_equals_rounded_fractions"
    default = FpToIntConfig(stages=1)
    configs = operator_configs(default, int8=FpToIntConfig(stages=1, width=8))

    def phases(self) -> list:
        return to_int_phases(self.config.i, self.config.width, self.config.signed)
