"""Runs inside the simulator, started by test_lane_sparse.py: packets through KllmLaneSparse."""

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, config, params, vectors
from tb.contract import block_timing
from tb.index.support.two_sets import two_set_cycles

LENGTHS = params["lengths"]  # words of each packet
WORDS, BOOKS = (unpack_ints(vectors[name]) for name in ("i", "codebook_b"))
SUMS = [unpack_ints(vectors[f"o{n}"]) for n in range(len(BOOKS))]
FLOWS = [(p_idle, p_stall) for p_idle in (0.0, 0.5) for p_stall in (0.0, 0.5, 0.9)]


async def replay(bench, packets=None, book=0, **flow):
    lengths = LENGTHS[:packets]
    count = len(lengths) * config.columns
    result = await bench.run({"i": WORDS[: sum(lengths)]}, {"o": count}, **flow)
    result.check("o", SUMS[book][:count], what="sum")
    return result


async def started(dut, book=0):
    dut.codebook_b.value = BOOKS[book]
    return await Bench.started(dut)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    """Each flow with a codebook of its own."""
    book = FLOWS.index((p_idle, p_stall))
    await replay(await started(dut, book), book=book, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    await replay(await started(dut), late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """Every transfer in the cycle that the contract gives; adding up overlaps the output."""
    flow = await replay(await started(dut))
    i, o = two_set_cycles((words, config.columns) for words in LENGTHS)
    assert flow.cycles["i"] == i
    assert flow.cycles["o"] == o
    assert o[0] - i[LENGTHS[0] - 1] == block_timing().latency


@cocotb.test()
async def reset_in_mid_packet(dut):
    bench = await started(dut)
    for cut in range(1, 30, 3):
        await bench.run({"i": WORDS}, {"o": len(SUMS[0])}, p_stall=0.5, stop_at=cut)
        await bench.reset(1)
        if cut % 2:
            await bench.run({}, {})  # no sum comes out
        await replay(bench, packets=4)
