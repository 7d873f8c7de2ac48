"""Memory1RW in Verilator against golden.memory.reference.memory_1rw."""

from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1rw import Memory1RW
from tb.simulate.run import simulate
from tb.stream.support.bank import Bank, BankConfig

SHAPES = (
    MemoryConfig(depth=1, width=1),
    MemoryConfig(depth=2, width=2, granularity=1),
    MemoryConfig(depth=5, width=12, granularity=4),
    MemoryConfig(depth=37, width=33),
    MemoryConfig(depth=256, width=128, granularity=8),
)
INPUTS = ["en", "write", "addr", "write_lanes", "write_data"]


def test_memory_1rw(seed):
    members = tuple((Memory1RW, shape) for shape in SHAPES)
    simulate(
        Bank(BankConfig(members=members)),
        "tb.memory.check_memory",
        params={"golden": "memory_1rw", "inputs": INPUTS, "cycles": 3000},
        seed=seed,
    )
