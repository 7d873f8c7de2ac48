"""Runs inside the simulator, started by test_concat.py: beats through KllmConcat."""

import cocotb

from tb.bench import Bench, vectors
from tb.words import unpack_ints

SOURCES, SINKS = ("i_a", "i_w"), ("o",)
WORDS = {name: unpack_ints(vectors[name]) for name in (*SOURCES, *SINKS)}
BEATS = len(WORDS["o"])


async def replay(bench, **flow):
    result = await bench.run(WORDS, {"o": BEATS}, **flow)
    result.check("o", WORDS["o"], what="beat")
    assert result.cycles["i_a"] == result.cycles["i_w"], "a beat of one input went alone"
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    await replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(slow=["i_a", "i_w"])
async def one_input_waits_for_the_other(dut, slow):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    await replay(bench, p_idle=dict.fromkeys(SOURCES, 0.0) | {slow: 0.8}, p_stall=0.2)


@cocotb.test()
async def valid_does_not_wait_for_ready(dut):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    await replay(bench, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    flow = await replay(bench)
    assert flow.cycles["i_a"] == list(range(BEATS))
    assert flow.cycles["o"] == [cycle + 1 for cycle in range(BEATS)]


@cocotb.test()
async def reset_forgets_the_held_beat(dut):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    await bench.cut_off(WORDS, {"o": BEATS}, range(1, 6), p_stall=0.5)
    await replay(bench)
