"""Runs inside the simulator, started by test_activity.py: units at work, and all counts always."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import join
from tb.bench import Bench, config, params
from tb.contract import block_timing

BUSY, COUNTS = params["busy"], params["counts"]
AHEAD = block_timing().latency  # a cycle shows in the count so many cycles later


async def count(dut, words) -> None:
    """Each word for a cycle; what ``count`` shows meanwhile is golden's."""
    for cycle, word in enumerate(words):
        dut.busy.value = word
        await ReadOnly()
        wanted = COUNTS[max(0, cycle + 1 - AHEAD)]
        assert int(dut.count.value) == join(*((n, config.bits) for n in wanted)), f"cycle {cycle}"
        await FallingEdge(dut.clk)


@cocotb.test()
async def counts(dut):
    """Counts begin with a reset, and again with another one, while units are at work."""
    bench = Bench(dut, sources=(), sinks=())
    for cycles, words in ((3, BUSY[: len(BUSY) // 3]), (1, BUSY), (2, BUSY[:9])):
        dut.busy.value = (1 << config.units) - 1
        await bench.reset(cycles)
        await count(dut, words)
