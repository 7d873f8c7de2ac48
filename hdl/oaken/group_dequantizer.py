"""The configuration and the lanes that the inlier and the outlier dequantizer share."""

import dataclasses

from amaranth import Module
from amaranth.lib import data, stream

from golden.config import Config, bounded, power_of_two
from golden.fp16.format import FP16
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.kinds import BITS
from hdl.oaken.dequant_lane import OakenDequantLane, OakenDequantLaneConfig
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupDequantizerConfig(Config):
    """Lanes, depth and sideband."""

    lanes: int = power_of_two(16, 8, 64, "elements of a beat")
    stages: int = bounded(3, 1, 16, "cycles from i to o")
    tag_bits: int = bounded(1, 1, 128, "sideband")

    @property
    def i_layout(self) -> data.StructLayout:
        """The payload of ``i``: what the lanes need, and tag."""
        raise NotImplementedError

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            x=(data.ArrayLayout(FP16.bits, self.lanes), "values of the elements, FP16", FP16),
            tag=(self.tag_bits, "passes unchanged with its beat", BITS),
        )


class GroupDequantizer(Block):
    """A lane per element between ``i`` and ``o``, all in step: 1 beat per cycle."""

    i_text = o_text = ""  # of the members i and o

    def __init__(self, config: GroupDequantizerConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), self.i_text),
                "o": Out(stream.Signature(config.o_layout), self.o_text),
            },
        )

    @property
    def timing(self) -> Timing:
        return Timing(latency=self.config.stages, unit="beat")

    def _add_lanes(self, m: Module, **lane) -> list:
        """Lanes of the configuration ``lane``, lane 0 with the tag; their operands are undriven."""
        config, i, o = self.config, self.i, self.o
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
