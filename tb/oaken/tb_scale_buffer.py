"""Inside the simulator: scale words and requests through OakenScaleBuffer."""

import cocotb

from tb.bench import Bench, config, params, vectors
from tb.contract import block_timing
from tb.words import unpack_ints

SOURCES, SINKS = ("i", "request"), ("o",)
PHASES = {
    phase: {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in (*SOURCES, *SINKS, "mask")}
    for phase in params["phases"]
}


async def replay(bench, phase, **flow):
    words = PHASES[phase]
    offers = {name: words[name] for name in SOURCES}
    result = await bench.run(offers, {"o": len(words["o"])}, **flow)
    for n, (got, golden, mask) in enumerate(
        zip(result.words["o"], words["o"], words["mask"], strict=True)
    ):
        assert got & mask == golden & mask, f"{phase}, word {n}: got {got:#x}, golden {golden:#x}"
    return result


async def new_bench(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.4], p_stall=[0.0, 0.6])
async def random_flow(dut, p_idle, p_stall):
    await replay(await new_bench(dut), "mixed", p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def requests_late(dut):
    """The ring is full again and again."""
    bench = await new_bench(dut)
    await replay(bench, "mixed", p_idle={"request": 0.97, "i": 0.0})


@cocotb.test()
async def words_late(dut):
    bench = await new_bench(dut)
    await replay(bench, "mixed", p_idle={"request": 0.0, "i": 0.8})


@cocotb.test()
async def full_rate(dut):
    """A word in every cycle, also across heads and requests: later words come in meanwhile."""
    bench = await new_bench(dut)
    flow = await replay(bench, "full")
    assert flow.cycles["o"] == [block_timing().latency + n for n in range(len(PHASES["full"]["o"]))]


@cocotb.test()
async def a_ring_full_of_one_request(dut):
    """``depth`` tokens and one more: held, refused; nothing hangs, what follows is right."""
    bench = await new_bench(dut)
    for p_stall in (0.0, 0.5):
        await replay(bench, "edge", p_stall=p_stall)


@cocotb.test()
async def streams_through(dut):
    """One head: more words than the ring holds, without a pause."""
    bench = await new_bench(dut)
    flow = await replay(bench, "through")
    first = block_timing().latency
    assert flow.cycles["o"] == list(range(first, first + len(PHASES["through"]["o"])))
    assert len(PHASES["through"]["i"]) > 2 * config.depth


@cocotb.test()
async def reset_in_mid_request(dut):
    bench = await new_bench(dut)
    words = PHASES["mixed"]
    offers = {name: words[name] for name in SOURCES}
    cuts = (1, 2, 3, 5, 8, 13, 21, 34, 55)
    await bench.cut_off(offers, {"o": len(words["o"])}, cuts, p_stall=0.3)
    await replay(bench, "mixed")
