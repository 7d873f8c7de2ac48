"""Runs inside the simulator, started by test_concat.py: beats through KllmConcat."""

import cocotb

from tb.bench import Bench, vectors
from tb.words import unpack_ints

SOURCES, SINKS = ("i_a", "i_w"), ("o",)
WORDS = {name: unpack_ints(vectors[name]) for name in (*SOURCES, *SINKS)}
BEATS = len(WORDS["o"])


async def replay(bench, **flow):
    result = await bench.run(WORDS, {"o": BEATS}, **flow)
    for n, (got, golden) in enumerate(zip(result.words["o"], WORDS["o"], strict=True)):
        assert got == golden, f"beat {n}: got {got:#x}, golden {golden:#x}"
    assert result.cycles["i_a"] == result.cycles["i_w"], "a beat of one input went alone"
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    await replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(slow=["i_a", "i_w"])
async def one_input_waits_for_the_other(dut, slow):
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    await replay(bench, p_idle=dict.fromkeys(SOURCES, 0.0) | {slow: 0.8}, p_stall=0.2)


@cocotb.test()
async def valid_does_not_wait_for_ready(dut):
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    await replay(bench, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    flow = await replay(bench)
    assert flow.cycles["i_a"] == list(range(BEATS))
    assert flow.cycles["o"] == [cycle + 1 for cycle in range(BEATS)]


@cocotb.test()
async def reset_forgets_the_held_beat(dut):
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    for cut in range(1, 6):
        await bench.run(WORDS, {"o": BEATS}, p_stall=0.5, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
    await replay(bench)
