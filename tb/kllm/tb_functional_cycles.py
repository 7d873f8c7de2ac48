"""Runs inside the simulator, started by test_functional_cycles.py: the cycles of each command."""

import cocotb

from tb.bench import params
from tb.contract import block_timing
from tb.kllm.tb_functional_unit import Machine

STEPS, DELAYS = params["programs"]["cycles"], params["delays"]


@cocotb.test()
async def full_rate(dut):
    """Command to status, for memories of several latencies; and what the block's timing states."""
    machine = Machine(dut)
    await machine.reset()
    rng = machine.bench.rng("cycles")
    wrong, took = [], {}
    for delay in DELAYS:
        for n, step in enumerate(STEPS):
            took[delay, n] = await machine.run(step, rng, latency=delay)
            least, most = step["cycles"][delay]
            if not least <= took[delay, n] <= most:
                wrong.append(
                    f"{step['name']}: {took[delay, n]} cycles at latency {delay}, "
                    f"not {least} to {most}"
                )
    assert not wrong, "\n".join(wrong)
    timing = block_timing()
    for text, n in params["stated"].items():
        assert took[1, n] == (timing.delay(text) if text else timing.latency), text
