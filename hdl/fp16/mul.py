"""``y = RNE(a * b)`` with a format per operand: FpMul, and ``mul`` for use inside other blocks.

IEEE 754-2019 clause 5.4.1 (formatOf-multiplication). One rounding, at the end.
"""

import dataclasses

from amaranth import Const, Module, signed

from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.bits import let
from hdl.fp16.pipeline import Operator, OperatorConfig, compute, operator_configs, word
from hdl.fp16.round import Rounder
from hdl.fp16.unpack import unpack


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpMulConfig(OperatorConfig):
    """Elaboration-time parameters of FpMul."""

    a: FloatFormat = FP16
    b: FloatFormat = FP16
    o: FloatFormat = FP16  # of the result

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("a", "b", "o"):
            self._check_format(field)

    @property
    def operands(self) -> dict:
        return {"a": word(self.a, "factor"), "b": word(self.b, "factor")}

    @property
    def results(self) -> dict:
        return {"y": word(self.o, "rounded product")}


def mul_phases(a: FloatFormat, b: FloatFormat, o: FloatFormat) -> list:
    """unpack | multiply | count | shift | round; fields a, b -> y."""
    rounder = Rounder(
        format=o,
        width=a.precision + b.precision,
        lowest=a.grid_exponent + b.grid_exponent,
        highest=a.largest_grid_exponent + b.largest_grid_exponent,
    )

    def decode(m: Module, f: dict) -> dict:
        return {"a": unpack(m, f["a"], a, "a"), "b": unpack(m, f["b"], b, "b")}

    def multiply(m: Module, f: dict) -> dict:
        raw_a, raw_b = f["a"], f["b"]
        offset = a.grid_exponent + b.grid_exponent - 2
        sign = let(m, "sign", raw_a.sign ^ raw_b.sign)
        infinite = raw_a.is_inf | raw_b.is_inf
        return {
            "significand": let(m, "product", raw_a.significand * raw_b.significand),
            "exponent": let(
                m, "weight", raw_a.exponent + raw_b.exponent + Const(offset, signed(16))
            ),
            "sticky": Const(0, 1),
            "sign": sign,
            "zero_sign": sign,
            "is_nan": let(
                m,
                "is_nan",
                raw_a.is_nan | raw_b.is_nan | (infinite & (raw_a.is_zero | raw_b.is_zero)),
            ),
            "is_inf": let(m, "is_inf", infinite),
        }

    return [decode, multiply, *rounder.phases]


def mul(m: Module, a, b, a_format=FP16, b_format=FP16, o_format=FP16):
    """``RNE(a * b)``, combinational."""
    return compute(m, mul_phases(a_format, b_format, o_format), {"a": a, "b": b})["y"]


class FpMul(Operator):
    """``y = RNE(a * b)``.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal. NaN in, or infinity times zero:
    canonical NaN. Rounding points: one, the result, also where the formats differ. Registers
    are spread over unpack | multiply | count | shift | round. Golden: ``golden.fp16.ops.mul``.
    """

    name = "fp16_mul"
    golden = "golden.fp16.ops:mul"
    reference = "tests/fp16/test_golden.py: test_mul_equals_softfloat"
    default = FpMulConfig()
    configs = operator_configs(default, fp32_by_fp16=FpMulConfig(a=FP32, b=FP16, o=FP16))

    def phases(self) -> list:
        return mul_phases(self.config.a, self.config.b, self.config.o)
