"""Runs inside the simulator, started by test_matmul_check.py: commands, a cycle each."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, params
from tb.contract import block_timing

SIZES = ("words", "rows", "beats")


@cocotb.test()
async def every_command(dut):
    """The outputs of a command ``timing.latency`` cycles after it, from any state."""
    await Bench.started(dut, sources=(), sinks=())
    for n, step in enumerate(params["steps"]):
        dut.command.value = step["command"]
        for _ in range(block_timing().latency):
            await FallingEdge(dut.clk)
        await ReadOnly()
        assert dut.range_fault.value == step["fault"], f"command {n}: {step}"
        for name, size in zip(SIZES, step["sizes"], strict=True):
            if size is not None:
                assert dut[name].value == size, f"command {n}: {name} {dut[name].value}, {step}"
        await FallingEdge(dut.clk)
