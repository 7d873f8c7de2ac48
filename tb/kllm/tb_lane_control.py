"""Runs inside the simulator, started by test_lane_control.py: jobs through KllmLaneControl."""

import cocotb

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Followed, block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in vectors}


class Jobs(Followed):
    """Ends each job in the cycle after its ``info`` was taken, unless ``holds``."""

    holds = False

    def __init__(self, which="") -> None:
        self.loaded = params["loaded"][which]
        words = {name: WORDS[which + name] for name in ("job", "a", "w", "x", "step", "info")}
        words |= {"codebook": [], "packet": []}
        packets = {name: [len(each)] for name, each in words.items()}
        super().__init__(words, packets=packets, cuts=range(3, 200, 17))

    def begin(self, bench) -> None:
        bench.dut.loaded.value = self.loaded
        self.is_taken = False

    def sample(self, bench) -> None:
        self.is_taken = any(bench.transfers(["info"]))

    def drive(self, bench) -> None:
        bench.dut.done.value = self.is_taken and not self.holds

    def check_timing(self, flow, packets=None) -> None:
        """A step per cycle from job to job, while no job has a fault."""
        count, step = params["clean_steps"], flow.cycles["step"]
        assert step[:count] == list(range(step[0], step[0] + count))
        last, timing = step[params["first_steps"] - 1], block_timing()
        assert last - flow.cycles["a"][params["first_beats"] - 1] == timing.latency
        assert flow.cycles["info"][0] - last == timing.delay("from a job's last step to info")


contract = Jobs()
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def refused_jobs_of_many_outliers(dut):
    """All of their words are taken, and the job after them is right."""
    jobs = Jobs("long_")
    await jobs.replay(await jobs.started(dut))


@cocotb.test()
@cocotb.parametrize(which=["nothing_", "integer_"])
async def jobs_without_their_codebook(dut, which):
    """Refused, with all their words taken, whatever else may be loaded."""
    jobs = Jobs(which)
    await jobs.replay(await jobs.started(dut), p_stall=0.3)


@cocotb.test()
async def packet_waits_for_the_end_of_jobs(dut):
    """A packet passes when no reported job is left; the jobs after it wait."""
    jobs = Jobs()
    bench, jobs.holds = await jobs.started(dut), True
    offers = {name: WORDS[name] for name in ("job", "a", "w", "x")}
    takes = {"packet": None, "step": None, "info": None}
    first = await bench.run(offers, takes, stop_at=params["first_steps"] + 3)
    assert first.words["info"], "no job was reported"
    held = await bench.run({"codebook": WORDS["codebook"]}, takes, stop_at=60)
    assert not held.words["packet"]
    jobs.holds = False
    await jobs.restart(bench)
    flow = await bench.run({"codebook": WORDS["codebook"]}, {"packet": len(WORDS["codebook"])})
    flow.check("packet", WORDS["codebook"])
    await jobs.replay(bench)


@cocotb.test()
async def packets_between_jobs(dut):
    """A word per cycle, and no ``info``; the jobs after it are right, and those offered with it."""
    bench, packet = await contract.started(dut), WORDS["codebook"]
    await contract.replay(bench)
    for _ in range(2):
        flow = await bench.run({"codebook": packet}, {"packet": len(packet)})
        flow.check("packet", packet)
        cycles = flow.cycles["packet"]
        assert cycles == list(range(cycles[0], cycles[0] + len(packet)))
    await contract.replay(bench)
    offers = {name: WORDS[name] for name in bench.sources}
    takes = {name: len(WORDS[name]) for name in ("step", "info")} | {"packet": len(packet)}
    for p_stall in (0.0, 0.5):
        flow = await bench.run(offers, takes, p_stall=p_stall)
        for name in takes:
            flow.check(name, WORDS["codebook" if name == "packet" else name])
