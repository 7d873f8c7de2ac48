"""Runs inside the simulator, started by test_run.py: this tree's ``tb`` is the one imported."""

import cocotb

from tb.bench import Bench


@cocotb.test()
async def starts(dut):
    await Bench.started(dut)
