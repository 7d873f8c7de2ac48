"""Inside the simulator: programs on KllmAccelerator, every status and every word read back."""

import cocotb

from tb.bench import config, params
from tb.kllm.host import Host

PROGRAMS = params["programs"]


def prepare(host, program):
    """Memories of a program, as golden had them."""
    for memory, data, errors in zip(
        host.weights, program["weights"], program["weight_faults"], strict=True
    ):
        memory.data, memory.errors = bytearray(data), set(errors)
    host.data.data, host.data.errors = bytearray(program["data"]), set(program["data_faults"])


async def execute(host, program, **options):
    """Runs a program and compares statuses, their order on each unit, and words read back."""
    prepare(host, program)
    words, results = program["words"], program["results"]
    got, taken = await host.run(words, len(results), len(program["readback"]), **options)
    for unit in range(5):
        of_unit = [(report.tag, report.status) for report in got if report.unit == unit]
        expected = [(tag, status) for tag, where, status in results if where == unit]
        # Of unknown opcodes and of unit 0 itself: reported as unit 0, each in its own order.
        if unit == 0:
            of_unit.sort()
            expected.sort()
        assert of_unit == expected, f"unit {unit}: {of_unit} != {expected}"
    assert taken == program["readback"]
    return got


@cocotb.test()
@cocotb.parametrize(p_stall=[0.0, 0.4])
async def programs(dut, p_stall):
    """Programs in turn, without a reset between them; memories with and without stalls."""
    host = Host(dut, config)
    for program in PROGRAMS:
        await host.reset()
        await execute(host, program, p_stall=p_stall, latency=3 if p_stall else 20)
    assert dut.idle.value == 1
