"""Runs inside the simulator, started by test_functional_cycles.py: tokens of 16,383 elements."""

import cocotb

from tb.bench import params
from tb.kllm.tb_functional_unit import Machine

STEPS = params["programs"]["longest"]


@cocotb.test()
@cocotb.parametrize(flow=[(0.0, 0.0, 2), (0.2, 0.2, 6)])
async def longest(dut, flow):
    """flow: chances of idle and stall, latency. Every row of the vector memory is compared."""
    machine = Machine(dut)
    await machine.reset()
    rng = machine.bench.rng(f"longest {flow}")
    for step in STEPS:
        took = await machine.run(step, rng, *flow)
        cocotb.log.info("cycles: %s: %d", step["name"], took)
        if not any(flow[:2]):
            least, most = step["cycles"]
            assert least <= took <= most, f"{step['name']}: {took} cycles, not {least} to {most}"
