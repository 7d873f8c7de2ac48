"""MemoryShared in Verilator against golden.memory.reference.memory_shared.

Shown to fail:

- reads that meet a write of their address in one cycle;
- answers steered by the choice of the next read;
- a credit that starts one too high, or of 1 taken for none;
- the word of bank 0 as that of every bank; a bank without the lowest bit of its addresses;
- one choice of a reader for all banks; a client that waits for another bank's.
"""

import pytest

from hdl.memory.shared import MemoryShared, MemorySharedConfig
from tb.simulate.run import simulate

CONFIGS = {
    "two_by_two": MemorySharedConfig(depth=5, width=9),
    "alone": MemorySharedConfig(depth=2, width=1, readers=1, writers=1, answers=2),
    "many": MemorySharedConfig(depth=64, width=256, readers=6, writers=3),
    "two_banks": MemorySharedConfig(depth=5, width=9, readers=3, writers=2, banks=2),
    "banks": MemorySharedConfig(depth=64, width=64, readers=7, writers=4, banks=4),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_shared(name, seed):
    simulate(MemoryShared(CONFIGS[name]), "tb.memory.tb_shared", params={"words": 400}, seed=seed)
