"""Runs inside the simulator: phases of jobs through a lane or an array, every y and status."""

import cocotb

from tb.bench import Bench, interface, params
from tb.kllm.support.phases import jobs, load


@cocotb.test()
@cocotb.parametrize(p=[0.0, 0.3])
async def phases(dut, p):
    """The jobs of each phase give golden's words, without and with idle and stall cycles."""
    bench = await Bench.started(dut, sources=interface["sources"], sinks=interface["sinks"])
    for phase in params["phases"]:
        await load(bench, phase)
        await jobs(bench, phase, p_idle=p, p_stall=p)
