"""Groups and group shift of a KV vector."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, power_of_two
from golden.fp16.format import FP16
from golden.oaken import timing
from golden.oaken.format import Group, Threshold
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.children import add
from hdl.fp16.pipeline import Operator, OperatorConfig
from hdl.oaken.arithmetic import MAGNITUDE_BITS, rounded, total
from hdl.oaken.layouts import FP16_BITS, THRESHOLD_LAYOUT, THRESHOLDS
from hdl.ports import In, Out, Payload

GROUP_BITS = 2
LANES_PER_MODULE = 8  # every width is a multiple: one module, generated and compiled once


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenDecomposerConfig(Config):
    """Width of the decomposer."""

    lanes: int = power_of_two(16, 8, 64, "elements per beat")

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            x=(data.ArrayLayout(FP16_BITS, self.lanes), "elements, FP16", FP16),
            last=(1, "final beat of the vector"),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        shifted = shifted_layout(self.lanes).parts
        return Payload(
            y=shifted["y"],
            group=shifted["group"],
            nonfinite=(1, "an element is NaN or infinite"),
            last=(1, "final beat of the vector"),
        )


def shifted_layout(lanes: int) -> data.StructLayout:
    """A beat of shifted words: y, group (golden.oaken.format.Group), last."""
    return Payload(
        y=(data.ArrayLayout(FP16_BITS, lanes), "shifted elements, FP16", FP16),
        group=(
            data.ArrayLayout(GROUP_BITS, lanes),
            "golden.oaken.format.Group of each element",
            Group,
        ),
        last=(1, "final beat of the vector"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LanesConfig(OperatorConfig):
    lanes: int = 16

    @property
    def operands(self) -> dict:
        return {"x": self.lanes * FP16_BITS, "thresholds": THRESHOLD_LAYOUT.size}

    @property
    def results(self) -> dict:
        return {
            "y": self.lanes * FP16_BITS,
            "group": self.lanes * GROUP_BITS,
            "nonfinite": 1,
        }


class _Lanes(Operator):
    """The decomposer's pipeline: classify; subtract; round.

    A shift never changes the side, so it is a subtraction of magnitudes, the larger one known.
    """

    def phases(self) -> list:
        lanes = range(self.config.lanes)

        def classify(m: Module, f: dict) -> dict:
            out, special = {}, []

            def threshold(which: Threshold):
                return f["thresholds"][which * FP16_BITS :][:MAGNITUDE_BITS]

            for lane in lanes:
                word = f["x"][lane * FP16_BITS : (lane + 1) * FP16_BITS]
                magnitude, sign = word[:MAGNITUDE_BITS], word[-1]
                finite = let(m, f"finite_{lane}", ~word[FP16.frac_bits : -1].all())
                special.append(~finite)
                far = let(
                    m,
                    f"far_{lane}",
                    Mux(sign, threshold(Threshold.OUTER_LOW), threshold(Threshold.OUTER_HIGH)),
                )
                near = let(
                    m,
                    f"near_{lane}",
                    Mux(sign, threshold(Threshold.INNER_LOW), threshold(Threshold.INNER_HIGH)),
                )
                outer = let(m, f"outer_{lane}", magnitude > far)
                inner = let(m, f"inner_{lane}", magnitude <= near)
                group = Signal(GROUP_BITS, name=f"group_{lane}")
                with m.If(~finite):
                    m.d.comb += group.eq(Group.MIDDLE)
                with m.Elif(outer):
                    m.d.comb += group.eq(Group.OUTER)
                with m.Elif(inner):
                    m.d.comb += group.eq(Group.INNER)
                with m.Else():
                    m.d.comb += group.eq(Group.MIDDLE)
                out[f"x_{lane}"] = let(m, f"word_{lane}", Mux(finite, word, 0))
                shift = Mux(outer, far, near)
                out[f"t_{lane}"] = let(m, f"shift_{lane}", Mux(inner | ~finite, 0, shift))
                out[f"group_{lane}"] = group
            return out | {"nonfinite": let(m, "special", Cat(*special).any())}

        def subtract(m: Module, f: dict) -> dict:
            out = {"nonfinite": f["nonfinite"]}
            for lane in lanes:
                word = f[f"x_{lane}"]
                out[f"total_{lane}"], out[f"exponent_{lane}"] = total(
                    m, word[:MAGNITUDE_BITS], f[f"t_{lane}"], Const(1, 1), f"lane_{lane}"
                )
                out[f"sign_{lane}"] = word[-1]
                out[f"group_{lane}"] = f[f"group_{lane}"]
            return out

        def round_lanes(m: Module, f: dict) -> dict:
            y = []
            for lane in lanes:
                magnitude = rounded(m, f[f"total_{lane}"], f[f"exponent_{lane}"], f"lane_{lane}")
                y += [magnitude, f[f"sign_{lane}"]]
            return {
                "y": Cat(*y),
                "group": Cat(*(f[f"group_{lane}"] for lane in lanes)),
                "nonfinite": f["nonfinite"],
            }

        return [classify, subtract, round_lanes]


class OakenDecomposer(Block):
    """Group of each element by four thresholds, and its value less the threshold of its side.

    outer: x < OUTER_LOW or x > OUTER_HIGH; inner: INNER_LOW <= x <= INNER_HIGH; else middle.
    y = rne16(x - T), the one rounding: T is the outer resp. inner threshold of x's side; y = x in
    the inner group. ``nonfinite``: some lane of the beat is NaN or infinite; there y is +0 and the
    group MIDDLE. Thresholds must be finite and OUTER_LOW < INNER_LOW <= 0 <= INNER_HIGH <
    OUTER_HIGH (not checked here: y and group are unspecified, the block goes on).
    One word of ``thresholds`` per vector, taken with the vector's last beat. Throughput 1 beat per
    cycle, latency 3 cycles; ``i.ready`` depends combinationally on ``o.ready``.
    Source: Oaken, Eq. 1 and section 5.2. Golden: golden.oaken.quantize.decompose.

    With such thresholds only those of x's side decide. So a lane has two comparators of 15 bits.
    The subtraction has magnitudes of which the larger is known, so y is never 0 and keeps its side.
    The comparisons treat -0 as +0. In the inner group -0 remains -0. OakenQuantEngine refuses other
    thresholds.
    """

    tier = Tier.PART
    golden = "golden.oaken.quantize:decompose"
    default = OakenDecomposerConfig()
    configs: ClassVar = {"small": OakenDecomposerConfig(lanes=8)}

    def __init__(self, config: OakenDecomposerConfig):
        super().__init__(
            config,
            {
                "thresholds": In(
                    stream.Signature(THRESHOLD_LAYOUT),
                    "outer low, inner low, inner high, outer high of one vector",
                    THRESHOLDS[2],
                ),
                "i": In(stream.Signature(config.i_layout), "elements of a vector in order"),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "the same elements, shifted, with their groups",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.decomposer()

    def elaborate(self, platform) -> Module:
        m = Module()
        stages = self.timing.latency
        slices = [
            add(
                m,
                f"lanes_{first}",
                _Lanes(_LanesConfig(lanes=LANES_PER_MODULE, stages=stages, tag_bits=1)),
            )
            for first in range(0, self.config.lanes, LANES_PER_MODULE)
        ]
        # Fed and emptied together, all slices of the lanes are always in the same state.
        lanes = slices[0]
        m.d.comb += [
            self.i.ready.eq(lanes.i.ready & self.thresholds.valid),
            self.thresholds.ready.eq(lanes.i.ready & self.i.valid & self.i.p.last),
            self.o.valid.eq(lanes.o.valid),
            self.o.p.y.as_value().eq(Cat(*(each.o.p.y for each in slices))),
            self.o.p.group.as_value().eq(Cat(*(each.o.p.group for each in slices))),
            self.o.p.nonfinite.eq(Cat(*(each.o.p.nonfinite for each in slices)).any()),
            self.o.p.last.eq(lanes.o.p.tag),
        ]
        for k, each in enumerate(slices):
            m.d.comb += [
                each.i.valid.eq(self.i.valid & self.thresholds.valid),
                each.i.p.x.eq(self.i.p.x.as_value().word_select(k, LANES_PER_MODULE * FP16_BITS)),
                each.i.p.thresholds.eq(self.thresholds.payload),
                each.i.p.tag.eq(self.i.p.last),
                each.o.ready.eq(self.o.ready),
            ]
        return m
