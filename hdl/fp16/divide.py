"""``y = RNE(a / b)`` with a format per operand: FpDivide, FpReciprocal, and both as functions.

IEEE 754-2019 clause 5.4.1 (formatOf-division). Restoring digit recurrence, one bit of quotient
per row; the last remainder is the sticky bit, so the one rounding is exact.
"""

import dataclasses

from amaranth import Cat, Const, Module, Mux, signed

from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.bits import let
from hdl.fp16.in_turn import OperatorInTurn, Recurrence
from hdl.fp16.pipeline import Operator, OperatorConfig, UnaryConfig, compute, operator_configs, word
from hdl.fp16.round import Rounder
from hdl.fp16.unpack import normalise, unpack


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpDivideConfig(OperatorConfig):
    """Elaboration-time parameters of FpDivide."""

    stages: int = 6
    a: FloatFormat = FP16  # of the dividend
    b: FloatFormat = FP16  # of the divisor
    o: FloatFormat = FP16  # of the result

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("a", "b", "o"):
            self._check_format(field)

    @property
    def operands(self) -> dict:
        return {"a": word(self.a, "dividend"), "b": word(self.b, "divisor")}

    @property
    def results(self) -> dict:
        return {"y": word(self.o, "rounded quotient")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpReciprocalConfig(UnaryConfig):
    """Elaboration-time parameters of FpReciprocal."""

    stages: int = 6


def _weights(format: FloatFormat) -> tuple[int, int]:
    """Lowest and highest weight of a leading one."""
    return format.grid_exponent, format.largest_grid_exponent + format.frac_bits


def _digit(m: Module, rest, divisor, name: str) -> tuple:
    """(bit, rest): a bit of the quotient, and what it leaves of ``rest`` < 2 * divisor."""
    width = len(divisor)
    difference = let(m, f"difference_{name}", rest - divisor)
    bit = ~difference[-1]
    return bit, Mux(bit, difference[:width], rest[:width])


def _recurrence(width: int, o: FloatFormat, low: int, high: int) -> list:
    """row 1 | ... | row precision + 2 | count | shift | round.

    Fields:

        rest, divisor          ``width`` bits, leading ones on top, or rest = 0
        weight                 of the leading ones, that of the dividend less that of the divisor,
                               ``low..high``
        sign, is_nan, is_inf
    """
    rows = _rows(o)

    def row(k: int):
        def one_bit(m: Module, f: dict) -> dict:
            bit, left = _digit(m, f["rest"], f["divisor"], str(k))
            last = k == rows - 1
            g = dict(f)
            g["rest"] = let(m, f"rest_{k}", left if last else Cat(Const(0, 1), left))
            g["quotient"] = Cat(bit, f["quotient"]) if k else bit
            g["quotient"] = let(m, f"quotient_{k}", g["quotient"])
            if last:
                del g["divisor"]
            return g

        return one_bit

    return [*(row(k) for k in range(rows)), *_rounding(o, low, high)]


def _rows(o: FloatFormat) -> int:
    """Bits of a quotient of two numbers in 1..2, which lies in 1/2..2.

    With one bit before the point and precision + 1 after it there are precision + 1 from the
    leading one down.
    """
    return o.precision + 2


def _rounding(o: FloatFormat, low: int, high: int) -> list:
    """count | shift | round, after the last row."""
    rows = _rows(o)
    rounder = Rounder(
        format=o, width=rows, lowest=low - rows + 1, highest=high - rows + 1, leading=2
    )

    def count(m: Module, f: dict) -> dict:
        return rounder.count(
            m,
            {
                "significand": f["quotient"],
                "exponent": let(m, "exponent", f["weight"] - (rows - 1)),
                "sticky": let(m, "sticky", f["rest"].any()),
                "sign": f["sign"],
                "zero_sign": f["sign"],
                "is_nan": f["is_nan"],
                "is_inf": f["is_inf"],
            },
        )

    return [count, rounder.shift, rounder.pack]


def _in_turn(first: list, o: FloatFormat, low: int, high: int) -> Recurrence:
    """The recurrence with one row. ``first`` are the phases before it."""

    def begin(m: Module, f: dict) -> dict:
        return {"rest": Cat(f["rest"], Const(0, 1)), "quotient": Const(0, _rows(o))}

    def row(m: Module, f: dict, name: str) -> dict:
        bit, left = _digit(m, f["rest"], f["divisor"], name)
        return {"rest": Cat(Const(0, 1), left), "quotient": Cat(bit, f["quotient"][:-1])}

    return Recurrence(first, begin, row, _rows(o), _rounding(o, low, high))


def divide_phases(a: FloatFormat, b: FloatFormat, o: FloatFormat) -> list:
    """unpack | normalise | rows | count | shift | round; fields a, b -> y."""
    (a_low, a_high), (b_low, b_high) = _weights(a), _weights(b)
    width = max(a.precision, b.precision)
    return [*_divide_first(a, b), *_recurrence(width, o, a_low - b_high, a_high - b_low)]


def _divide_first(a: FloatFormat, b: FloatFormat) -> list:
    """unpack | normalise."""
    width = max(a.precision, b.precision)

    def decode(m: Module, f: dict) -> dict:
        return {"a": unpack(m, f["a"], a, "a"), "b": unpack(m, f["b"], b, "b")}

    def align(m: Module, f: dict) -> dict:
        raw_a, raw_b = f["a"], f["b"]
        dividend, a_weight = normalise(m, raw_a, a, "a")
        divisor, b_weight = normalise(m, raw_b, b, "b")
        # Nothing divided by infinity but 0.
        dividend = dividend & (~raw_b.is_inf).replicate(a.precision)
        invalid = (raw_a.is_zero & raw_b.is_zero) | (raw_a.is_inf & raw_b.is_inf)
        return {
            "rest": let(m, "dividend", Cat(Const(0, width - a.precision), dividend)),
            "divisor": let(m, "divisor", Cat(Const(0, width - b.precision), divisor)),
            "weight": let(m, "weight", a_weight - b_weight),
            "sign": let(m, "quotient_sign", raw_a.sign ^ raw_b.sign),
            "is_nan": let(m, "is_nan", raw_a.is_nan | raw_b.is_nan | invalid),
            "is_inf": let(m, "is_inf", raw_a.is_inf | raw_b.is_zero),
        }

    return [decode, align]


def reciprocal_phases(a: FloatFormat, o: FloatFormat) -> list:
    """unpack | normalise | rows | count | shift | round; fields a -> y."""
    low, high = _weights(a)
    return [*_reciprocal_first(a), *_recurrence(a.precision, o, -high, -low)]


def _reciprocal_first(a: FloatFormat) -> list:
    """unpack | normalise."""
    width = a.precision

    def decode(m: Module, f: dict) -> dict:
        return {"a": unpack(m, f["a"], a, "a")}

    def align(m: Module, f: dict) -> dict:
        raw = f["a"]
        divisor, weight = normalise(m, raw, a, "a")
        return {
            "rest": let(m, "dividend", Cat(Const(0, width - 1), ~raw.is_inf)),
            "divisor": divisor,
            "weight": let(m, "weight", Const(0, signed(2)) - weight),
            "sign": raw.sign,
            "is_nan": raw.is_nan,
            "is_inf": raw.is_zero,
        }

    return [decode, align]


def divide(m: Module, a, b, a_format=FP16, b_format=FP16, o_format=FP16):
    """``RNE(a / b)``, combinational."""
    return compute(m, divide_phases(a_format, b_format, o_format), {"a": a, "b": b})["y"]


def reciprocal(m: Module, a, a_format=FP16, o_format=FP16):
    """``RNE(1 / a)``, combinational."""
    return compute(m, reciprocal_phases(a_format, o_format), {"a": a})["y"]


class FpDivide(Operator):
    """``y = RNE(a / b)``.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal. NaN in, 0 / 0 or inf / inf: canonical
    NaN. x / 0: infinity with the XOR of the signs. Rounding points: one, the result, also where
    the formats differ; the error is at most 0.5 ulp. Registers are spread over unpack |
    normalise | one row per bit of quotient (precision of o + 2) | count | shift | round.
    Golden: ``golden.fp16.functions.divide``.
    """

    name = "fp16_divide"
    golden = "golden.fp16.functions:divide"
    reference = "tests/fp16/test_functions.py: test_divide_equals_softfloat"
    default = FpDivideConfig()
    configs = operator_configs(
        default,
        fp32=FpDivideConfig(a=FP32, b=FP32, o=FP32, stages=14),
        fp16_by_fp32=FpDivideConfig(b=FP32),
    )

    def phases(self) -> list:
        return divide_phases(self.config.a, self.config.b, self.config.o)


class FpReciprocal(Operator):
    """``y = RNE(1 / a)``: FpDivide with the constant 1 for its dividend.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal. Of NaN canonical NaN, of a zero infinity
    with its sign, of an infinity a zero with its sign. In one format the reciprocal of the
    smallest subnormals is infinity. Rounding points: one, the result; the error is at most
    0.5 ulp. Registers are spread as in FpDivide. Golden: ``golden.fp16.functions.reciprocal``.
    """

    name = "fp16_reciprocal"
    golden = "golden.fp16.functions:reciprocal"
    reference = "tests/fp16/test_functions.py: test_reciprocal_of_every_word"
    default = FpReciprocalConfig()
    configs = operator_configs(default, fp32=FpReciprocalConfig(a=FP32, o=FP32, stages=14))

    def phases(self) -> list:
        return reciprocal_phases(self.config.a, self.config.o)


class FpDivideInTurn(OperatorInTurn):
    """FpDivide for one word at a time, with fewer rows (hdl.fp16.in_turn)."""

    def recurrence(self) -> Recurrence:
        a, b, o = self.config.a, self.config.b, self.config.o
        (a_low, a_high), (b_low, b_high) = _weights(a), _weights(b)
        return _in_turn(_divide_first(a, b), o, a_low - b_high, a_high - b_low)


class FpReciprocalInTurn(OperatorInTurn):
    """FpReciprocal for one word at a time, with fewer rows (hdl.fp16.in_turn)."""

    def recurrence(self) -> Recurrence:
        low, high = _weights(self.config.a)
        return _in_turn(_reciprocal_first(self.config.a), self.config.o, -high, -low)
