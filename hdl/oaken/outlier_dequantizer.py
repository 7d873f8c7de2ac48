"""Inner and outer group to FP16."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux
from amaranth.lib import data

from golden.fp16.format import FP16
from golden.oaken.format import DENSE_BITS
from hdl.block import Tier
from hdl.kinds import BITS, NUMBER
from hdl.oaken.dequant_lane import fixed16, signed_value
from hdl.oaken.group_dequantizer import GroupDequantizer, GroupDequantizerConfig
from hdl.oaken.layouts import OUTLIER_LAYOUT
from hdl.ports import Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenOutlierDequantizerConfig(GroupDequantizerConfig):
    """Lanes, depth and sideband."""

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            code=(data.ArrayLayout(DENSE_BITS, self.lanes), "four bits per element", NUMBER),
            outlier=(data.ArrayLayout(OUTLIER_LAYOUT, self.lanes), "what each element is"),
            outer_low=(FP16.bits, "threshold To_lo, FP16", FP16),
            outer_high=(FP16.bits, "threshold To_hi, FP16", FP16),
            outer_low_step=(FP16.bits, "step of the outer group below, FP16", FP16),
            outer_high_step=(FP16.bits, "step of the outer group above, FP16", FP16),
            inner_min=(FP16.bits, "minimum of the inner group, FP16", FP16),
            inner_step=(FP16.bits, "step of the inner group, FP16", FP16),
            tag=(self.tag_bits, "passes unchanged with its beat", BITS),
        )


class OakenOutlierDequantizer(GroupDequantizer):
    """Outer and inner elements: FP16 where ``outlier.present``, else +0.

    ::

        outer, fifth = 0:  x = sat(rne16(outer_high + code * outer_high_step))
        outer, fifth = 1:  x = sat(rne16(outer_low - code * outer_low_step))
        inner:             x = sat(rne16(inner_min + (16 * fifth + code) * inner_step))

    outer_low, outer_high: the thresholds; all FP16 words. One rounding, of the exact sum; too
    large gives +-65504, zero is +0. Words that no encoder writes give some number.

    Throughput 1 beat per cycle, latency ``stages`` cycles; ``i.ready`` depends combinationally on
    ``o.ready``. Source: Oaken, section 5. Golden: golden.oaken.dequantize.outliers.

    The lane is that of OakenInlierDequantizer with a fifth bit of code and a subtraction. ``code``
    is the element's code in the dense record, and ``fifth`` is the top bit of its sparse entry.
    """

    tier = Tier.PART
    golden = "golden.oaken.dequantize:outliers"
    default = OakenOutlierDequantizerConfig()
    configs: ClassVar = {
        "small": OakenOutlierDequantizerConfig(lanes=8, stages=1),
    }

    i_text = "Dense codes, the outliers among them, and the decoding parameters of their groups."
    o_text = "The outliers' values, +0 for the other elements."

    def elaborate(self, platform) -> Module:
        m = Module()
        i = self.i.p
        low, high, inner = (
            signed_value(m, *fixed16(m, word, name), f"{name}_base")
            for word, name in (
                (i.outer_low, "low"), (i.outer_high, "high"), (i.inner_min, "inner")
            )
        )  # fmt: skip
        lanes = self._add_lanes(m, code_bits=5, subtracts=True)
        for k, lane in enumerate(lanes):
            outlier, code = i.outlier[k], i.code[k]
            with m.If(~outlier.present):
                m.d.comb += [lane.i.p.base.eq(0), lane.i.p.q.eq(0)]
            with m.Elif(outlier.group):
                m.d.comb += [
                    lane.i.p.base.eq(Mux(outlier.fifth, low, high)),
                    lane.i.p.q.eq(Cat(code, Const(0, 1))),
                ]
            with m.Else():
                m.d.comb += [lane.i.p.base.eq(inner), lane.i.p.q.eq(Cat(code, outlier.fifth))]
            side_step = Mux(outlier.fifth, i.outer_low_step, i.outer_high_step)
            m.d.comb += [
                lane.i.p.step.eq(Mux(outlier.group, side_step, i.inner_step)),
                lane.i.p.subtract.eq(outlier.present & outlier.group & outlier.fifth),
            ]
        return m
