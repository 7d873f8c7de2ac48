"""Runs inside the simulator, started by test_row_reader.py: walks on a memory, and other rows."""

import cocotb

from tb.bench import Bench, config, params
from tb.contract import block_timing
from tb.kllm.support.answers import Answers

MEMORY, OTHERS = params["memory"], params["others"]
WALKS, ROWS = params["walks"], params["rows"]
SOURCES, SINKS = ("walk", "a_row", "i"), ("a_request", "o")
TIMING = block_timing()


async def replay(bench, walks, others=(), delay=3, at_random=True, **flow):
    """The walks with these numbers, with ``others`` offered at the same time.

    Rows of each kind must come in order.
    """
    rows = [row for n in walks for row in ROWS[n]]
    clients = {"a_request": ("a_row", lambda word: MEMORY[word % len(MEMORY)])}
    answers = Answers(bench, clients, delay, random=at_random)
    offers = {"walk": [WALKS[n] for n in walks], "i": list(others), **answers.offers}
    takes = {"a_request": len(rows), "o": len(rows) + len(others)}
    result = await bench.run(offers, takes, **flow)
    answers.stop()
    if flow.get("stop_at") is None:
        result.check("a_request", rows)
        foreign = set(others)
        result.words["o"].sort(key=lambda word: word in foreign)  # stable: each kind in order
        result.check("o", [*(MEMORY[row % len(MEMORY)] for row in rows), *others], what="row")
    return result


async def started(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await started(dut)
    flow = {"p_idle": p_idle, "p_stall": p_stall}
    await replay(bench, range(8), **flow)
    await replay(bench, (), OTHERS, **flow)
    await replay(bench, range(8, len(WALKS)), OTHERS, delay=9, **flow)


@cocotb.test()
async def late_ready(dut):
    await replay(await started(dut), range(6), OTHERS, late_ready=True)


@cocotb.test()
async def slow_memory(dut):
    """All places on order: no more than ``depth`` requests before the first answer."""
    bench = await started(dut)
    flow = await replay(bench, [len(WALKS) - 1], delay=config.depth + 9, at_random=False)
    first = flow.cycles["a_row"][0]
    assert sum(cycle < first for cycle in flow.cycles["a_request"]) == config.depth


@cocotb.test()
async def full_rate(dut):
    bench = await started(dut)
    long = len(WALKS) - 1
    delay = TIMING.delay("from a_request to a_row, the most at full rate")
    if delay:
        flow = await replay(bench, [long], delay=delay, at_random=False)
        first = TIMING.delay("from walk to the first request")
        count = len(ROWS[long])
        assert flow.cycles["a_request"] == list(range(first, first + count))
        assert flow.cycles["o"] == [cycle + TIMING.latency for cycle in flow.cycles["a_row"]]
    flow = await replay(bench, (), OTHERS)
    delay = TIMING.delay("from i to o")
    assert flow.cycles["o"] == [cycle + delay for cycle in flow.cycles["i"]]
    if config.depth > 2:
        assert flow.cycles["i"] == list(range(len(OTHERS)))


@cocotb.test()
async def longest_walks(dut):
    """Every bit of the number of a step is used, and of that of a token."""
    words = params["longest"]
    rows = [row for walk in params["longest_rows"] for row in walk]
    bench = await started(dut)
    answers = Answers(bench, {"a_request": ("a_row", lambda row: MEMORY[row % len(MEMORY)])}, 1)
    takes = {"a_request": len(rows), "o": len(rows)}
    result = await bench.run({"walk": words, **answers.offers}, takes)
    answers.stop()
    result.check("a_request", rows)
    result.check("o", [MEMORY[row % len(MEMORY)] for row in rows], what="row")


@cocotb.test()
async def reset_in_mid_walk(dut):
    bench = await started(dut)
    for cut in range(1, 60, 5):
        await replay(bench, range(len(WALKS)), delay=5, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
        await replay(bench, [cut % len(WALKS)], OTHERS[:3])
