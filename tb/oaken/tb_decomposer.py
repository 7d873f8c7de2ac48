"""Runs inside the simulator, started by test_decomposer.py: vectors through OakenDecomposer."""

import cocotb

from tb.bench import Bench, config, vectors
from tb.words import unpack_ints

THRESHOLDS, WORDS_I, WORDS_O = (unpack_ints(vectors[name]) for name in ("thresholds", "i", "o"))
LAST = 1 << 16 * config.lanes
LATENCY = 3
LIMIT = 40_000


async def replay(bench, thresholds=None, **flow):
    """Send the first ``thresholds`` vectors, all by default; compare every beat."""
    thresholds = THRESHOLDS[:thresholds]
    ends = [n for n, word in enumerate(WORDS_I) if word & LAST]
    offered = WORDS_I[: ends[len(thresholds) - 1] + 1]
    result = await bench.run(
        {"i": offered, "thresholds": thresholds}, {"o": len(offered)}, limit=LIMIT, **flow
    )
    for n, (got, golden) in enumerate(zip(result.words["o"], WORDS_O, strict=False)):
        assert got == golden, f"beat {n} ({WORDS_I[n]:#x}): got {got:#x}, golden {golden:#x}"
    return result


def make_bench(dut):
    return Bench(dut, sources=("i", "thresholds"), sinks=("o",))


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = make_bench(dut)
    await bench.reset()
    await replay(bench, 60, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def thresholds_late(dut):
    bench = make_bench(dut)
    await bench.reset()
    await replay(bench, 30, p_idle={"i": 0.0, "thresholds": 0.8}, p_stall=0.3, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """Every vector, a beat per cycle."""
    bench = make_bench(dut)
    await bench.reset()
    flow = await replay(bench)
    assert flow.cycles["i"] == list(range(len(WORDS_I)))
    assert flow.cycles["o"] == [LATENCY + n for n in range(len(WORDS_I))]


@cocotb.test()
async def reset_forgets_vectors(dut):
    bench = make_bench(dut)
    await bench.reset()
    for cut in range(1, 14):
        offers = {"i": WORDS_I, "thresholds": THRESHOLDS}
        await bench.run(offers, {"o": len(WORDS_I)}, p_stall=0.6, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
    await replay(bench, 20)
