"""Runs inside the simulator, started by test_table.py: tables, then rows through them."""

import cocotb

from golden.index.timing import table_row
from tb.bench import Bench, config, params, vectors
from tb.words import unpack_ints

PHASES = [
    {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in ("table", "i", "outlier", "o")}
    for phase in range(params["phases"])
]
SOURCES, SINKS = ("table", "i", "outlier"), ("o",)


async def replay(bench, phase, rows=None, **flow):
    """A new table, then all rows or the first ones."""
    await bench.run({"table": phase["table"]}, {}, settle=0)
    count = len(phase["i"]) if rows is None else rows
    outliers = sum(params["outliers"][:count]) if rows is not None else len(phase["outlier"])
    offers = {"i": phase["i"][:count], "outlier": phase["outlier"][:outliers]}
    result = await bench.run(offers, {"o": count}, **flow)
    result.check("o", phase["o"][:count], what="row")
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for phase in PHASES:
        await replay(bench, phase, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_words(dut):
    """One source much slower than the others; a consumer that waits for valid."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for slow in ("i", "outlier"):
        idle = dict.fromkeys(SOURCES, 0.0) | {slow: 0.9}
        await replay(bench, PHASES[0], p_idle=idle, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """A row takes max(16 / width, outliers) cycles, and the next one begins at once."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    flow = await replay(bench, PHASES[0])
    cycle, expected = 0, []
    for outliers in params["outliers"]:
        cycle += table_row(config.width, 16, outliers)
        expected.append(cycle)
    assert flow.cycles["o"] == expected
    alone = flow.cycles["o"][0] - flow.cycles["i"][0]
    assert alone == table_row(config.width, 16, params["outliers"][0])


@cocotb.test()
async def reset_in_mid_row(dut):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    phase = PHASES[0]
    for cut in range(1, 20):
        await bench.run({"table": phase["table"][: cut % 3]}, {}, settle=0)
        offers = {"i": phase["i"], "outlier": phase["outlier"]}
        await bench.run(offers, {"o": len(phase["i"])}, p_stall=0.5, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
        await replay(bench, PHASES[1], 0)
        await replay(bench, phase, 6)
