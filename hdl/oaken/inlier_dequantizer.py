"""Middle group to FP16."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, signed
from amaranth.lib import data

from golden.fp16.format import FP16, FP32
from golden.oaken.format import DENSE_BITS
from hdl.bits import let
from hdl.block import Tier
from hdl.kinds import BITS, NUMBER, mask_of
from hdl.oaken.dequant_lane import BASE_BITS, fixed32
from hdl.oaken.group_dequantizer import GroupDequantizer, GroupDequantizerConfig
from hdl.ports import Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenInlierDequantizerConfig(GroupDequantizerConfig):
    """Lanes, depth and sideband."""

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            code=(data.ArrayLayout(DENSE_BITS, self.lanes), "four bits per element", NUMBER),
            inlier=(self.lanes, "elements of the middle group", mask_of("elements")),
            base_low=(FP32.bits, "base of codes below zero_code, FP32", FP32),
            base_high=(FP32.bits, "base of codes from zero_code on, FP32", FP32),
            zero_code=(DENSE_BITS, "first code of the upper side, 1..15", NUMBER),
            step=(FP16.bits, "step of the middle group, FP16", FP16),
            tag=(self.tag_bits, "passes unchanged with its beat", BITS),
        )


class OakenInlierDequantizer(GroupDequantizer):
    """``x = sat(rne16(base + code * step))`` where ``inlier``, else +0.

    base: ``base_high`` if code >= zero_code, else ``base_low``; FP32 words, multiples of 2**-24
    below 2**18. step: FP16 word. One rounding, of the exact sum; too large gives +-65504, zero is
    +0. Words that no encoder writes (NaN, infinity, a negative step) give some number.

    Throughput 1 beat per cycle, latency ``stages`` cycles; ``i.ready`` depends combinationally on
    ``o.ready``. Source: Oaken, section 5. Golden: golden.oaken.dequantize.inliers.

    Every quantity is an integer on the grid 2**-24, the smallest subnormal (decision 0070). The
    product of code and step is 15 bits shifted by the step's exponent. The sum is exact in 48 bits.
    hdl/oaken/dequant_scales.py computes ``zero_code`` and the bases once per token. Outliers come
    as +0, so that the words of both dequantizers merge by OR.
    """

    tier = Tier.PART
    golden = "golden.oaken.dequantize:inliers"
    default = OakenInlierDequantizerConfig()
    configs: ClassVar = {
        "small": OakenInlierDequantizerConfig(lanes=8, stages=1),
    }

    i_text = "Dense codes, the elements of the middle group, and the group's decoding parameters."
    o_text = "Their values, +0 for the other elements."

    def elaborate(self, platform) -> Module:
        m = Module()
        i = self.i.p
        low, high = fixed32(m, i.base_low, "low"), fixed32(m, i.base_high, "high")
        assert low.shape() == signed(BASE_BITS)
        lanes = self._add_lanes(m, code_bits=DENSE_BITS, subtracts=False)
        for k, lane in enumerate(lanes):
            upper = let(m, f"upper_{k}", i.code[k] >= i.zero_code)
            m.d.comb += [
                lane.i.p.base.eq(Mux(i.inlier[k], Mux(upper, high, low), 0)),
                lane.i.p.q.eq(Mux(i.inlier[k], i.code[k], 0)),
                lane.i.p.step.eq(i.step),
            ]
        return m
