"""Runs inside the simulator, started by test_slot_rows.py: codebooks, slots and single words."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.index.timing import table_row
from golden.kllm.isa import Function
from golden.kllm.timing import function_cycles, slot_fill
from tb.bench import Bench, config, params

STEPS = params["steps"]
FUNCTIONS = function_cycles(params["stages"])
SOURCES = (
    "load", "row", "fill", "entries_0", "entries_1", "outliers_0", "outliers_1", "element",
)  # fmt: skip
SINKS = ("rows_0", "rows_1", "y")


async def replay(bench, step, **flow):
    if "shape" in step:
        bench.dut.shape.value = step["shape"]
    if "fill" in step:
        filled = await bench.run({"fill": [step["fill"]]}, {}, settle=0, **flow)
    takes = {name: len(words) for name, words in step["takes"].items()}
    result = await bench.run(step["offers"], takes, **flow)
    if flow.get("stop_at") is None:
        for name, words in step["takes"].items():
            result.check(name, words)
    if "fill" in step:
        result.cycles["fill"] = filled.cycles["fill"]
    return result


async def started(dut):
    dut.shape.value = 0
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await started(dut)
    for step in STEPS:
        await replay(bench, step, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    bench = await started(dut)
    for step in STEPS:
        await replay(bench, step, late_ready=True)


@cocotb.test()
async def loaded(dut):
    """Each codebook is marked when it is loaded, not before; reset forgets both."""
    bench = await started(dut)
    seen = 0
    for step in STEPS[:2]:
        await ReadOnly()
        assert bench.dut.loaded.value == seen
        await FallingEdge(bench.dut.clk)
        await replay(bench, step)
        seen |= 1 << step["loads"]
    await ReadOnly()
    assert bench.dut.loaded.value == seen == 3
    await FallingEdge(bench.dut.clk)
    await bench.reset(1)
    await ReadOnly()
    assert bench.dut.loaded.value == 0


@cocotb.test()
async def full_rate(dut):
    """Tables, rows of slot 1, which has no function, and single words."""
    bench = await started(dut)
    for step in STEPS:
        flow = await replay(bench, step)
        function = FUNCTIONS[Function(step.get("function", 0)).name]
        if "fill" in step:
            slots = len(step["outliers"])
            assert flow.cycles["fill"] == [slot_fill(config.table.bits_a, slots, function)]
        if "rows_1" in step["takes"]:
            cycle, expected = 0, []
            for outliers in step["outliers"][1]:
                cycle += table_row(config.table.width, 16, outliers)
                expected.append(cycle)
            assert flow.cycles["rows_1"] == expected
        elif "y" in step["takes"]:
            assert flow.cycles["y"] == [function + n for n in range(len(step["takes"]["y"]))]


@cocotb.test(skip=not params["longest"])
async def longest_slots(dut):
    """After the last codebooks."""
    bench = await started(dut)
    for step in STEPS:
        if "loads" in step:
            await replay(bench, step)
    for step in params["longest"]:
        await replay(bench, step, p_stall=0.1)


@cocotb.test()
async def reset_in_mid_step(dut):
    bench = await started(dut)
    for cut in range(1, 40, 3):
        for step in STEPS[:2]:
            await replay(bench, step)
        await replay(bench, STEPS[2 + cut % 6], stop_at=cut, p_stall=0.3)
        await bench.reset(1)
        await bench.run({}, {})
    for step in STEPS[:8]:
        await replay(bench, step)
