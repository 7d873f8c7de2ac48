"""Runs inside the simulator, started by test_result_rows.py: walks, and words for their rows."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, params
from tb.contract import block_timing

WALKS = params["walks"]
SOURCES, SINKS = ("walk", "i", "element"), ("write",)
TIMING = block_timing()


async def replay(bench, walks=WALKS, **flow):
    """All walks and all words at the same time: each word waits for its walk."""
    offers = {name: [] for name in SOURCES}
    for walk in walks:
        offers["walk"].append(walk["walk"])
        offers[walk["source"]] += walk["words"]
    rows = [row for walk in walks for row in walk["write"]]
    result = await bench.run(offers, {"write": len(rows)}, **flow)
    if flow.get("stop_at") is None:
        result.check("write", rows, what="row")
        await ReadOnly()
        assert bench.dut.idle.value == 1
        await FallingEdge(bench.dut.clk)
    return result


async def started(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    await replay(await started(dut), p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    await replay(await started(dut), late_ready=True)


@cocotb.test()
async def idle_until_the_last_row_was_taken(dut):
    bench = await started(dut)
    walk = WALKS[0]
    offers = {"walk": [walk["walk"]], walk["source"]: walk["words"]}
    await bench.run(offers, {"write": None}, p_stall=1.0, stop_at=200)
    await ReadOnly()
    assert bench.dut.write__valid.value == 1
    assert bench.dut.idle.value == 0


@cocotb.test()
async def full_rate(dut):
    bench = await started(dut)
    for walk in WALKS:
        flow = await replay(bench, [walk])
        count = len(walk["words"])
        first = TIMING.delay("from walk to the first word")
        assert flow.cycles[walk["source"]] == list(range(first, first + count))
        row = int(TIMING.interval)
        if walk["source"] == "element":
            row = TIMING.delay("per row of elements")
        ends = range(first + row - 1, first + count, row)
        assert flow.cycles["write"] == [end + TIMING.latency for end in ends]


@cocotb.test()
async def words_of_the_next_row_while_a_row_waits(dut):
    """No row is taken: the words of two rows are, but for the last word of the second row."""
    bench = await started(dut)
    for walk in WALKS:
        if len(walk["write"]) > 1:
            source = walk["source"]
            row = int(TIMING.interval)
            if source == "element":
                row = TIMING.delay("per row of elements")
            offers = {"walk": [walk["walk"]], source: walk["words"]}
            flow = await bench.run(offers, {"write": None}, p_stall=1.0, stop_at=60)
            assert flow.sent[source] == 2 * row - 1
            await bench.reset(1)


@cocotb.test()
async def longest_walks(dut):
    await replay(await started(dut), params["longest"])


@cocotb.test()
async def reset_in_mid_row(dut):
    bench = await started(dut)
    for cut in range(1, 60, 3):
        await replay(bench, WALKS[cut % 5 :], stop_at=cut, p_stall=0.3)
        await bench.reset(1)
        await bench.run({}, {})
        await replay(bench, WALKS[cut % 7 : cut % 7 + 3])
