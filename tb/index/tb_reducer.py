"""Runs inside the simulator, started by test_reducer.py: packets of counts through IndexReducer."""

from itertools import accumulate

import cocotb

from hdl.index.reducer import IndexReducer
from tb.bench import Bench, params, vectors
from tb.words import unpack_ints

WORDS_I, WORDS_O = unpack_ints(vectors["i"]), unpack_ints(vectors["o"])
ENDS = list(accumulate(params["beats"]))  # beats up to the end of each packet


async def replay(bench, packets=None, **flow):
    """Send the first ``packets`` packets, all by default; compare every sum."""
    packets = len(ENDS) if packets is None else packets
    offers = {"i": WORDS_I[: ENDS[packets - 1]]}
    result = await bench.run(offers, {"o": packets}, **flow)
    result.check("o", WORDS_O[:packets], what="packet")
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await Bench.started(dut)
    await replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    """A beat per cycle, packets back to back, each sum LATENCY cycles after its last beat."""
    bench = await Bench.started(dut)
    flow = await replay(bench)
    assert flow.cycles["i"] == list(range(len(WORDS_I)))
    assert flow.cycles["o"] == [end - 1 + IndexReducer.LATENCY for end in ENDS]


@cocotb.test()
async def reset_in_mid_packet(dut):
    bench = await Bench.started(dut)
    for cut in range(1, 16):
        await bench.run({"i": WORDS_I}, {"o": len(ENDS)}, p_stall=0.5, stop_at=cut)
        await bench.reset(1)
        if cut % 2:
            await bench.run({}, {})  # nothing of it comes out
        await replay(bench, packets=4)
    await replay(bench)
