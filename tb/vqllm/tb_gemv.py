"""Runs inside the simulator, started by test_gemv.py: matrices in a memory, one after another.

``params["jobs"]``: images, refused addresses, words of the streams. ``params["rates"]``:
long ones, with ``most`` cycles.
"""

import cocotb

from tb.bench import params
from tb.contract import block_timing
from tb.vqllm.support.engine_host import SINKS, SOURCES, EngineHost

JOBS = params["jobs"]


@cocotb.test()
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [(0.0, 0.0, 1), (0.3, 0.3, 9), (0.0, 0.8, 3), (0.7, 0.0, 30)],
    )
)
async def random_flow(dut, p_idle, p_stall, latency):
    host = await EngineHost(dut, JOBS, latency).start()
    await host.run(JOBS, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def uneven_flow(dut):
    """Each stream in turn is slow."""
    for slow in (*SOURCES, *SINKS):
        host = await EngineHost(dut, JOBS).start()
        idle = {name: 0.9 * (name == slow) for name in SOURCES}
        stall = {name: 0.9 * (name == slow) for name in SINKS}
        await host.run(JOBS[:3], p_idle=idle, p_stall=stall)


@cocotb.test()
async def late_ready(dut):
    host = await EngineHost(dut, JOBS).start()
    await host.run(JOBS[:3], p_stall=0.3, late_ready=True)


@cocotb.test()
async def reset_in_mid_job(dut):
    host = await EngineHost(dut, JOBS).start()
    rng = host.bench.rng("cuts")
    for _ in range(6):
        await host.run(JOBS[:3], p_stall=0.2, stop_at=rng.randrange(3, 900))
        await host.restart()
    await host.run(JOBS[:1])


@cocotb.test()
async def full_rate(dut):
    """A long job alone: at most 1.05 x (its bound + the fill); the status follows its last row."""
    jobs = params["rates"]
    host = await EngineHost(dut, jobs, params["latency"]).start()
    for job in jobs:
        found = await host.run([job])
        spent = found.cycles["y"][-1] - found.cycles["job"][0]
        assert spent <= job["most"], (spent, job["most"])
        assert found.cycles["status"][0] - found.cycles["y"][-1] == block_timing().latency
