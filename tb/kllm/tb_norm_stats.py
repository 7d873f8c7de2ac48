"""Runs inside the simulator, started by test_norm_stats.py: tokens through KllmNormStats."""

from itertools import accumulate

import cocotb

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing

PHASES = params["phases"]  # (beats, outliers, layer_norm, clean) of each job, per codebook
WORDS = {name: unpack_ints(vectors[name]) for name in vectors}
TIMING = block_timing()
REDUCE_CYCLES = TIMING.delay("from a token's last beat to the next job")
FLOAT_CYCLES = [cycles - REDUCE_CYCLES for cycles in (TIMING.latency, TIMING.latency_max)]


class Jobs(Contract):
    """The jobs of a phase with these numbers, and its codebook."""

    def __init__(self, phase, chosen) -> None:
        self.codebook, self.jobs = WORDS.get(f"{phase}.codebook", []), []
        words = {name: [] for name in ("codebook", "job", "i", "x", "o")}
        i = x = 0
        for n, job in enumerate(PHASES[phase]):
            beats, outliers, *_ = job
            if n in chosen:
                self.jobs.append(job)
                words["job"].append(WORDS[f"{phase}.job"][n])
                words["i"] += WORDS[f"{phase}.i"][i : i + beats]
                words["x"] += WORDS[f"{phase}.x"][x : x + outliers]
                words["o"].append(WORDS[f"{phase}.o"][n])
            i, x = i + beats, x + outliers
        packets = {name: range(1, len(self.jobs) + 1) for name in ("job", "o")}
        packets["codebook"] = [0] * len(self.jobs)
        packets |= {
            name: list(accumulate(job[k] for job in self.jobs)) for k, name in enumerate("ix")
        }  # fmt: skip
        super().__init__(words, packets=packets, slow=0.9, cuts=range(1, 200, 11))

    async def enter(self, bench, p_idle=0.0) -> None:
        await bench.run({"codebook": self.codebook}, {}, p_idle=p_idle)

    def check_timing(self, flow, packets=None) -> None:
        """Cycle of every job and result, of jobs without faults."""
        job_cycle, result_cycle, idle_from, taken = [], [], 0, 0
        for beats, outliers, layer_norm, clean in self.jobs[:packets]:
            if not clean:
                return
            job_cycle.append(taken)
            last = taken + max(beats, outliers)
            # conversions end a token: before them it waits for the float part
            taken = max(last + REDUCE_CYCLES, idle_from + 6)
            result_cycle.append(taken + FLOAT_CYCLES[bool(layer_norm)])
            idle_from = result_cycle[-1] + 1
        assert flow.cycles["job"] == job_cycle
        assert flow.cycles["o"] == result_cycle


def short_jobs(phase, most=40, beats=120):
    return [n for n, (cut, *_) in enumerate(PHASES[phase]) if cut <= beats][:most]


SHORT = {phase: Jobs(phase, short_jobs(phase)) for phase in PHASES}
none, *others = SHORT.values()
random_flow, uneven_flow, late_ready, _, reset_in_mid_packet = none.tests(*others)


@cocotb.test()
async def every_job(dut):
    bench = await none.started(dut)
    for phase, jobs in PHASES.items():
        every = Jobs(phase, range(len(jobs)))
        await every.enter(bench)
        await every.replay(bench)


@cocotb.test()
async def full_rate(dut):
    bench = await none.started(dut)
    for phase, jobs in PHASES.items():
        clean = Jobs(phase, [n for n, job in enumerate(jobs) if job[3]])
        if clean.jobs:
            await clean.enter(bench)
            clean.check_timing(await clean.replay(bench))


@cocotb.test()
async def codebook_waits_for_the_end_of_a_token(dut):
    """Offered in mid-token, a packet changes the jobs that follow and no other."""
    bench = await none.started(dut)
    await SHORT["trained"].enter(bench)
    jobs = [n for n in short_jobs("trained", 200) if PHASES["trained"][n][3]]
    jobs = [n for n in jobs if PHASES["trained"][n][0] > 3][:6]
    for n, phase in zip(jobs, ("ones", "short", "again") * 2, strict=False):
        one = Jobs("trained", [n]).words
        await bench.run({"job": one["job"], "i": one["i"][:2]}, {})
        then = Jobs(phase, short_jobs(phase, 3)).words
        flow = await bench.run(
            {
                "codebook": WORDS[f"{phase}.codebook"],
                "job": then["job"],
                "i": one["i"][2:] + then["i"],
                "x": one["x"] + then["x"],
            },
            {"o": 1 + len(then["o"])},
        )
        assert flow.words["o"] == one["o"] + then["o"], (n, phase)
        await SHORT["trained"].enter(bench)


@cocotb.test()
async def reset_in_mid_codebook(dut):
    """Reset forgets tokens in flight, half a codebook, and the codebook."""
    bench = await none.started(dut)
    packet = WORDS["trained.codebook"]
    for cut in range(1, 200, 11):
        await SHORT["trained"].enter(bench)
        await SHORT["trained"].interrupt(bench, cut, p_stall=0.3)
        await bench.reset(1)
        await bench.run({}, {})
        await SHORT["none"].replay(bench, 2)
        await bench.run({"codebook": packet}, {}, stop_at=cut % len(packet))
        await bench.reset(1)
        await SHORT["again"].enter(bench)
        await SHORT["again"].replay(bench, 2)
