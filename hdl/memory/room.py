"""The RAM wrappers by name."""

from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.memory.memory_1rw import Memory1RW
from hdl.memory.shared import MemoryShared, MemorySharedConfig
from hdl.registry import Registered, Room

_CONFIGS = {
    "smallest": MemoryConfig(depth=1, width=1),
    "odd": MemoryConfig(depth=5, width=12, granularity=4),
}

BLOCKS = {
    "memory_1r1w": Registered(
        component=Memory1R1W,
        config=MemoryConfig(),
        configs=_CONFIGS,
        golden="golden.memory.reference:memory_1r1w",
    ),
    "memory_1rw": Registered(
        component=Memory1RW,
        config=MemoryConfig(),
        configs=_CONFIGS,
        golden="golden.memory.reference:memory_1rw",
    ),
    "memory_shared": Registered(
        component=MemoryShared,
        config=MemorySharedConfig(),
        configs={"rows": MemorySharedConfig(depth=4096, width=256, readers=6, writers=3)},
        golden="golden.memory.reference:memory_shared",
    ),
}

ROOM = Room(blocks=BLOCKS, tables=("memories",))
