"""Runs inside the simulator, started by test_quant_engine.py: requests to OakenQuantEngine."""

import cocotb

from tb.bench import Bench, config, params, vectors
from tb.words import unpack_ints

SOURCES, SINKS = ("request", "i"), ("header", "dense", "sparse")
WORDS = {name: unpack_ints(vectors[name]) for name in (*SOURCES, *SINKS)}
# Words of each stream in the first so many jobs.
COUNTS = [dict(zip(WORDS, row, strict=True)) for row in vectors["counts"].tolist()]


async def replay(bench, jobs=None, **flow):
    """Send the first ``jobs`` jobs, all by default; compare every word of every sink."""
    counts = COUNTS[len(COUNTS) - 1 if jobs is None else jobs]
    result = await bench.run(
        {name: WORDS[name][: counts[name]] for name in SOURCES},
        {name: counts[name] for name in SINKS},
        settle=40,
        **flow,
    )
    for name in SINKS:
        for n, (got, golden) in enumerate(zip(result.words[name], WORDS[name], strict=False)):
            assert got == golden, f"{name} {n}: got {got:#x}, golden {golden:#x}"
    check_order(result, len(COUNTS) if jobs is None else jobs + 1)
    return result


def check_order(flow, until):
    """A header is taken before its data, if it is taken at once."""
    headers = flow.cycles["header"]
    for job in range(1, until):
        before, after = COUNTS[job - 1], COUNTS[job]
        for name in ("dense", "sparse"):
            if after[name] > before[name] and params["ready"]:
                assert headers[before["header"]] <= flow.cycles[name][before[name]], name


def make_bench(dut):
    return Bench(dut, sources=SOURCES, sinks=SINKS)


def first_jobs(beats):
    """Jobs that have no more than so many beats, and one at least."""
    return max(1, sum(1 for counts in COUNTS[1:] if counts["i"] <= beats))


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = make_bench(dut)
    await bench.reset()
    params["ready"] = p_stall == 0.0
    await replay(bench, first_jobs(1500 if p_stall < 0.9 else 500), p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(slow=[*SOURCES, *SINKS])
async def one_side_slow(dut, slow):
    """Requests or elements come late, or one sink takes a word now and then: only once valid."""
    bench = make_bench(dut)
    await bench.reset()
    params["ready"] = False
    idle = {name: 0.9 if name == slow else 0.0 for name in SOURCES}
    stall = {name: 0.9 if name == slow else 0.0 for name in SINKS}
    jobs = first_jobs(700)
    await replay(bench, jobs, p_idle=idle, p_stall=stall, late_ready=slow in SINKS)


@cocotb.test()
async def full_rate(dut):
    """Every job, right and wrong: a beat per cycle goes in from the first to the last."""
    bench = make_bench(dut)
    await bench.reset()
    params["ready"] = True
    flow = await replay(bench)
    assert flow.cycles["i"] == list(range(len(WORDS["i"])))
    alone = COUNTS[1]
    assert flow.cycles["header"][0] - (alone["i"] - 1) == params["header_latency"]
    assert flow.cycles["dense"][0] - (alone["i"] - 1) == params["dense_latency"]
    last = len(WORDS["i"]) + params["dense_latency"] + config.beats_max
    assert flow.cycles["dense"][-1] <= last


@cocotb.test()
async def reset_forgets_vectors(dut):
    bench = make_bench(dut)
    await bench.reset()
    params["ready"] = True
    takes = {name: COUNTS[-1][name] for name in SINKS}
    offers = {name: WORDS[name] for name in SOURCES}
    for cut in (*range(1, 9), 15, 22, 29, 36, 43, 50, 77, 120, 250):
        await bench.run(offers, takes, p_stall=0.2, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {}, settle=20)
    await replay(bench, first_jobs(200))
