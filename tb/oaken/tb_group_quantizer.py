"""Runs inside the simulator: scans and vectors through a GroupQuantizer.

Started by test_inlier_quantizer.py and test_outlier_quantizer.py.
"""

import cocotb

from tb.bench import Bench, config, params, vectors
from tb.words import unpack_ints

SCAN, WORDS_I, SCALE, WORDS_O = (unpack_ints(vectors[n]) for n in ("scan", "i", "scale", "o"))
# Of the first so many vectors: words on scan, i (and o), scale.
COUNTS = vectors["counts"].tolist()


async def replay(bench, count=None, **flow):
    """Send the first ``count`` vectors, all by default; compare every scale and every beat."""
    scan, beats, kept = COUNTS[len(COUNTS) - 1 if count is None else count]
    result = await bench.run(
        {"scan": SCAN[:scan], "i": WORDS_I[:beats]}, {"scale": kept, "o": beats},
        **flow,
    )  # fmt: skip
    for n, (got, golden) in enumerate(zip(result.words["scale"], SCALE, strict=False)):
        assert got == golden, f"scale {n}: got {got:#x}, golden {golden:#x}"
    for n, (got, golden) in enumerate(zip(result.words["o"], WORDS_O, strict=False)):
        assert got == golden, f"beat {n} ({WORDS_I[n]:#x}): got {got:#x}, golden {golden:#x}"
    return result


def make_bench(dut):
    return Bench(dut, sources=("scan", "i"), sinks=("scale", "o"))


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = make_bench(dut)
    await bench.reset()
    await replay(bench, 50, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def one_side_slow(dut):
    """Scales stall what follows; the second pass stalls the first, and neither loses a word."""
    bench = make_bench(dut)
    for slow in ("scale", "o"):
        await bench.reset()
        stall = {"scale": 0.0, "o": 0.0, slow: 0.9}
        await replay(bench, 40, p_idle={"scan": 0.0, "i": 0.0}, p_stall=stall, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """Every vector. Both passes go on at a beat per cycle: the second ends when it must."""
    bench = make_bench(dut)
    await bench.reset()
    flow = await replay(bench)
    if config.vectors >= len(SCALE):
        assert flow.cycles["scan"] == list(range(len(SCAN)))
    last = len(SCAN) + params["scale_latency"] + params["longest"]
    assert flow.cycles["i"][-1] <= last, f"{flow.cycles['i'][-1]} cycles, at most {last}"
    # What one vector takes alone: its scan, its scales, its beats.
    assert flow.cycles["i"][0] == COUNTS[1][0] - 1 + params["scale_latency"]
    assert flow.cycles["o"][0] - flow.cycles["i"][0] == params["latency"]


@cocotb.test()
async def reset_forgets_vectors(dut):
    bench = make_bench(dut)
    await bench.reset()
    for cut in (*range(1, 24), 40, 60):
        offers = {"scan": SCAN, "i": WORDS_I}
        await bench.run(offers, {"scale": 999, "o": 9999}, p_stall=0.4, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
    await replay(bench, 10)
