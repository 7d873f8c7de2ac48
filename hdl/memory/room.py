"""The RAM wrappers by name."""

from hdl.memory.memory_1r1w import Memory1R1W
from hdl.memory.memory_1rw import Memory1RW
from hdl.memory.shared import MemoryShared
from hdl.registry import Room, registered

BLOCKS = registered(
    Memory1R1W,
    Memory1RW,
    MemoryShared,
)

ROOM = Room(blocks=BLOCKS, tables=("memories",))
