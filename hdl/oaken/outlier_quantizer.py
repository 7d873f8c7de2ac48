"""Scales and codes of the outer and the inner group."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data

from golden.fp16.format import FP16
from golden.oaken.format import DENSE_BITS, Group
from hdl.bits import let
from hdl.block import Tier
from hdl.fp16.pipeline import Operator
from hdl.kinds import NUMBER, mask_of
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
    GroupQuantizer,
    GroupQuantizerConfig,
    LanesConfig,
    ScalesConfig,
    lane_fields,
    minimum_word,
)
from hdl.oaken.layouts import FP16_BITS
from hdl.ports import Payload

_INNER_BITS = DENSE_BITS + 1
_OUTER_TOP, _INNER_TOP = (1 << DENSE_BITS) - 1, (1 << _INNER_BITS) - 1
_STEPS = ("outer_low", "outer_high", "inner")
_PARAMETERS = data.StructLayout({"lo": MAGNITUDE_BITS, **dict.fromkeys(_STEPS, MAGNITUDE_BITS)})
_SCALE = Payload(
    outer_low_step=(FP16_BITS, "step of the outer group below, FP16", FP16),
    outer_high_step=(FP16_BITS, "step of the outer group above, FP16", FP16),
    inner_min=(FP16_BITS, "minimum of the inner group, FP16", FP16),
    inner_step=(FP16_BITS, "step of the inner group, FP16", FP16),
)


class OakenOutlierQuantizerConfig(GroupQuantizerConfig):
    """Shape of OakenOutlierQuantizer."""

    @property
    def scale_layout(self) -> data.StructLayout:
        return _SCALE

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            code=(
                data.ArrayLayout(DENSE_BITS, self.lanes),
                "four bits per element, 0 in the middle group",
                NUMBER,
            ),
            fifth=(
                self.lanes,
                "fifth bit of each element, 0 in the middle group",
                mask_of("elements"),
            ),
            outer=(self.lanes, "elements of the outer group", mask_of("elements")),
            keep=(self.lanes, "elements of the outer and the inner group", mask_of("elements")),
            last=(1, "final beat of the vector"),
        )


class _Scales(Operator):
    """The inner range; its rounding; the three ranges over their tops; the steps."""

    def phases(self) -> list:
        def add_sides(m: Module, f: dict) -> dict:
            hi_outer, lo_outer, hi, lo = (
                f["maxima"].word_select(k, MAGNITUDE_BITS) for k in range(4)
            )
            larger, smaller = larger_smaller(m, hi, lo, "sides")
            value, exponent = total(m, larger, smaller, 0, "range")
            return {
                "lo": lo, "high": hi_outer, "low": lo_outer, "total": value, "exponent": exponent,
            }  # fmt: skip

        def round_range(m: Module, f: dict) -> dict:
            return {
                "lo": f["lo"], "high": f["high"], "low": f["low"],
                "range": rounded(m, f["total"], f["exponent"], "range"),
            }  # fmt: skip

        def divide_ranges(m: Module, f: dict) -> dict:
            ranges = {
                "outer_low": (f["low"], _OUTER_TOP),
                "outer_high": (f["high"], _OUTER_TOP),
                "inner": (f["range"], _INNER_TOP),
            }
            return {"lo": f["lo"], **quantized_steps(m, ranges, "of")}

        def round_steps(m: Module, f: dict) -> dict:
            lo = f["lo"]
            steps = rounded_steps(m, f, _STEPS, "of")
            low, high, inner = (steps[name] for name in _STEPS)
            plus = Const(0, 1)
            return {
                "scale": Cat(low, plus, high, plus, minimum_word(m, lo, "minimum"), inner, plus),
                "parameters": Cat(lo, low, high, inner),
            }

        return [add_sides, round_range, divide_ranges, round_steps]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LanesConfig(LanesConfig):
    @property
    def results(self) -> dict:
        return {
            "code": self.lanes * DENSE_BITS,
            "fifth": self.lanes,
            "outer": self.lanes,
            "keep": self.lanes,
        }


class _Lanes(Operator):
    """Distance from the group's base; its rounding; the quotient in three phases.

    An outer element's distance is its magnitude: it is summed with 0, and rounds to itself. Only
    the inner step can be 0 for an element that is there: that of a group of zeros.
    """

    def phases(self) -> list:
        config = self.config
        lanes = range(config.lanes)
        flags = ("lower", "outer", "keep")

        def distances(m: Module, f: dict) -> dict:
            parameters = data.View(_PARAMETERS, f["parameters"])
            out = {name: parameters[name] for name in _STEPS}
            for n in lanes:
                magnitude, sign, group = lane_fields(config, f, n)
                inner = let(m, f"inner_{n}", group == Group.INNER)
                outer = let(m, f"outer_{n}", group == Group.OUTER)
                lo = let(m, f"lo_{n}", Mux(inner, parameters.lo, 0))
                larger, smaller = larger_smaller(m, magnitude, lo, f"lane_{n}")
                out[f"total_{n}"], out[f"exponent_{n}"] = total(
                    m, larger, smaller, inner & sign, f"lane_{n}"
                )
                out[f"lower_{n}"] = sign
                out[f"outer_{n}"] = outer
                out[f"keep_{n}"] = let(m, f"keep_{n}", inner | outer)
            return out

        def keep(f: dict, names=()) -> dict:
            return {name: f[name] for name in names} | {
                f"{name}_{n}": f[f"{name}_{n}"] for name in flags for n in lanes
            }

        def round_distances(m: Module, f: dict) -> dict:
            return keep(f, _STEPS) | {
                f"d_{n}": rounded(m, f[f"total_{n}"], f[f"exponent_{n}"], f"lane_{n}")
                for n in lanes
            }

        def align_lanes(m: Module, f: dict) -> dict:
            out = keep(f)
            steps = {name: unpacked(m, f[name], name) for name in _STEPS}
            out["some"] = let(m, "some", f["inner"].any())
            for n in lanes:
                low, high, inner = (Cat(*steps[name]) for name in _STEPS)
                side = Mux(f[f"lower_{n}"], low, high)
                step = let(m, f"step_{n}", Mux(f[f"outer_{n}"], side, inner))
                bits = len(steps["inner"][0])
                divisor = step[:bits]
                state = align(m, f[f"d_{n}"], divisor, step[bits:], _INNER_BITS, f"lane_{n}")
                out |= {f"{key}_{n}": value for key, value in state.items()}
                out[f"divisor_{n}"] = divisor
            return out

        def state(f: dict, n: int) -> dict:
            return {key: f[f"{key}_{n}"] for key in STATE}

        def digits(m: Module, f: dict) -> dict:
            out = keep(f, ("some",))
            for n in lanes:
                after = step_digits(m, state(f, n), f[f"divisor_{n}"], 3, f"lane_{n}")
                out |= {f"{key}_{n}": value for key, value in after.items()}
                out[f"divisor_{n}"] = f[f"divisor_{n}"]
            return out

        def last_digits(m: Module, f: dict) -> dict:
            codes, fifths = [], []
            for n in lanes:
                after = step_digits(m, state(f, n), f[f"divisor_{n}"], 3, f"lane_{n}")
                q = finish(m, after, _INNER_BITS, f"lane_{n}")
                code = Signal(DENSE_BITS, name=f"masked_{n}")
                fifth = Signal(name=f"fifth_{n}")
                with m.If(f[f"outer_{n}"]):
                    m.d.comb += [
                        code.eq(Mux(q[DENSE_BITS], _OUTER_TOP, q)),
                        fifth.eq(f[f"lower_{n}"]),
                    ]
                with m.Elif(f[f"keep_{n}"] & f["some"]):
                    m.d.comb += [code.eq(q), fifth.eq(q[DENSE_BITS])]
                with m.Else():
                    m.d.comb += [code.eq(0), fifth.eq(0)]
                codes.append(code)
                fifths.append(fifth)
            return {
                "code": Cat(*codes),
                "fifth": Cat(*fifths),
                "outer": Cat(*(f[f"outer_{n}"] for n in lanes)),
                "keep": Cat(*(f[f"keep_{n}"] for n in lanes)),
            }

        return [distances, round_distances, align_lanes, digits, last_digits]


class OakenOutlierQuantizer(GroupQuantizer):
    """Outer group: ``m = min(rne(|y| / step of its side), 15)``, fifth = 1 on the lower side. Inner
    group: ``q = min(rne(rne11(y + lo) / step), 31)``, code q & 15, fifth q >> 4.

    hi, lo: largest y > 0 and -y > 0 of a group on ``scan``, else 0. Steps: max(rne16(hi / 15),
    2**-24) and likewise of lo for outer; max(rne16(rne11(hi + lo) / 31), 2**-24) for inner; 0 for
    a range of 0, and then the code is 0. The quotients are exact: restoring division, whose
    remainder rounds. ``scale`` gives the words once per vector that is not dropped, inner_min =
    -lo (+0 if lo = 0); ``drop`` counts with ``last`` of ``scan``, and a vector dropped must not
    come on ``i``. ``i`` waits for the vector's scales, and they wait until ``scale`` has room:
    take ``scale`` without waiting for ``o``.
    Throughput 1 beat per cycle on scan and i each, for vectors of any length.
    Source: Oaken, sections 4.3 and 5.2. Golden: golden.oaken.quantize.codes and scales.

    Streams, rate and queues are those of OakenInlierQuantizer. Latency is 5 cycles from ``i`` to
    ``o``. From a vector's last beat on ``scan`` to its first on ``i`` it is ceil(log2(lanes) / 2) +
    6 cycles. It is one cycle more if ``vectors`` is above 8. A lane has one divider of 6 digits for
    both groups, because its element belongs to one of them. So any share of outliers takes the same
    time. Code and ``fifth`` are 0 in the middle group, so that the codes of both quantizers merge
    by OR.
    """

    tier = Tier.PART
    golden = "golden.oaken.quantize:codes"
    default = OakenOutlierQuantizerConfig()
    configs: ClassVar = {"small": OakenOutlierQuantizerConfig(lanes=8)}

    GROUPS = (int(Group.OUTER), int(Group.INNER))
    SCALE_STAGES = 4

    def __init__(self, config: OakenOutlierQuantizerConfig):
        super().__init__(config, config.scale_layout, config.o_layout)

    def scales_pipeline(self) -> Operator:
        return _Scales(
            ScalesConfig(
                maxima=4,
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
