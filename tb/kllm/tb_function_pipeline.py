"""Runs inside the simulator, started by test_function_pipeline.py: words through every function."""

import cocotb

from golden.kllm.timing import function_cycles
from golden.words import unpack_ints
from tb.bench import Bench, config, params, vectors
from tb.contract import block_timing

FUNCTIONS = params["functions"]
WORDS_I = {f: unpack_ints(vectors[f"{f}.i"]) for f in FUNCTIONS}
WORDS_O = {f: unpack_ints(vectors[f"{f}.o"]) for f in FUNCTIONS}
MIXED_I, MIXED_O = unpack_ints(vectors["mixed.i"]), unpack_ints(vectors["mixed.o"])
CYCLES = function_cycles(config.stages)


async def replay(bench, offered, golden, **flow):
    result = await bench.run({"i": offered}, {"o": len(offered)}, **flow)
    result.check("o", golden, sent=offered)
    return result


@cocotb.test()
@cocotb.parametrize(name=FUNCTIONS)
async def every_word_at_full_rate(dut, name):
    timing = block_timing()
    assert (timing.latency, timing.latency_max) == (min(CYCLES.values()), max(CYCLES.values()))
    bench = await Bench.started(dut)
    words = WORDS_I[name]
    flow = await replay(bench, words, WORDS_O[name])
    assert flow.cycles["i"] == list(range(len(words)))
    assert flow.cycles["o"] == [CYCLES[name] + n for n in range(len(words))]


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.95], p_stall=[0.0, 0.5, 0.9])
async def functions_in_any_order(dut, p_idle, p_stall):
    """Runs of random length of random functions, in order."""
    bench = await Bench.started(dut)
    await replay(bench, MIXED_I, MIXED_O, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    bench = await Bench.started(dut)
    await replay(bench, MIXED_I[:150], MIXED_O[:150], late_ready=True)


@cocotb.test()
async def reset_forgets_words_on_their_way(dut):
    bench = await Bench.started(dut)
    await bench.cut_off({"i": MIXED_I}, {"o": len(MIXED_I)}, range(1, 60, 3), p_stall=0.4)
    await replay(bench, MIXED_I[:100], MIXED_O[:100])
