"""Runs inside the simulator, started by test_weight_buffer.py: beats in, replays out."""

import cocotb

from tb.bench import Bench, config, params
from tb.contract import block_timing

WORDS = tuple(f"word_{k}" for k in range(config.lane_words))
TIMING = block_timing()
SOURCES, SINKS = ("job", "replay", *WORDS), ("w", "s_b", "done")


async def play(bench, words, **flow):
    result = await bench.run(
        {name: words[name] for name in SOURCES},
        {name: len(words[name]) for name in SINKS},
        **flow,
    )
    for name in SINKS:
        result.check(name, words[name])
    return result


async def started(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5])
async def random_flow(dut, p_idle, p_stall):
    await play(await started(dut), params["words"], p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def valid_does_not_wait_for_ready(dut):
    await play(await started(dut), params["words"], late_ready=True)


@cocotb.test()
@cocotb.parametrize(slow=[*SOURCES, *SINKS])
async def one_is_slow(dut, slow):
    """One stream hardly moves: a full RAM, full scales, full queues, and none of them."""
    idle, stall = dict.fromkeys(SOURCES, 0.0), dict.fromkeys(SINKS, 0.0)
    (idle if slow in idle else stall)[slow] = 0.9
    await play(await started(dut), params["words"], p_idle=idle, p_stall=stall)


@cocotb.test()
async def long_groups(dut):
    await play(await started(dut), params["long"])


@cocotb.test()
async def done_is_last(dut):
    """``done`` comes after the final beat and the final scale of its job."""
    bench = await started(dut)
    for (beats, groups, tokens, _), words in params["rates"]:
        for slow in ("w", "s_b"):
            stall = dict.fromkeys(SINKS, 0.0) | {slow: 0.8}
            flow = await play(bench, words, p_stall=stall)
            final = max(flow.cycles["w"][-1], flow.cycles["s_b"][-1])
            assert flow.cycles["done"] == [final + 1]
        assert len(flow.cycles["w"]) == beats * groups * tokens


@cocotb.test()
async def full_rate(dut):
    """A beat per cycle, one group after the other; replays hide the gathering."""
    bench = await started(dut)
    for (beats, groups, tokens, _), words in params["rates"]:
        flow = await play(bench, words)
        complete = max(flow.cycles[name][0] for name in WORDS)
        assert flow.cycles["w"][0] == complete + TIMING.latency
        first, last = flow.cycles["w"][0], flow.cycles["w"][-1]
        took = last - first + 1
        handed, given = tokens * beats, tokens * config.columns
        if tokens == 1 or 2 * beats <= config.buffer_beats:
            # Every stage at one per cycle: the busiest sets the pace.
            pace = max(handed, given, beats + 1)
            assert took <= groups * pace + config.columns, (took, groups, pace)
        else:
            # A group as long as the buffer comes in while the last replay makes room.
            assert took <= groups * max(handed, given) + 4 * groups + config.columns, took
        scales = flow.cycles["s_b"]
        assert scales[given - 1] - scales[0] + 1 <= max(handed, given) + 4


@cocotb.test()
async def weights_wait_at_most_for_scales(dut):
    """Weights run ahead of stalled scales by 6 replays and no further."""
    bench = await started(dut)
    words = params["words"]
    flow = await bench.run(
        {name: words[name] for name in SOURCES},
        {name: len(words[name]) for name in SINKS},
        p_stall={"w": 0.0, "s_b": 1.1, "done": 0.0}, stop_at=400,
    )  # fmt: skip
    assert flow.words["w"] == words["w"][: len(flow.words["w"])]
    assert flow.sent["replay"] <= 7 + 2


@cocotb.test()
async def reset_forgets_groups(dut):
    bench = await started(dut)
    words = params["words"]
    for cut in (3, 9, 20, 41, 83):
        await bench.run(
            {name: words[name] for name in SOURCES},
            {name: len(words[name]) for name in SINKS},
            p_stall=0.3, stop_at=cut,
        )  # fmt: skip
        await bench.reset(1)
    await play(bench, words)
