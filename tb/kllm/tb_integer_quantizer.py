"""Runs inside the simulator, started by test_integer_quantizer.py."""

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, config, vectors
from tb.contract import block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in ("largest", "scale", "i", "o")}
SOURCES, SINKS = ("largest", "i"), ("scale", "o")
TIMING = block_timing()
LATENCY = TIMING.latency


async def replay(bench, scales, rows, **flow):
    """Send the first words of both pairs of streams; compare every answer."""
    offers = {"largest": WORDS["largest"][:scales], "i": WORDS["i"][:rows]}
    result = await bench.run(offers, {"scale": scales, "o": rows}, **flow)
    for name, source in (("scale", "largest"), ("o", "i")):
        result.check(name, WORDS[name][: len(offers[source])], sent=offers[source])
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    await replay(bench, 12, 150, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    """Every vector; a row per ``parts`` cycles, scales in the stated time."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    flow = await replay(bench, len(WORDS["scale"]), len(WORDS["o"]))
    # A row is taken with its last part.
    first = config.parts - 1
    assert flow.cycles["i"] == [first + config.parts * n for n in range(len(WORDS["i"]))]
    assert flow.cycles["o"] == [LATENCY + config.parts * n for n in range(len(WORDS["o"]))]
    for start, end in zip(flow.cycles["largest"], flow.cycles["scale"], strict=True):
        assert end - start == TIMING.delay("from largest to scale")


@cocotb.test()
async def reset_forgets_rows_on_their_way(dut):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    offers = {name: WORDS[name] for name in SOURCES}
    takes = {name: len(WORDS[name]) for name in SINKS}
    await bench.cut_off(offers, takes, range(1, 24), p_stall=0.6)
    await replay(bench, 3, 30)
