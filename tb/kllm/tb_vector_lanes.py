"""Runs inside the simulator, started by test_vector_lanes.py: one operation after another."""

import cocotb

from golden.kllm.format import Operation
from tb.bench import Bench, config, params
from tb.contract import block_timing

CASES = params["cases"]
SOURCES, SINKS = ("a", "b", "weight"), ("score", "element", "o")
TIMING = block_timing()
BEATS = 16 // config.width


async def replay(bench, case, **flow):
    for name in ("operation", "scalar", "scale"):
        bench.dut[name].value = case[name]
    result = await bench.run(case["offers"], {case["sink"]: len(case["words"])}, **flow)
    if flow.get("stop_at") is None:
        result.check(case["sink"], case["words"], what=f"{Operation(case['operation']).name}")
    return result


async def started(dut):
    for name in ("operation", "scalar", "scale"):
        dut[name].value = 0
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await started(dut)
    for case in CASES:
        await replay(bench, case, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    bench = await started(dut)
    for case in CASES:
        await replay(bench, case, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    bench = await started(dut)
    for case in CASES:
        flow = await replay(bench, case)
        operation, cycles = Operation(case["operation"]), flow.cycles[case["sink"]]
        first, row = TIMING.latency, BEATS
        if operation == Operation.SCALE:
            first = TIMING.delay("from weight to o")
        elif operation == Operation.SCORE:
            first = TIMING.delay("from a to score")
        elif operation == Operation.ELEMENT:
            first, row = TIMING.delay("from a to element"), TIMING.delay("per row of elements")
        elif operation == Operation.ROTATE:
            first += 1  # the second row
        assert cycles == list(range(first, first + len(cycles))), operation.name
        if operation not in (Operation.SCALE, Operation.ROTATE):
            assert flow.cycles["a"] == [row * n for n in range(len(flow.cycles["a"]))]


@cocotb.test()
async def reset_in_mid_row(dut):
    bench = await started(dut)
    for cut in range(1, 40, 2):
        case = CASES[cut % len(CASES)]
        await replay(bench, case, stop_at=cut, p_stall=0.3)
        await bench.reset(1)
        await bench.run({}, {})
        await replay(bench, CASES[(cut + 3) % len(CASES)])
