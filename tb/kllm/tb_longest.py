"""Runs inside the simulator, started by test_pe_lane.py: the longest jobs through KllmPeLane."""

import cocotb

from tb.bench import Bench, params
from tb.kllm.support.phases import jobs, load
from tb.kllm.tb_pe_lane import SINKS, SOURCES


@cocotb.test()
@cocotb.parametrize(p=[0.0, 0.3])
async def longest(dut, p):
    """Without and with idle and stall cycles, every y and status."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for phase in params["phases"]:
        await load(bench, phase)
        await jobs(bench, phase, p_idle=p, p_stall=p)
