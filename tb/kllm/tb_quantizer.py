"""Runs inside the simulator, started by test_quantizer.py: programs through KllmQuantizer.

The bench is host, vector memory and slots in one loop per cycle. Expected words are (care, word)
pairs: of a token that fails only the addresses matter.
"""

import collections
import dataclasses
import math

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, params
from tb.contract import block_timing

PROGRAMS = params["programs"]
CLIENTS = ("first", "second")
SINKS = ("entries", "outlier", "descriptor", "status")


@dataclasses.dataclass
class Trace:
    """Cycles of each transfer, and of the command words; the run starts at cycle 0."""

    cycles: dict[str, list[int]]


def most_cycles(program, wait):
    """Cycles within which ``program`` ends: each transfer waits with the chance ``wait`` per cycle.

    The commands one after another, without waiting. A transfer that waits delays what comes after
    it by as many cycles and no more, so all waits are added. One takes ``wait / (1 - wait)`` cycles
    on average, with a deviation of ``sqrt(wait) / (1 - wait)``. The sum of all stays within 20
    deviations. 31 cycles follow without a word.
    """
    moves = len(program["commands"]) + program["reads"] + sum(len(program[name]) for name in SINKS)
    waits = (moves * wait + 20 * math.sqrt(moves * wait)) / (1 - wait)
    return program["work"] + math.ceil(waits) + 31


class Engine(Bench):
    def __init__(self, dut):
        answers = [f"{name}_row" for name in CLIENTS]
        requests = [f"{name}_request" for name in CLIENTS]
        super().__init__(dut, sources=("command", *answers), sinks=(*requests, *SINKS))

    async def program(self, program, *, p_idle=0.0, p_stall=0.0, latency=2, stop_at=None):
        """Run to the last status; every word is compared, nothing may follow."""
        rngs = {name: self.rng(name) for name in (*self.sources, *self.sinks)}
        rows = program["rows"]
        pending = {f"{name}_row": collections.deque() for name in CLIENTS}
        offered = dict.fromkeys(self.sources)
        held = dict.fromkeys(self.sinks)
        cycles = {name: [] for name in (*self.sources, *self.sinks)}
        commands, sent = program["commands"], 0
        limit = most_cycles(program, max(p_idle, p_stall))
        cycle = quiet = 0
        while stop_at is None or cycle < stop_at:
            for name in self.sources:
                payload, valid, _ = self._port[name]
                if offered[name] is None:
                    if name == "command":
                        word = commands[sent] if sent < len(commands) else None
                        if program.get("alone") and len(cycles["status"]) < sent:
                            word = None  # not before the commands before it are complete
                    else:
                        queue = pending[name]
                        due = queue and queue[0][0] <= cycle
                        word = rows[queue[0][1]] if due else None
                    if word is not None and p_idle and rngs[name].random() < p_idle:
                        word = None
                    offered[name] = word
                    valid.value = word is not None
                    if word is not None:
                        payload.value = word
                    elif p_idle:
                        payload.value = rngs[name].getrandbits(len(payload))
            ready = {}
            for name in self.sinks:
                ready[name] = not p_stall or rngs[name].random() >= p_stall
                self._port[name][2].value = ready[name]
            await ReadOnly()
            for name in self.sources:
                if offered[name] is not None and self._port[name][2].value:
                    offered[name] = None
                    cycles[name].append(cycle)
                    if name == "command":
                        sent += 1
                    else:
                        pending[name].popleft()
            for name in self.sinks:
                payload, valid, _ = self._port[name]
                if not valid.value:
                    assert held[name] is None, f"{name}: valid fell before the transfer"
                    continue
                word = int(payload.value)
                assert held[name] in (None, word), f"{name}: changed before its transfer"
                held[name] = None if ready[name] else word
                if not ready[name]:
                    continue
                if name in SINKS:
                    self._check(program, name, word, cycles)
                else:
                    assert word < len(rows), f"{name}: row {word} of {len(rows)}"
                    answer = name.replace("request", "row")
                    pending[answer].append((cycle + latency, word))
                cycles[name].append(cycle)
            await FallingEdge(self.dut.clk)
            cycle += 1
            if all(len(cycles[name]) == len(program[name]) for name in SINKS):
                quiet += 1
                if quiet > 30 and stop_at is None:
                    break
            counts = {name: f"{len(cycles[name])} of {len(program[name])}" for name in SINKS}
            assert cycle < limit, f"nothing complete after {cycle} cycles: {counts}"
        for name in self.sources:
            self._port[name][1].value = 0
        for name in self.sinks:
            self._port[name][2].value = 0
        if stop_at is None:
            assert not any(pending.values()), "rows were requested and not taken"
        return Trace(cycles)

    def _check(self, program, name, word, cycles):
        number = len(cycles[name])
        assert number < len(program[name]), f"{name}: a word beyond the last, {word:#x}"
        care, golden = program[name][number]
        assert word & care == golden & care, f"{name} {number}: {word:#x}, golden {golden:#x}"
        if name in ("descriptor", "status"):
            # What it speaks of has been written.
            for other, least in program[f"before_{name}"][number].items():
                assert len(cycles[other]) >= least, f"{name} {number} before its {other}"


async def started(dut):
    bench = Engine(dut)
    await bench.reset()
    return bench


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
        await bench.program(program, p_idle=p_idle, p_stall=p_stall, latency=1 + 5 * (p_idle > 0))


@cocotb.test()
async def every_fault_and_a_right_command_after_it(dut):
    bench = await started(dut)
    for program in programs("fault"):
        await bench.reset()
        await bench.program(program)


@cocotb.test()
async def reset_in_mid_command(dut):
    bench = await started(dut)
    first, second = programs("random")[:2]
    for cut in range(3, 400, 23):
        await bench.program(first, p_stall=0.2, stop_at=cut)
        await bench.reset(1)
        if cut % 5 == 0:
            await bench.program(second)
            await bench.reset(1)
    await bench.program(first)


@cocotb.test()
async def full_rate(dut):
    """Cycles of one command each, from its transfer to that of its status, the engine idle."""
    bench = await started(dut)
    timing = block_timing()
    for program in programs("rate"):
        await bench.reset()
        cycles = (await bench.program(program)).cycles
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
            await bench.program(program, p_stall=p_stall)
