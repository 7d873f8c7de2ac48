"""``y = RNE(sqrt(a))``: FpSqrt, and ``sqrt`` for use inside other blocks.

IEEE 754-2019 clause 5.4.1 (formatOf-squareRoot). Restoring digit recurrence, one bit of the root
per row; the last remainder is the sticky bit, so the one rounding is exact.
"""

import dataclasses

from amaranth import Cat, Const, Module, Mux

from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.bits import let
from hdl.fp16.pipeline import Operator, UnaryConfig, compute, operator_configs
from hdl.fp16.round import Rounder
from hdl.fp16.unpack import normalise, unpack


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpSqrtConfig(UnaryConfig):
    """Elaboration-time parameters of FpSqrt."""

    stages: int = 5


def sqrt_phases(a: FloatFormat, o: FloatFormat) -> list:
    """unpack | normalise | rows | count | shift | round; fields a -> y."""
    rows = o.precision + 1  # the leading bit of the root is 1, the last is the half step
    rounder = Rounder(
        format=o,
        width=rows,
        lowest=a.grid_exponent // 2 - rows + 1,
        highest=(a.largest_grid_exponent + a.frac_bits) // 2 - rows + 1,
        leading=1,
    )

    def decode(m: Module, f: dict) -> dict:
        return {"a": unpack(m, f["a"], a, "a")}

    def align(m: Module, f: dict) -> dict:
        raw = f["a"]
        significand, weight = normalise(m, raw, a, "a")
        # Pairs of bits from the top; the lower bit of the first pair has an even weight.
        odd = let(m, "odd", weight[0])
        radicand = Mux(odd, Cat(Const(0, 1), significand), significand)
        padding = max(2 * rows - (a.precision + 1), 0)
        return {
            "radicand": let(m, "radicand", Cat(Const(0, padding), radicand)),
            "weight": let(m, "half_weight", weight >> 1),
            "sign": raw.sign,
            "is_nan": let(m, "is_nan", raw.is_nan | (raw.sign & ~raw.is_zero)),
            "is_inf": raw.is_inf,
        }

    def row(k: int):
        def one_bit(m: Module, f: dict) -> dict:
            radicand = f["radicand"]
            pair, g = radicand[-2:], dict(f)
            if k:
                # rest <= 2 * root < 2**(k + 1)
                rest = Cat(pair, f["rest"])
                trial = Cat(Const(1, 2), f["root"])
            else:
                rest, trial = pair, Const(1, 1)
            difference = let(m, f"difference_{k}", rest - trial)
            bit = ~difference[-1]
            g["rest"] = let(m, f"rest_{k}", Mux(bit, difference[: k + 2], rest[: k + 2]))
            g["root"] = let(m, f"root_{k}", Cat(bit, f["root"]) if k else bit)
            if len(radicand) > 2:
                g["radicand"] = radicand[:-2]
            else:
                del g["radicand"]
            return g

        return one_bit

    def count(m: Module, f: dict) -> dict:
        left = f["rest"].any()
        if "radicand" in f:
            left = left | f["radicand"].any()
        return rounder.count(
            m,
            {
                "significand": f["root"],
                "exponent": let(m, "exponent", f["weight"] - (rows - 1)),
                "sticky": let(m, "sticky", left),
                "sign": f["sign"],
                "zero_sign": f["sign"],
                "is_nan": f["is_nan"],
                "is_inf": f["is_inf"],
            },
        )

    return [decode, align, *(row(k) for k in range(rows)), count, rounder.shift, rounder.pack]


def sqrt(m: Module, a, a_format=FP16, o_format=FP16):
    """``RNE(sqrt(a))``, combinational."""
    return compute(m, sqrt_phases(a_format, o_format), {"a": a})["y"]


class FpSqrt(Operator):
    """``y = RNE(sqrt(a))``.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal. NaN in, or a negative number: canonical
    NaN. sqrt(-0) is -0. Rounding points: one, the result, also where the formats differ; the
    error is at most 0.5 ulp. Registers are spread over unpack | normalise | one row per bit of
    the root (precision of o + 1) | count | shift | round.
    Golden: ``golden.fp16.functions.sqrt``.
    """

    name = "fp16_sqrt"
    golden = "golden.fp16.functions:sqrt"
    reference = "tests/fp16/test_functions.py: test_sqrt_of_every_word_equals_softfloat"
    default = FpSqrtConfig()
    configs = operator_configs(default, fp32=FpSqrtConfig(a=FP32, o=FP32, stages=12))

    def phases(self) -> list:
        return sqrt_phases(self.config.a, self.config.o)
