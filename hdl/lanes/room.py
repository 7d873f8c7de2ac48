"""Lanes of other number formats by name."""

from hdl.lanes.config import LaneIntegerConfig
from hdl.lanes.integer import LaneInteger
from hdl.registry import Registered, Room

__all__ = ["BLOCKS", "ROOM"]

BLOCKS = {
    "lane_integer": Registered(
        component=LaneInteger,
        config=LaneIntegerConfig(),
        configs={
            "int8": LaneIntegerConfig(),
            "int8_int4": LaneIntegerConfig(bits_w=4),
            "int4": LaneIntegerConfig(bits_a=4, bits_w=4),
            "small": LaneIntegerConfig(elements=3, columns=3, k_max=40, bits_a=5, bits_w=3),
        },
        golden="golden.lanes.sums:integer_packet",
    ),
}

ROOM = Room(blocks=BLOCKS, tables=("lanes",))
