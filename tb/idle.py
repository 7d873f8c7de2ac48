"""Runs inside the simulator, for any block: a reset, and then cycles without an offered word.

Plain inputs, which ``params`` names, are 0. Energy of these cycles is what a block takes while it
waits (senbazuru.runs.event_power).
"""

import cocotb

from tb.bench import Bench, interface, params

CYCLES = 400


@cocotb.test()
async def idle(dut):
    bench = Bench(dut, sources=interface["sources"], sinks=interface["sinks"])
    for name in params["plain"]:
        getattr(dut, name).value = 0
    await bench.reset()
    flow = await bench.run({}, {}, stop_at=CYCLES)
    assert not any(flow.cycles.values())
