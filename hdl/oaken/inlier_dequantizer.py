"""Middle group to FP16 (docs/blocks/oaken_inlier_dequantizer.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.fp16.format import FP16, FP32
from golden.oaken.format import DENSE_BITS
from hdl.block import Block
from hdl.emit import add
from hdl.fp16.shift import let
from hdl.oaken.dequant_lane import BASE_BITS, OakenDequantLane, OakenDequantLaneConfig, fixed32

__all__ = ["OakenInlierDequantizer", "OakenInlierDequantizerConfig", "add_lanes"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenInlierDequantizerConfig(Config):
    """Lanes, depth and sideband."""

    lanes: int = 16  # elements of a beat, a power of two in 8..64
    stages: int = 3  # cycles from i to o, 1..16
    tag_bits: int = 1  # sideband, 1..128

    def __post_init__(self) -> None:
        self._check_power_of_two("lanes", 8, 64)
        self._check_range("stages", 1, 16)
        self._check_range("tag_bits", 1, 128)

    @property
    def i_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {
                "code": data.ArrayLayout(DENSE_BITS, self.lanes),
                "inlier": self.lanes,
                "base_low": FP32.bits,
                "base_high": FP32.bits,
                "zero_code": DENSE_BITS,
                "step": FP16.bits,
                "tag": self.tag_bits,
            }
        )

    @property
    def o_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {"x": data.ArrayLayout(FP16.bits, self.lanes), "tag": self.tag_bits}
        )


def add_lanes(m: Module, config, i, o, **lane) -> list:
    """``config.lanes`` lanes in step, lane 0 with the tag, between the streams ``i`` and ``o``.

    Returns the lanes; the caller drives their operands.
    """
    lanes = []
    for k in range(config.lanes):
        tag_bits = config.tag_bits if k == 0 else 0
        lane_config = OakenDequantLaneConfig(stages=config.stages, tag_bits=tag_bits, **lane)
        block = add(m, f"lane_{k}", OakenDequantLane(lane_config))
        m.d.comb += [
            block.i.valid.eq(i.valid),
            block.o.ready.eq(o.ready),
            o.p.x[k].eq(block.o.p.x),
        ]
        lanes.append(block)
    # All see the same valid and ready, so one speaks for all.
    m.d.comb += [
        i.ready.eq(lanes[0].i.ready),
        o.valid.eq(lanes[0].o.valid),
        lanes[0].i.p.tag.eq(i.p.tag),
        o.p.tag.eq(lanes[0].o.p.tag),
    ]
    return lanes


class OakenInlierDequantizer(Block):
    """``x = sat(rne16(base + code * step))`` where ``inlier``, else +0.

    base: ``base_high`` if code >= zero_code, else ``base_low``; FP32 words, multiples of 2**-24
    below 2**18. step: FP16 word. One rounding, of the exact sum; too large gives +-65504, zero is
    +0. Words that no encoder writes (NaN, infinity, a negative step) give some number.

    Throughput 1 beat per cycle, latency ``stages`` cycles; ``i.ready`` depends combinationally on
    ``o.ready``. Source: Oaken, section 5. Golden: golden.oaken.dequantize.inliers.

    Members
    -------
    i : In(stream)   code: 4 bits per lane; inlier: 1 bit per lane; base_low, base_high: FP32;
        zero_code: 1..15; step: FP16; tag
    o : Out(stream)  x: FP16 per lane; tag
    """

    meaning: ClassVar[dict[str, str]] = {
        "i": "Dense codes, the elements of the middle group, and the group's decoding parameters.",
        "o": "Their values, +0 for the other elements.",
    }

    def __init__(self, config: OakenInlierDequantizerConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout)),
                "o": Out(stream.Signature(config.o_layout)),
            },
        )

    @property
    def latency(self) -> str:
        return f"{self.config.stages} cycles"

    @property
    def throughput(self) -> str:
        return "1 beat per cycle"

    def elaborate(self, platform) -> Module:
        m = Module()
        i = self.i.p
        low, high = fixed32(m, i.base_low, "low"), fixed32(m, i.base_high, "high")
        assert low.shape() == signed(BASE_BITS)
        lanes = add_lanes(m, self.config, self.i, self.o, code_bits=DENSE_BITS, subtracts=False)
        for k, lane in enumerate(lanes):
            upper = let(m, f"upper_{k}", i.code[k] >= i.zero_code)
            m.d.comb += [
                lane.i.p.base.eq(Mux(i.inlier[k], Mux(upper, high, low), 0)),
                lane.i.p.q.eq(Mux(i.inlier[k], i.code[k], 0)),
                lane.i.p.step.eq(i.step),
            ]
        return m
