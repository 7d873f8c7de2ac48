"""Runs inside the simulator, started by test_quantizer.py: programs through KllmQuantizer.

The bench is host, vector memory and slots. Expected words are (care, word) pairs: of a token that
fails only the addresses matter.
"""

import math
from bisect import bisect
from itertools import islice

import cocotb

from tb.bench import Bench, interface, params
from tb.contract import block_timing
from tb.kllm.support.answers import Answers
from tb.kllm.support.cared import check_cared

PROGRAMS = params["programs"]
ROWS = {"first_request": "first_row", "second_request": "second_row"}
SINKS = ("entries", "outlier", "descriptor", "status")


def most_cycles(program, wait):
    """Cycles within which ``program`` ends: each transfer waits with the chance ``wait`` per cycle.

    The commands one after another, without waiting. A transfer that waits delays what comes after
    it by as many cycles and no more, so all waits are added. One takes ``wait / (1 - wait)`` cycles
    on average, with a deviation of ``sqrt(wait) / (1 - wait)``. The sum of all stays within 20
    deviations.
    """
    moves = len(program["commands"]) + program["reads"] + sum(len(program[name]) for name in SINKS)
    waits = (moves * wait + 20 * math.sqrt(moves * wait)) / (1 - wait)
    return program["work"] + math.ceil(waits)


async def play(bench, program, *, p_idle=0.0, p_stall=0.0, latency=2, stop_at=None):
    """Run to the last status; every word is compared, nothing may follow."""
    look_up, commands = program["rows"].__getitem__, iter(program["commands"])
    memory = Answers(bench, {name: (row, look_up) for name, row in ROWS.items()}, latency)
    # ``alone``: a command comes when those before it are complete.
    host = Answers(bench, {"status": ("command", lambda _: list(islice(commands, 1)))})
    host.offers["command"] += [next(commands)] if program.get("alone") else commands
    takes = {name: len(program[name]) for name in SINKS} | dict.fromkeys(ROWS)
    flow = {"p_idle": p_idle, "p_stall": p_stall, "stop_at": stop_at, "settle": 30}
    found = await bench.run(memory.offers | host.offers, takes, **flow)
    memory.stop()
    host.stop()
    if stop_at is None:
        check(program, found, most_cycles(program, max(p_idle, p_stall)))
    return found


def check(program, found, most) -> None:
    last = max(found.cycles[name][-1] for name in SINKS if found.cycles[name])
    assert last <= most, f"complete after {last} cycles, not {most}"
    for name in SINKS:
        check_cared(name, found.words[name], program[name])
    for name in ("descriptor", "status"):
        for n, cycle in enumerate(found.cycles[name]):
            # What it speaks of has been written.
            for other, least in program[f"before_{name}"][n].items():
                before = bisect(found.cycles[other], cycle)
                assert before >= least, f"{name} {n} before its {other}"
    for name, row in ROWS.items():
        assert len(found.words[name]) == found.sent[row], "rows were requested and not taken"


async def started(dut):
    return await Bench.started(dut, sources=interface["sources"], sinks=interface["sinks"])


def programs(kind):
    return [program for program in PROGRAMS if program["kind"] == kind]


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await started(dut)
    chosen = programs("random")
    if p_stall == 0.9:
        chosen = chosen[:1]
    for program in chosen:
        await bench.reset()
        await play(bench, program, p_idle=p_idle, p_stall=p_stall, latency=1 + 5 * (p_idle > 0))


@cocotb.test()
async def every_fault_and_a_right_command_after_it(dut):
    bench = await started(dut)
    for program in programs("fault"):
        await bench.reset()
        await play(bench, program)


@cocotb.test()
async def reset_in_mid_command(dut):
    bench = await started(dut)
    first, second = programs("random")[:2]
    for cut in range(3, 400, 23):
        await play(bench, first, p_stall=0.2, stop_at=cut)
        await bench.reset(1)
        if cut % 5 == 0:
            await play(bench, second)
            await bench.reset(1)
    await play(bench, first)


@cocotb.test()
async def full_rate(dut):
    """Cycles of one command each, from its transfer to that of its status, the engine idle."""
    bench = await started(dut)
    timing = block_timing()
    for program in programs("rate"):
        await bench.reset()
        cycles = (await play(bench, program)).cycles
        begin = cycles["command"][-1]
        total = cycles["status"][-1] - begin
        text = f"{program['name']}: {total} cycles, {program['least']} to {program['most']}"
        dut._log.info(text)
        assert program["least"] <= total <= program["most"], text
        if program["refused"]:
            assert total == timing.latency
        # One token: each pass requests its rows without a gap.
        for name in ("first_request", "second_request") if program["one"] else ():
            taken = [cycle for cycle in cycles[name] if cycle > begin]
            assert not taken or taken[-1] - taken[0] + 1 == len(taken) * timing.interval, text


@cocotb.test()
async def longest_token(dut):
    """Words and cycles of the longest tokens, at full rate and with stalls."""
    bench = await started(dut)
    for program in programs("longest"):
        for p_stall in (0.0, 0.2):
            await bench.reset()
            await play(bench, program, p_stall=p_stall)
