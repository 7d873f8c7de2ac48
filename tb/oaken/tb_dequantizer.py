"""Runs inside the simulator: beats through OakenInlierDequantizer or OakenOutlierDequantizer."""

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, config, vectors
from tb.contract import block_timing

WORDS_I, WORDS_O = unpack_ints(vectors["i"]), unpack_ints(vectors["o"])


async def replay(bench, words=None, **flow):
    """Send the first ``words`` beats, all by default; compare every word and tag."""
    offered = WORDS_I[:words]
    result = await bench.run({"i": offered}, {"o": len(offered)}, **flow)
    for n, (got, golden) in enumerate(zip(result.words["o"], WORDS_O, strict=False)):
        for k in range(config.lanes):
            lane, wanted = got >> 16 * k & 0xFFFF, golden >> 16 * k & 0xFFFF
            assert lane == wanted, f"beat {n} lane {k}: got {lane:#06x}, golden {wanted:#06x}"
        assert got == golden, f"beat {n}: the tag"
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await Bench.started(dut)
    await replay(bench, 120, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    bench = await Bench.started(dut)
    flow = await replay(bench)
    assert flow.cycles["i"] == list(range(len(WORDS_I)))
    assert flow.cycles["o"] == [block_timing().latency + n for n in range(len(WORDS_I))]


@cocotb.test()
async def reset_forgets_beats_on_their_way(dut):
    bench = await Bench.started(dut)
    await bench.cut_off({"i": WORDS_I}, {"o": len(WORDS_I)}, range(1, 12), p_stall=0.6)
    await replay(bench, 20)
