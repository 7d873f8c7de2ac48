"""Scales and codes of the middle group."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data

from golden.fp16.format import FP16
from golden.oaken.format import DENSE_BITS, Group
from hdl.bits import let
from hdl.block import Tier
from hdl.fp16.pipeline import Operator
from hdl.fp16.round import Rounder
from hdl.kinds import NUMBER
from hdl.oaken.arithmetic import (
    MAGNITUDE_BITS,
    STATE,
    align,
    finish,
    larger_smaller,
    quantized_steps,
    rounded,
    rounded_steps,
    step_digits,
    total,
    unpacked,
)
from hdl.oaken.group_quantizer import (
    LONGEST_SCALE_STAGES,
    GroupQuantizer,
    GroupQuantizerConfig,
    LanesConfig,
    ScalesConfig,
    lane_fields,
    minimum_word,
)
from hdl.oaken.layouts import FP16_BITS
from hdl.ports import Payload

_STEPS = 1 << DENSE_BITS  # of the range
_MINIMUM_ROUNDER = Rounder(
    format=FP16,
    width=FP16.precision + DENSE_BITS + 1,
    lowest=FP16.grid_exponent - 1,
    highest=FP16.largest_grid_exponent - 1,
)
_PARAMETERS = Payload(
    low=(MAGNITUDE_BITS, "least magnitude", NUMBER),
    step=(MAGNITUDE_BITS, "step of the range", NUMBER),
    zero_point=(DENSE_BITS, "code of zero", NUMBER),
)
_SCALE = Payload(
    middle_min=(FP16_BITS, "minimum of the middle group, FP16", FP16),
    middle_step=(FP16_BITS, "step of the middle group, FP16", FP16),
)


class OakenInlierQuantizerConfig(GroupQuantizerConfig):
    """Shape of OakenInlierQuantizer."""

    @property
    def scale_layout(self) -> data.StructLayout:
        return _SCALE

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            code=(
                data.ArrayLayout(DENSE_BITS, self.lanes),
                "four bits per element, 0 where the group is another",
                NUMBER,
            ),
            last=(1, "final beat of the vector"),
        )


class _Scales(Operator):
    """Range; its rounding; range / 16; step; lo / step in three phases; MIN in two."""

    def phases(self) -> list:
        def add_sides(m: Module, f: dict) -> dict:
            hi, lo = f["maxima"][:MAGNITUDE_BITS], f["maxima"][MAGNITUDE_BITS:]
            larger, smaller = larger_smaller(m, hi, lo, "sides")
            value, exponent = total(m, larger, smaller, 0, "range")
            return {"lo": lo, "total": value, "exponent": exponent}

        def round_range(m: Module, f: dict) -> dict:
            return {"lo": f["lo"], "range": rounded(m, f["total"], f["exponent"], "range")}

        def divide_range(m: Module, f: dict) -> dict:
            return {"lo": f["lo"], **quantized_steps(m, {"step": (f["range"], _STEPS)}, "middle")}

        def round_step(m: Module, f: dict) -> dict:
            return {"lo": f["lo"], **rounded_steps(m, f, ("step",), "middle")}

        def align_lo(m: Module, f: dict) -> dict:
            divisor, exponent = unpacked(m, f["step"], "step")
            state = align(m, f["lo"], divisor, exponent, DENSE_BITS, "zero")
            return f | state | {"divisor": divisor}

        def digits(m: Module, f: dict) -> dict:
            state = {key: f[key] for key in STATE}
            return f | step_digits(m, state, f["divisor"], 3, "zero")

        def last_digits(m: Module, f: dict) -> dict:
            state = {key: f[key] for key in STATE}
            state = step_digits(m, state, f["divisor"], 2, "last")
            quotient = finish(m, state, DENSE_BITS, "zero")
            return {
                "step": f["step"],
                "zero_point": let(m, "clamped", Mux(quotient == 0, 1, quotient)),
            }

        def multiply(m: Module, f: dict) -> dict:
            significand, exponent = unpacked(m, f["step"], "factor")
            odd = Cat(Const(1, 1), (f["zero_point"] - 1)[:DENSE_BITS])
            offset = Const(FP16.grid_exponent - 2, signed(8))
            operand = {
                "significand": let(m, "product", significand * odd),
                "exponent": let(m, "product_weight", exponent + offset),
                **dict.fromkeys(("sticky", "sign", "zero_sign", "is_nan", "is_inf"), Const(0, 1)),
            }
            counted = _MINIMUM_ROUNDER.count(m, operand)
            # What floor(-MIN / step) + 1 gives: half a step is far from a multiple, but for the
            # smallest step, whose odd halves go to even multiples (no code here depends on it: its
            # elements are whole steps from zero).
            smallest = let(m, "smallest", f["step"] == 1)
            zero_point = let(m, "zero_point", f["zero_point"] | smallest)
            return counted | {"step": f["step"], "zero_point": zero_point}

        def round_minimum(m: Module, f: dict) -> dict:
            rounder = _MINIMUM_ROUNDER
            low = rounder.pack(m, rounder.shift(m, f))["y"][:MAGNITUDE_BITS]
            return {
                "scale": Cat(minimum_word(m, low, "minimum"), f["step"], Const(0, 1)),
                "parameters": Cat(low, f["step"], f["zero_point"]),
            }

        return [
            add_sides, round_range, divide_range, round_step, align_lo, digits, last_digits,
            multiply, round_minimum,
        ]  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LanesConfig(LanesConfig):
    @property
    def results(self) -> dict:
        return {"code": self.lanes * DENSE_BITS}


class _Lanes(Operator):
    """y - MIN; its rounding; the quotient in three phases, the last of which takes the side."""

    def phases(self) -> list:
        config = self.config
        lanes = range(config.lanes)

        def shift(m: Module, f: dict) -> dict:
            parameters = data.View(_PARAMETERS, f["parameters"])
            out = {"step": parameters.step, "zero_point": parameters.zero_point}
            for n in lanes:
                magnitude, sign, group = lane_fields(config, f, n)
                larger, smaller = larger_smaller(m, magnitude, parameters.low, f"lane_{n}")
                out[f"total_{n}"], out[f"exponent_{n}"] = total(
                    m, larger, smaller, sign, f"lane_{n}"
                )
                out[f"lower_{n}"] = sign
                out[f"below_{n}"] = let(m, f"below_{n}", sign & ~(parameters.low > magnitude))
                out[f"middle_{n}"] = let(m, f"middle_{n}", group == Group.MIDDLE)
            return out

        def keep(f: dict, *names: str) -> dict:
            return {name: f[name] for name in names} | {
                f"{name}_{n}": f[f"{name}_{n}"] for name in ("lower", "middle") for n in lanes
            }

        def round_distance(m: Module, f: dict) -> dict:
            out = keep(f, "step", "zero_point")
            for n in lanes:
                distance = rounded(m, f[f"total_{n}"], f[f"exponent_{n}"], f"lane_{n}")
                out[f"d_{n}"] = let(m, f"d_{n}", Mux(f[f"below_{n}"], 0, distance))
            return out

        def align_lanes(m: Module, f: dict) -> dict:
            divisor, exponent = unpacked(m, f["step"], "step")
            out = keep(f, "zero_point") | {"divisor": divisor}
            for n in lanes:
                state = align(m, f[f"d_{n}"], divisor, exponent, DENSE_BITS, f"lane_{n}")
                out |= {f"{key}_{n}": value for key, value in state.items()}
            return out

        def state(f: dict, n: int) -> dict:
            return {key: f[f"{key}_{n}"] for key in STATE}

        def digits(m: Module, f: dict) -> dict:
            out = keep(f, "zero_point", "divisor")
            for n in lanes:
                after = step_digits(m, state(f, n), f["divisor"], 3, f"lane_{n}")
                out |= {f"{key}_{n}": value for key, value in after.items()}
            return out

        def last_digits(m: Module, f: dict) -> dict:
            codes = []
            zero_point = f["zero_point"]
            for n in lanes:
                after = step_digits(m, state(f, n), f["divisor"], 2, f"lane_{n}")
                q = finish(m, after, DENSE_BITS, f"lane_{n}")
                code = Signal(DENSE_BITS, name=f"sided_{n}")
                with m.If(~f[f"middle_{n}"]):
                    m.d.comb += code.eq(0)
                with m.Elif(f[f"lower_{n}"]):
                    m.d.comb += code.eq(Mux(q < zero_point, q, zero_point - 1))
                with m.Else():
                    m.d.comb += code.eq(Mux(q < zero_point, zero_point, q))
                codes.append(code)
            return {"code": Cat(*codes)}

        return [shift, round_distance, align_lanes, digits, last_digits]


class OakenInlierQuantizer(GroupQuantizer):
    """Middle group: ``q = min(rne(rne11(y - MIN) / step), 15)``, kept on its side of zero.

    hi, lo: largest y > 0 and -y > 0 of the group on ``scan``, else 0; step = max(rne16(rne11(hi +
    lo) / 16), 2**-24), 0 if hi = lo = 0; MIN = -rne16((z0 - 1/2) * step), z0 = min(max(rne(lo /
    step), 1), 15); zc = min(floor(-MIN / step) + 1, 15). Code: max(q, zc) on the upper side
    (y > 0), min(q, zc - 1) on the lower, q = 0 for y < MIN. The quotients are exact: restoring
    division, whose remainder rounds. ``scale`` gives the words MIN (+0 for 0) and step once per
    vector that is not dropped; ``drop`` counts with ``last`` of ``scan``, and a vector dropped
    must not come on ``i``. ``i`` waits for the vector's scales, and they wait until ``scale``
    has room: take ``scale`` without waiting for ``o``.
    Throughput 1 beat per cycle on scan and i each, for vectors of any length.
    Source: Oaken, sections 4.3 and 5.2. Golden: golden.oaken.quantize.codes and scales.

    Latency is 5 cycles from ``i`` to ``o``. From a vector's last beat on ``scan`` to its first on
    ``i`` it is ceil(log2(lanes) / 2) + 11 cycles. It is one cycle more if ``vectors`` is above 8,
    because the queue is then a RAM. Up to ``vectors`` scanned vectors wait for ``i``. Then ``scan``
    stalls.

    rne11 rounds to 11 significant bits and never overflows: 131008, the largest sum, has 11 bits.
    Decision 0066 says why quotients are exact. A code of 4 bits takes 5 digits of restoring
    division, 12 bits wide, because d / step is below 64. The decoder derives zc from the two words
    (decision 0060). zc needs no second division. Half a step is far from a multiple, so zc = z0.
    Only where the step is 2**-24 is MIN a whole, even number of steps, and then zc = z0 | 1.
    """

    tier = Tier.PART
    golden = "golden.oaken.quantize:codes"
    default = OakenInlierQuantizerConfig()
    configs: ClassVar = {"small": OakenInlierQuantizerConfig(lanes=8)}

    GROUPS = (int(Group.MIDDLE),)
    SCALE_STAGES = LONGEST_SCALE_STAGES

    def __init__(self, config: OakenInlierQuantizerConfig):
        super().__init__(config, config.scale_layout, config.o_layout)

    def scales_pipeline(self) -> Operator:
        return _Scales(
            ScalesConfig(
                maxima=2,
                scale_bits=_SCALE.size,
                parameter_bits=_PARAMETERS.size,
                stages=self.SCALE_STAGES,
            )
        )

    def lanes_pipeline(self, lanes: int) -> Operator:
        return _Lanes(
            _LanesConfig(
                lanes=lanes,
                parameter_bits=_PARAMETERS.size,
                stages=self.timing.latency,
                tag_bits=1,
            )
        )
