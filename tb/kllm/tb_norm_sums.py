"""Runs inside the simulator, started by test_norm_sums.py: tokens to exact sums."""

import cocotb

from tb.bench import Bench, params
from tb.contract import block_timing

PHASES = params["phases"]  # per codebook: its packet and the words of each job
INPUTS, OUTPUTS = ("job", "i", "x"), ("token", "value")
TIMING = block_timing()


async def replay(bench, phase, chosen=None, load=True, **flow):
    """The phase's codebook, then its jobs; every token and every sum is compared."""
    if load:
        await bench.run({"codebook": phase["codebook"]}, {}, **flow)
    jobs = phase["jobs"] if chosen is None else [phase["jobs"][n] for n in chosen]
    offers = {name: [word for job in jobs for word in job[name]] for name in INPUTS}
    takes = {name: [word for job in jobs for word in job[name]] for name in OUTPUTS}
    counts = {name: len(words) for name, words in takes.items()}
    result = await bench.run(offers, counts, **flow)
    if flow.get("stop_at") is None:
        for name in OUTPUTS:
            result.check(name, takes[name])
    return result


async def started(dut):
    return await Bench.started(dut, sources=("codebook", *INPUTS), sinks=OUTPUTS)


def short_jobs(phase, most=24, beats=100):
    return [n for n, job in enumerate(phase["jobs"]) if len(job["i"]) <= beats][:most]


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await started(dut)
    for phase in PHASES:
        await replay(bench, phase, short_jobs(phase), p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def every_job(dut):
    bench = await started(dut)
    for phase in PHASES:
        await replay(bench, phase)


@cocotb.test()
async def uneven_flow(dut):
    """One of the inputs is slow, and the sinks wait for valid."""
    bench = await started(dut)
    for slow in INPUTS:
        idle = dict.fromkeys(("codebook", *INPUTS), 0.0) | {slow: 0.9}
        await replay(bench, PHASES[1], short_jobs(PHASES[1], 8), p_idle=idle, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """Cycle of each job, token and first value, from the timing."""
    bench = await started(dut)
    seen = set()
    for phase in PHASES:
        chosen = [n for n in range(len(phase["jobs"])) if not phase["of_mask"][n]]
        flow = await replay(bench, phase, chosen)
        jobs, tokens, firsts, taken = [], [], [], 0
        for n in chosen:
            job = phase["jobs"][n]
            jobs.append(taken)
            last = taken + max(len(job["i"]), len(job["x"]))
            if job["value"]:
                tokens.append(last + TIMING.latency)
                firsts.append(tokens[-1] + TIMING.delay("from token to the first value"))
                taken = last + TIMING.delay("from a token's last beat to the next job")
            else:
                wait = TIMING.delay("from a faulty token's last beat to token")
                # Without any word the token itself is the last one.
                tokens.append(last + wait - (last == taken))
                taken = tokens[-1] + 1
            seen.add(bool(job["value"]))
        assert flow.cycles["job"] == jobs
        assert flow.cycles["token"] == tokens
        assert flow.cycles["value"][::5] == firsts
    assert seen == {False, True}


@cocotb.test()
async def reset_in_mid_token(dut):
    """Reset forgets tokens in flight and the codebook."""
    bench = await started(dut)
    jobs = short_jobs(PHASES[1], 6)
    for cut in range(1, 120, 7):
        await replay(bench, PHASES[1], [])
        await replay(bench, PHASES[1], jobs, load=False, p_stall=0.3, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
        await replay(bench, PHASES[0], [0, 1])
        await bench.reset(1)
        await replay(bench, PHASES[-1], short_jobs(PHASES[-1], 2))
