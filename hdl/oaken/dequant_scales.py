"""Scale words of a token to the parameters of its dequantizers."""

import dataclasses

from amaranth import Module, Mux, Signal, signed

from golden.fp16.format import FP32
from golden.oaken.format import DENSE_BITS, ScaleWord, Threshold
from hdl.bits import let
from hdl.fp16.from_fixed import from_fixed_phases
from hdl.fp16.pipeline import Operator, OperatorConfig
from hdl.kinds import NUMBER
from hdl.oaken.dequant_lane import BASE_BITS, GRID, fixed16, signed_value
from hdl.oaken.layouts import SCALE, THRESHOLDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenDequantScalesConfig(OperatorConfig):
    """Depth and sideband."""

    stages: int = 4

    @property
    def operands(self) -> dict:
        return {
            "scale": SCALE,
            "thresholds": THRESHOLDS,
        }

    @property
    def results(self) -> dict:
        return {
            "base_low": (FP32.bits, "base of codes below zero_code, FP32", FP32),
            "base_high": (FP32.bits, "base of codes from zero_code on, FP32", FP32),
            "zero_code": (DENSE_BITS, "first code of the upper side, 1..15", NUMBER),
        }


class OakenDequantScales(Operator):
    """Parameters of the middle group, each from the stored words alone::

        base_low = rne32(INNER_LOW + MIDDLE_MIN);  base_high = rne32(INNER_HIGH + MIDDLE_MIN)
        zero_code = min(floor(-MIDDLE_MIN / MIDDLE_STEP) + 1, 15);  1 for a step of 0

    The quotient is exact: four rows of restoring division. A positive MIDDLE_MIN counts as 0
    there; the sign of MIDDLE_STEP is ignored.

    Throughput 1 token per cycle, latency ``config.stages`` cycles. Registers are spread over expand
    | add | magnitude and a row | count and a row | shift and a row | round and a row | quotient.
    Golden: golden.oaken.quantize.middle_bases, zero_point.
    """

    def phases(self) -> list:
        to_float = from_fixed_phases(signed(BASE_BITS), (GRID,), FP32)
        rows = DENSE_BITS

        def expand(m: Module, f: dict) -> dict:
            t, s = f["thresholds"], f["scale"]
            sign, lo = fixed16(m, s[ScaleWord.MIDDLE_MIN], "minimum")
            _, step = fixed16(m, s[ScaleWord.MIDDLE_STEP], "step")
            low = fixed16(m, t[Threshold.INNER_LOW], "low")
            high = fixed16(m, t[Threshold.INNER_HIGH], "high")
            return {
                "low": signed_value(m, *low, "low_value"),
                "high": signed_value(m, *high, "high_value"),
                "minimum": signed_value(m, sign, lo, "minimum_value"),
                "step": step,
                "rest": let(m, "lo", Mux(sign, lo, 0)),
            }

        def total(m: Module, f: dict) -> dict:
            g = {"step": f["step"], "rest": f["rest"]}
            for side in ("low", "high"):
                value = Signal(signed(BASE_BITS), name=f"{side}_base")
                m.d.comb += value.eq(f[side] + f["minimum"])
                g[f"{side}_value"] = value
            return g

        def both(k: int):
            """Phase k of the conversion of both bases, and row k of the division."""

            def phase(m: Module, f: dict) -> dict:
                g = {}
                for side in ("low", "high"):
                    part = {
                        name.removeprefix(f"{side}_"): value
                        for name, value in f.items()
                        if name.startswith(f"{side}_")
                    }
                    g |= {f"{side}_{name}": v for name, v in to_float[k](m, part).items()}
                step, rest = f["step"], f["rest"]
                if k == 0:
                    g["is_zero"] = let(m, "is_zero", ~step.any())
                    g["is_large"] = let(m, "is_large", rest >= step << rows)
                else:
                    g |= {name: f[name] for name in ("is_zero", "is_large")}
                difference = let(m, f"difference_{k}", rest - (step << rows - 1 - k))
                bit = ~difference[-1]
                g["quotient"] = (bit << rows - 1 - k) | f["quotient"] if k else bit << rows - 1
                g["quotient"] = let(m, f"quotient_{k}", g["quotient"][:rows])
                g["rest"] = let(m, f"rest_{k}", Mux(bit, difference, rest)[: len(rest)])
                g["step"] = step
                return g

            return phase

        def point(m: Module, f: dict) -> dict:
            quotient = f["quotient"]
            code = Signal(rows, name="zero_code")
            with m.If(f["is_zero"]):
                m.d.comb += code.eq(1)
            with m.Elif(f["is_large"] | quotient.all()):
                m.d.comb += code.eq((1 << rows) - 1)
            with m.Else():
                m.d.comb += code.eq(quotient + 1)
            return {"base_low": f["low_y"], "base_high": f["high_y"], "zero_code": code}

        return [expand, total, *(both(k) for k in range(rows)), point]
