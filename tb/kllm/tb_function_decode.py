"""Runs inside the simulator, started by test_function_decode.py: commands to jobs."""

import cocotb

from tb.bench import Bench, params
from tb.contract import block_timing

COMMANDS, JOBS, MASKS = params["commands"], params["jobs"], params["masks"]
COUNT = len(COMMANDS)
TIMING = block_timing()


async def replay(bench, count=COUNT, **flow):
    result = await bench.run({"command": COMMANDS[:count]}, {"job": count}, **flow)
    if flow.get("stop_at") is None:
        words = zip(result.words["job"], MASKS, strict=False)
        result.words["job"] = [word & mask for word, mask in words]
        result.check("job", JOBS[:count], sent=COMMANDS)
    return result


async def started(dut):
    return await Bench.started(dut, sources=("command",), sinks=("job",))


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    await replay(await started(dut), p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    await replay(await started(dut), 60, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """The next command is taken in the cycle after its job."""
    flow = await replay(await started(dut))
    begins = [int(TIMING.interval) * n for n in range(len(COMMANDS))]
    assert flow.cycles["command"] == begins
    assert flow.cycles["job"] == [begin + TIMING.latency for begin in begins]


@cocotb.test()
async def reset_in_mid_command(dut):
    bench = await started(dut)
    for cut in range(1, 30):
        await bench.cut_off({"command": COMMANDS}, {"job": None}, [cut], p_stall=0.3)
        await replay(bench, 5)
