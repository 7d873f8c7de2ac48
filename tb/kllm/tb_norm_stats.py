"""Runs inside the simulator, started by test_norm_stats.py: tokens through KllmNormStats."""

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, params, vectors
from tb.contract import block_timing

PHASES = params["phases"]  # (beats, outliers, layer_norm, clean) of each job, per codebook
WORDS = {name: unpack_ints(vectors[name]) for name in vectors}
SOURCES = ("codebook", "job", "i", "x")
TIMING = block_timing()
REDUCE_CYCLES = TIMING.delay("from a token's last beat to the next job")
FLOAT_CYCLES = [cycles - REDUCE_CYCLES for cycles in (TIMING.latency, TIMING.latency_max)]


def words_of(phase, chosen):
    """(offers, results) of the jobs with these numbers."""
    offers, results = {"job": [], "i": [], "x": []}, []
    i = x = 0
    for n, (cut, outliers, _, _) in enumerate(PHASES[phase]):
        if n in chosen:
            offers["job"].append(WORDS[f"{phase}.job"][n])
            offers["i"] += WORDS[f"{phase}.i"][i : i + cut]
            offers["x"] += WORDS[f"{phase}.x"][x : x + outliers]
            results.append((n, WORDS[f"{phase}.o"][n]))
        i, x = i + cut, x + outliers
    return offers, results


async def replay(bench, phase, chosen=None, load=True, **flow):
    """The phase's codebook, then its jobs; every result is compared."""
    if load:
        await bench.run({"codebook": WORDS.get(f"{phase}.codebook", [])}, {}, **flow)
    chosen = range(len(PHASES[phase])) if chosen is None else chosen
    offers, results = words_of(phase, set(chosen))
    result = await bench.run(offers, {"o": len(results)}, **flow)
    for (n, golden), got in zip(results, result.words["o"], strict=True):
        assert got == golden, f"{phase}: job {n} {PHASES[phase][n]}: {got:#x}, golden {golden:#x}"
    return result


def short_jobs(phase, most=40, beats=120):
    return [n for n, (cut, *_) in enumerate(PHASES[phase]) if cut <= beats][:most]


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = Bench(dut, sources=SOURCES, sinks=("o",))
    await bench.reset()
    for phase in PHASES:
        await replay(bench, phase, short_jobs(phase), p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def every_job(dut):
    bench = Bench(dut, sources=SOURCES, sinks=("o",))
    await bench.reset()
    for phase in PHASES:
        await replay(bench, phase)


@cocotb.test()
async def streams_wait_for_each_other(dut):
    """One of the three inputs is slow; a result that waits stalls nothing that it need not."""
    bench = Bench(dut, sources=SOURCES, sinks=("o",))
    await bench.reset()
    for phase in ("trained", "above", "again"):
        for slow in ("job", "i", "x"):
            idle = dict.fromkeys(SOURCES, 0.0) | {slow: 0.9}
            await replay(bench, phase, short_jobs(phase, 8), p_idle=idle, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """Cycle of every job and result, from the contract."""
    bench = Bench(dut, sources=SOURCES, sinks=("o",))
    await bench.reset()
    for phase, jobs in PHASES.items():
        clean = [n for n, job in enumerate(jobs) if job[3]]
        if not clean:
            continue
        flow = await replay(bench, phase, clean)
        job_cycle, result_cycle, idle_from, taken = [], [], 0, 0
        for n in clean:
            cut, outliers, layer_norm, _ = jobs[n]
            job_cycle.append(taken)
            last = taken + max(cut, outliers)
            # conversions end a token: before them it waits for the float part
            taken = max(last + REDUCE_CYCLES, idle_from + 6)
            result_cycle.append(taken + FLOAT_CYCLES[bool(layer_norm)])
            idle_from = result_cycle[-1] + 1
        assert flow.cycles["job"] == job_cycle, phase
        assert flow.cycles["o"] == result_cycle, phase


@cocotb.test()
async def codebook_waits_for_the_end_of_a_token(dut):
    """Offered in mid-token, a packet changes the jobs that follow and no other."""
    bench = Bench(dut, sources=SOURCES, sinks=("o",))
    await bench.reset()
    await replay(bench, "trained", [])
    jobs = [n for n in short_jobs("trained", 200) if PHASES["trained"][n][3]]
    jobs = [n for n in jobs if PHASES["trained"][n][0] > 3][:6]
    for n, phase in zip(jobs, ("ones", "short", "again") * 2, strict=False):
        offers, results = words_of("trained", {n})
        await bench.run({"job": offers["job"], "i": offers["i"][:2]}, {})
        then, after = words_of(phase, set(short_jobs(phase, 3)))
        flow = await bench.run(
            {
                "codebook": WORDS[f"{phase}.codebook"],
                "job": then["job"],
                "i": offers["i"][2:] + then["i"],
                "x": offers["x"] + then["x"],
            },
            {"o": 1 + len(after)},
        )
        assert flow.words["o"] == [word for _, word in results + after], (n, phase)
        await replay(bench, "trained", [])


@cocotb.test()
async def reset_in_mid_token(dut):
    """Reset forgets tokens in flight and the codebook."""
    bench = Bench(dut, sources=SOURCES, sinks=("o",))
    await bench.reset()
    jobs = short_jobs("trained", 6)
    for cut in range(1, 200, 11):
        await replay(bench, "trained", [])
        offers, results = words_of("trained", set(jobs))
        await bench.run(offers, {"o": len(results)}, p_stall=0.3, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
        await replay(bench, "none", [0, 1])
        packet = WORDS["trained.codebook"]
        await bench.run({"codebook": packet}, {}, stop_at=cut % len(packet))
        await bench.reset(1)
        await replay(bench, "again", jobs[:2])
