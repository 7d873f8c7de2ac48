"""Runs inside the simulator, started by test_orizuru_unit.py: leaves through KllmOrizuruUnit."""

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, vectors
from tb.contract import block_timing

WORDS_I, WORDS_O, MASK = (unpack_ints(vectors[name]) for name in ("i", "o", "mask"))


async def replay(bench, words=None, **flow):
    """Send the first ``words`` sets, all by default; compare both winners of each.

    A tree without a leaf is compared by its ``valid`` alone.
    """
    offered = WORDS_I[:words]
    result = await bench.run({"i": offered}, {"o": len(offered)}, **flow)
    for n, (got, golden) in enumerate(zip(result.words["o"], WORDS_O, strict=False)):
        assert got & MASK[n] == golden & MASK[n], (
            f"set {n} ({WORDS_I[n]:#x}): got {got:#x}, golden {golden:#x}"
        )
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await Bench.started(dut)
    await replay(bench, 300, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    """Every set, one per cycle, ``stages`` cycles each."""
    bench = await Bench.started(dut)
    flow = await replay(bench)
    assert flow.cycles["i"] == list(range(len(WORDS_I)))
    assert flow.cycles["o"] == [block_timing().latency + n for n in range(len(WORDS_I))]


@cocotb.test()
async def reset_forgets_sets_on_their_way(dut):
    bench = await Bench.started(dut)
    await bench.cut_off({"i": WORDS_I}, {"o": len(WORDS_I)}, range(1, 8), p_stall=0.6)
    await replay(bench, 50)
