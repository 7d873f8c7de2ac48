"""Runs inside the simulator, started by test_lane_control.py: jobs through KllmLaneControl."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import unpack_ints
from tb.bench import Bench, params, vectors
from tb.contract import block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in vectors}
SOURCES, SINKS = ("job", "a", "w", "x", "codebook"), ("packet", "step", "info")


class Control(Bench):
    """Ends each job in the cycle after its ``info`` was taken, unless ``holds``."""

    holds = False

    @classmethod
    async def begin(cls, dut):
        dut.loaded.value, dut.done.value = params["loaded"][""], 0
        bench = await cls.started(dut, sources=SOURCES, sinks=SINKS)
        cocotb.start_soon(bench.end_jobs())
        return bench

    async def end_jobs(self):
        while True:
            await ReadOnly()
            taken = any(self.transfers(["info"])) and not self.dut.rst.value
            await FallingEdge(self.dut.clk)
            self.dut.done.value = bool(taken and not self.holds)

    async def jobs(self, which="", **flow):
        self.dut.loaded.value = params["loaded"][which]
        offers = {name: WORDS[which + name] for name in ("job", "a", "w", "x")}
        takes = {name: len(WORDS[which + name]) for name in ("step", "info")}
        result = await self.run(offers, takes, **flow)
        if flow.get("stop_at") is None:
            for name in ("step", "info"):
                result.check(name, WORDS[which + name])
        return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    await (await Control.begin(dut)).jobs(p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(slow=["job", "a", "w", "x", "step", "info"])
async def uneven_flow(dut, slow):
    bench = await Control.begin(dut)
    idle = {name: 0.8 * (name == slow) for name in SOURCES}
    await bench.jobs(p_idle=idle, p_stall={name: 0.8 * (name == slow) for name in SINKS})


@cocotb.test()
async def late_ready(dut):
    """Neither output waits for the ready of the other."""
    await (await Control.begin(dut)).jobs(late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """A step per cycle from job to job, while no job has a fault."""
    flow = await (await Control.begin(dut)).jobs()
    count, step = params["clean_steps"], flow.cycles["step"]
    assert step[:count] == list(range(step[0], step[0] + count))
    last, timing = step[params["first_steps"] - 1], block_timing()
    assert last - flow.cycles["a"][params["first_beats"] - 1] == timing.latency
    assert flow.cycles["info"][0] - last == timing.delay("from a job's last step to info")


@cocotb.test()
async def refused_jobs_of_many_outliers(dut):
    """All of their words are taken, and the job after them is right."""
    await (await Control.begin(dut)).jobs("long_")


@cocotb.test()
@cocotb.parametrize(which=["nothing_", "integer_"])
async def jobs_without_their_codebook(dut, which):
    """Refused, with all their words taken, whatever else may be loaded."""
    await (await Control.begin(dut)).jobs(which, p_stall=0.3)


@cocotb.test()
async def packet_waits_for_the_end_of_jobs(dut):
    """A packet passes when no reported job is left; the jobs after it wait."""
    bench = await Control.begin(dut)
    bench.holds = True
    offers = {name: WORDS[name] for name in ("job", "a", "w", "x")}
    takes = {"packet": None, "step": None, "info": None}
    first = await bench.run(offers, takes, stop_at=params["first_steps"] + 3)
    assert first.words["info"], "no job was reported"
    held = await bench.run({"codebook": WORDS["codebook"]}, takes, stop_at=60)
    assert not held.words["packet"]
    await bench.reset()
    bench.holds = False
    flow = await bench.run({"codebook": WORDS["codebook"]}, {"packet": len(WORDS["codebook"])})
    flow.check("packet", WORDS["codebook"])
    await bench.jobs()


@cocotb.test()
async def packets_between_jobs(dut):
    """A word per cycle, and no ``info``; the jobs after it are right, and those offered with it."""
    bench, packet = await Control.begin(dut), WORDS["codebook"]
    await bench.jobs()
    for _ in range(2):
        flow = await bench.run({"codebook": packet}, {"packet": len(packet)})
        flow.check("packet", packet)
        cycles = flow.cycles["packet"]
        assert cycles == list(range(cycles[0], cycles[0] + len(packet)))
    await bench.jobs()
    offers = {name: WORDS[name] for name in SOURCES}
    takes = {name: len(WORDS[name]) for name in ("step", "info")} | {"packet": len(packet)}
    for p_stall in (0.0, 0.5):
        flow = await bench.run(offers, takes, p_stall=p_stall)
        for name in takes:
            flow.check(name, WORDS["codebook" if name == "packet" else name])


@cocotb.test()
async def reset_in_mid_job(dut):
    bench = await Control.begin(dut)
    for cut in range(3, 200, 17):
        await bench.jobs(stop_at=cut, p_stall=0.3)
        await bench.reset(1)
        await bench.jobs()
