"""Lanes of other number formats by name."""

from hdl.lanes.config import LaneFp16Config, LaneIntegerConfig, LaneLutConfig, LaneW4a16Config
from hdl.lanes.fp16 import LaneFp16
from hdl.lanes.integer import LaneInteger
from hdl.lanes.lut import LaneLut
from hdl.lanes.w4a16 import LaneW4a16
from hdl.registry import Registered, Room

BLOCKS = {
    "lane_fp16": Registered(
        component=LaneFp16,
        config=LaneFp16Config(),
        configs={
            "fp16": LaneFp16Config(),
            "small": LaneFp16Config(elements=3, columns=3, k_max=40),
        },
        golden="golden.lanes.sums:fp16_packet",
    ),
    "lane_integer": Registered(
        component=LaneInteger,
        config=LaneIntegerConfig(),
        configs={
            "int8": LaneIntegerConfig(),
            "int8_int4": LaneIntegerConfig(bits_w=4),
            "int8_int2": LaneIntegerConfig(bits_w=2),
            "int4": LaneIntegerConfig(bits_a=4, bits_w=4),
            "small": LaneIntegerConfig(elements=3, columns=3, k_max=40, bits_a=5, bits_w=3),
        },
        golden="golden.lanes.sums:integer_packet",
    ),
    "lane_lut": Registered(
        component=LaneLut,
        config=LaneLutConfig(),
        configs={
            "int8_int4": LaneLutConfig(),
            "int8_int2": LaneLutConfig(bits_w=2),
            "int16_int4": LaneLutConfig(bits_a=16),
            "small": LaneLutConfig(elements=8, columns=3, k_max=40, bits_a=5, bits_w=3),
        },
        golden="golden.lanes.sums:table_packet",
    ),
    "lane_w4a16": Registered(
        component=LaneW4a16,
        config=LaneW4a16Config(),
        configs={
            "w4a16": LaneW4a16Config(),
            "small": LaneW4a16Config(elements=3, columns=3, k_max=40, bits_w=3),
        },
        golden="golden.lanes.sums:w4a16_packet",
    ),
}

ROOM = Room(blocks=BLOCKS, tables=("lanes",))
