"""Runs inside the simulator, started by test_lane_finish.py: jobs through KllmLaneFinish."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing

STREAMS = ("job", "dense", "sparse", "s_b", "y", "status")


def made(phase: str, check=None) -> Contract:
    """The words of ``steady``, jobs of several cycles each, or of ``short``."""
    words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in STREAMS}
    return Contract(words, check=check, **params[phase])


def status_after_y(flow, counts):
    """A status is taken after the last y of its job."""
    ends = [
        cycle for cycle, word in zip(flow.cycles["y"], flow.words["y"], strict=True) if word >> 16
    ]
    silent = params["silent"]
    given = [c for n, c in enumerate(flow.cycles["status"]) if not silent[n]]
    assert all(cycle > end for cycle, end in zip(given, ends, strict=True))


contract = made("steady", status_after_y)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5])
async def short_jobs(dut, p_idle, p_stall):
    """Jobs with one output among others: the register of the status stalls them."""
    short = made("short")
    bench = await short.started(dut)
    await short.replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def done_once_per_job(dut):
    """``done`` is 1 for one cycle per job; the status follows in the next, if not stalled."""
    bench = await contract.started(dut)
    cycles = []

    async def watch():
        cycle = 0
        while True:
            await ReadOnly()
            if dut.done.value:
                cycles.append(cycle)
            await FallingEdge(dut.clk)
            cycle += 1

    watching = cocotb.start_soon(watch())
    flow = await contract.replay(bench)
    watching.cancel()
    after = block_timing().delay("from a job's last y to its status")
    assert [cycle + after for cycle in cycles] == flow.cycles["status"]
