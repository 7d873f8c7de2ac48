"""Inside the simulator: requests and transfers through OakenZeroInsert."""

import cocotb

from tb.bench import Bench, params, vectors
from tb.contract import block_timing
from tb.words import unpack_ints

SOURCES, SINKS = ("request", "sparse"), ("o",)
PHASES = {
    phase: {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in (*SOURCES, *SINKS)}
    for phase in params["phases"]
}


async def replay(bench, phase, **flow):
    """Every request of the phase; each beat is compared."""
    words = PHASES[phase]
    offers = {name: words[name] for name in SOURCES}
    result = await bench.run(offers, {"o": len(words["o"])}, **flow)
    result.check("o", words["o"], what=f"{phase}, beat")
    return result


async def new_bench(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.4], p_stall=[0.0, 0.6])
async def sound_and_damaged(dut, p_idle, p_stall):
    await replay(await new_bench(dut), "mixed", p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def requests_late(dut):
    """Words wait for their request."""
    bench = await new_bench(dut)
    await replay(bench, "mixed", p_idle={"request": 0.98, "sparse": 0.0})


@cocotb.test()
async def words_late(dut):
    bench = await new_bench(dut)
    await replay(bench, "mixed", p_idle={"request": 0.0, "sparse": 0.85})


@cocotb.test()
async def ready_only_after_valid(dut):
    await replay(await new_bench(dut), "mixed", late_ready=True, p_stall=0.3)


@cocotb.test()
async def full_rate(dut):
    """Every beat in the cycle after the one before, also across requests, at any density."""
    if "full" not in PHASES:
        return
    bench = await new_bench(dut)
    flow = await replay(bench, "full")
    taken = flow.cycles["o"]
    assert taken == list(range(taken[0], taken[0] + len(taken)))
    assert taken[0] == block_timing().latency


@cocotb.test()
async def skipping(dut):
    """A block of up to ``lanes`` outliers takes one cycle, unless its bytes are not there."""
    bench = await new_bench(dut)
    flow = await replay(bench, "skip")
    assert flow.cycles["o"][-1] <= params["skip_limit"], flow.cycles["o"][-1]


@cocotb.test()
async def reset_in_mid_transfer(dut):
    bench = await new_bench(dut)
    words = PHASES["mixed"]
    offers = {name: words[name] for name in SOURCES}
    cuts = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
    await bench.cut_off(offers, {"o": len(words["o"])}, cuts, p_stall=0.3)
    await replay(bench, "mixed")
