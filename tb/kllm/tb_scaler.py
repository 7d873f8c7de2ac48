"""Runs inside the simulator, started by test_scaler.py: sums and scales through KllmScaler."""

import cocotb

from tb.bench import Bench, config, vectors
from tb.words import unpack_ints

WORDS_I, WORDS_O = unpack_ints(vectors["i"]), unpack_ints(vectors["o"])


async def replay(bench, words=None, **flow):
    """Send the first ``words`` words, all by default; compare y, overflow and tag of each."""
    offered = WORDS_I[:words]
    result = await bench.run({"i": offered}, {"o": len(offered)}, **flow)
    result.check("o", WORDS_O[: len(offered)], sent=offered)
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await Bench.started(dut)
    await replay(bench, 600, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    """Every vector, a word per cycle, ``stages`` cycles each."""
    bench = await Bench.started(dut)
    flow = await replay(bench)
    assert flow.cycles["i"] == list(range(len(WORDS_I)))
    assert flow.cycles["o"] == [config.stages + n for n in range(len(WORDS_I))]


@cocotb.test()
async def reset_forgets_words_on_their_way(dut):
    bench = await Bench.started(dut)
    await bench.cut_off({"i": WORDS_I}, {"o": len(WORDS_I)}, range(1, 14), p_stall=0.6)
    await replay(bench, 50)
