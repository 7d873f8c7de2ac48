"""Runs inside the simulator, started by test_zero_remove.py: blocks through OakenZeroRemove."""

import cocotb

from tb.bench import Bench, config, vectors
from tb.words import unpack_ints

WORDS_I, WORDS_O = unpack_ints(vectors["i"]), unpack_ints(vectors["o"])
BEATS = config.block // config.lanes
LATENCY = 3
LIMIT = 40_000


async def replay(bench, blocks=None, **flow):
    """Send the first ``blocks`` blocks, all by default; compare every word."""
    blocks = len(WORDS_O) if blocks is None else blocks
    offered = WORDS_I[: blocks * BEATS]
    result = await bench.run({"i": offered}, {"o": blocks}, limit=LIMIT, **flow)
    result.check("o", WORDS_O[:blocks], what="block")
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await Bench.started(dut)
    await replay(bench, 100, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    """Every block, a beat per cycle."""
    bench = await Bench.started(dut)
    flow = await replay(bench)
    assert flow.cycles["i"] == list(range(len(WORDS_I)))
    assert flow.cycles["o"] == [BEATS * (n + 1) - 1 + LATENCY for n in range(len(WORDS_O))]


@cocotb.test()
async def reset_forgets_blocks(dut):
    bench = await Bench.started(dut)
    await bench.cut_off({"i": WORDS_I}, {"o": len(WORDS_O)}, range(1, 20), p_stall=0.6)
    await replay(bench, 30)
