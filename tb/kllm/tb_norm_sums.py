"""Runs inside the simulator, started by test_norm_sums.py: tokens to exact sums."""

from itertools import accumulate

import cocotb

from tb.bench import params
from tb.contract import Contract, block_timing

PHASES = params["phases"]  # per codebook: its packet and the words of each job
STREAMS = ("job", "i", "x", "token", "value")


class Jobs(Contract):
    """Some jobs of a phase, with its codebook."""

    def __init__(self, phase, chosen) -> None:
        self.codebook, self.jobs = phase["codebook"], [phase["jobs"][n] for n in chosen]
        self.is_timed = not any(phase["of_mask"][n] for n in chosen)
        words = {name: [word for job in self.jobs for word in job[name]] for name in STREAMS}
        packets = {
            name: list(accumulate(len(job[name]) for job in self.jobs)) for name in STREAMS
        }  # fmt: skip
        words["codebook"], packets["codebook"] = [], [0] * len(self.jobs)
        super().__init__(words, packets=packets, slow=0.9, cuts=range(1, 120, 7))

    async def enter(self, bench, p_idle=0.0) -> None:
        await bench.run({"codebook": self.codebook}, {}, p_idle=p_idle)

    def check_timing(self, flow, packets=None) -> None:
        """Cycle of each job, token and first value, but for outliers that a mask counts."""
        if not self.is_timed:
            return
        timing, jobs, tokens, firsts, taken = block_timing(), [], [], [], 0
        for job in self.jobs[:packets]:
            jobs.append(taken)
            last = taken + max(len(job["i"]), len(job["x"]))
            if job["value"]:
                tokens.append(last + timing.latency)
                firsts.append(tokens[-1] + timing.delay("from token to the first value"))
                taken = last + timing.delay("from a token's last beat to the next job")
            else:
                wait = timing.delay("from a faulty token's last beat to token")
                # Without any word the token itself is the last one.
                tokens.append(last + wait - (last == taken))
                taken = tokens[-1] + 1
        assert flow.cycles["job"] == jobs
        assert flow.cycles["token"] == tokens
        assert flow.cycles["value"][::5] == firsts


def short_jobs(phase, most=24, beats=100):
    return [n for n, job in enumerate(phase["jobs"]) if len(job["i"]) <= beats][:most]


first, *others = (Jobs(phase, short_jobs(phase)) for phase in PHASES)
random_flow, uneven_flow, late_ready, _, reset_in_mid_packet = first.tests(*others)


@cocotb.test()
async def every_job(dut):
    bench = await first.started(dut)
    for phase in PHASES:
        jobs = Jobs(phase, range(len(phase["jobs"])))
        await jobs.enter(bench)
        await jobs.replay(bench)


@cocotb.test()
async def full_rate(dut):
    bench, seen = await first.started(dut), set()
    for phase in PHASES:
        jobs = Jobs(phase, [n for n, of_mask in enumerate(phase["of_mask"]) if not of_mask])
        await jobs.enter(bench)
        jobs.check_timing(await jobs.replay(bench))
        seen |= {bool(job["value"]) for job in jobs.jobs}
    assert seen == {False, True}
