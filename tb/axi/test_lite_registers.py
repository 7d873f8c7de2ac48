"""AxiLiteRegisters against golden.axi.reference.RegisterModel, under AXI's port names.

Shown to fail:

- byte strobes ignored;
- a full queue answered OKAY;
- a pop without a read;
- LEVELS one too low;
- addresses decoded by bits 2 to 4 alone, or by all but bit 10;
- a write performed before its data came;
- an answer on R or B overwritten before it was taken;
- a command whose valid waits for ready;
- words of BATCH that go to ``request``, or ANSWER that pops STATUS;
- counters one register further on, two of them exchanged, or one that takes writes.
"""

import pytest

from hdl.axi.lite_registers import AxiLiteRegisters, AxiLiteRegistersConfig
from tb.simulate.run import simulate

CONFIGS = {
    "flipflops": AxiLiteRegistersConfig(
        address_bits=6, version=0x8765_4321, command_depth=5, status_depth=3, readback_depth=1
    ),
    "rams": AxiLiteRegistersConfig(command_depth=33, status_depth=40, readback_depth=64),
    "cache": AxiLiteRegistersConfig(
        address_bits=7, command_depth=4, status_depth=4, readback_depth=2, cache_depth=3
    ),
    "cache_rams": AxiLiteRegistersConfig(cache_depth=34),
}


@pytest.mark.telling("flipflops", "rams", "cache")
@pytest.mark.parametrize("name", CONFIGS)
def test_lite_registers(name, seed):
    block = AxiLiteRegisters(CONFIGS[name])
    simulate(block, "tb.axi.tb_lite_registers", seed=seed, wrap="axi")
