"""Runs inside the simulator, started by test_slot_fetch.py: walks over slots of a memory."""

import cocotb

from tb.bench import Bench, config, params
from tb.contract import block_timing
from tb.kllm.support.answers import Answers

MEMORY, WALKS, WORDS = params["memory"], params["walks"], params["words"]
SOURCES, SINKS = ("walk", "answer"), ("request", "o_0", "o_1")
TIMING = block_timing()
BOTH = 3  # the walk that wants all words of both slots


def look_up(word):
    return MEMORY[word & 0xFF][word >> 8]


async def replay(bench, walks, delay=3, at_random=True, **flow):
    answers = Answers(bench, {"request": ("answer", look_up)}, delay, random=at_random)
    words = [[word for n in walks for word in WORDS[n][k]] for k in range(2)]
    offers = {"walk": [WALKS[n] for n in walks], **answers.offers}
    takes = {"request": sum(map(len, words)), "o_0": len(words[0]), "o_1": len(words[1])}
    result = await bench.run(offers, takes, **flow)
    answers.stop()
    if flow.get("stop_at") is None:
        for k in range(2):
            result.check(f"o_{k}", words[k])
    return result


async def started(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await started(dut)
    await replay(bench, range(len(WALKS)), delay=6, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(stalled=[0, 1])
async def one_slot_stalls(dut, stalled):
    """Words of the other slot go on; both are complete in the end."""
    bench = await started(dut)
    stall = {"request": 0.0, f"o_{stalled}": 0.97, f"o_{1 - stalled}": 0.0}
    flow = await replay(bench, [BOTH], p_stall=stall)
    assert flow.cycles[f"o_{1 - stalled}"][-1] < flow.cycles[f"o_{stalled}"][-1]


@cocotb.test()
async def late_ready(dut):
    await replay(await started(dut), range(len(WALKS)), late_ready=True)


@cocotb.test()
async def slow_memory(dut):
    """No more than ``depth`` requests of each slot before the first answer."""
    flow = await replay(await started(dut), [BOTH], delay=2 * config.depth + 9, at_random=False)
    first = flow.cycles["answer"][0]
    most = 2 * min(config.depth, config.count_max)
    assert sum(cycle < first for cycle in flow.cycles["request"]) == most


@cocotb.test()
async def full_rate(dut):
    """One request per cycle, of each slot in turn."""
    flow = await replay(await started(dut), [BOTH], delay=1, at_random=False)
    first, count = TIMING.delay("from walk to the first request"), 2 * config.count_max
    assert flow.cycles["request"] == list(range(first, first + count))
    taken = sorted(flow.cycles["o_0"] + flow.cycles["o_1"])
    assert taken == [cycle + TIMING.latency for cycle in flow.cycles["answer"]]
    positions = [word >> 8 for word in flow.words["request"]]
    assert positions == [n // 2 for n in range(count)]


@cocotb.test()
async def reset_in_mid_walk(dut):
    bench = await started(dut)
    for cut in range(1, 60, 5):
        await replay(bench, range(len(WALKS)), delay=5, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
        await replay(bench, [cut % len(WALKS), BOTH])
