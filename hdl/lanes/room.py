"""Lanes of other number formats by name."""

from hdl.lanes.fp16 import LaneFp16
from hdl.lanes.integer import LaneInteger
from hdl.lanes.lut import LaneLut
from hdl.lanes.w4a16 import LaneW4a16
from hdl.registry import Room, registered

BLOCKS = registered(
    LaneFp16,
    LaneInteger,
    LaneLut,
    LaneW4a16,
)

ROOM = Room(blocks=BLOCKS, tables=("lanes",))
