"""Memory1R1W in Verilator against golden.memory.reference.memory_1r1w."""

from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from tb.simulate.run import simulate
from tb.stream.support.bank import Bank, BankConfig

SHAPES = (
    MemoryConfig(depth=1, width=1),
    MemoryConfig(depth=2, width=2, granularity=1),
    MemoryConfig(depth=5, width=12, granularity=4),
    MemoryConfig(depth=37, width=33),
    MemoryConfig(depth=256, width=128, granularity=8),
)
INPUTS = ["read_en", "read_addr", "write_en", "write_addr", "write_data"]


def test_memory_1r1w(seed):
    members = tuple((Memory1R1W, shape) for shape in SHAPES)
    simulate(
        Bank(BankConfig(members=members)),
        "tb.memory.check_memory",
        params={"golden": "memory_1r1w", "inputs": INPUTS, "cycles": 3000},
        seed=seed,
    )
