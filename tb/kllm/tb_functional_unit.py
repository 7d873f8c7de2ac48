"""Runs inside the simulator, started by test_functional_unit.py: programs on a memory model.

The model answers every client after a random time, in order. A read sees the writes that were
taken in earlier cycles. After every command its status and the whole vector memory are compared.
"""

from collections import deque

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, config, params

PROGRAMS = params["programs"]  # name: steps of {name, pokes, command, status, rows, bound}
DESCRIPTORS, ENTRIES, OUTLIERS = params["descriptors"], params["entries"], params["outliers"]
# request, answer, fields of the request
CLIENTS = {
    "a_row": ("a_request", (16,)),
    "b_row": ("b_request", (16,)),
    "slot_descriptor": ("slot_slot", (8,)),
    "slot_entries": ("slot_entry_request", (8, 10)),
    "slot_outlier": ("slot_outlier_request", (8, 14)),
}


class Machine:
    """The unit's ports, its memories, and one loop per cycle."""

    def __init__(self, dut):
        self.bench = Bench(
            dut,
            sources=("command", *CLIENTS),
            sinks=("status", "write", *(request for request, _ in CLIENTS.values())),
        )
        self.dut = dut
        self.port = self.bench._port
        self.vector = list(params["vector"])
        self.held = {}

    async def reset(self, cycles=3):
        await self.bench.reset(cycles)
        self.answers = {name: deque() for name in CLIENTS}
        self.held = {}
        self.cycle = 0

    def look_up(self, client, place):
        if client in ("a_row", "b_row"):
            return self.vector[place[0]]
        if client == "slot_descriptor":
            return DESCRIPTORS[place[0]]
        table = ENTRIES if client == "slot_entries" else OUTLIERS
        return table[place[0]][place[1]]

    async def run(self, step, rng, p_idle=0.0, p_stall=0.0, latency=2, stop_at=None):
        """One command; cycles from its transfer to that of its status, or None if stopped.

        latency: cycles from a request to its answer, the most where p_idle is not 0.
        """
        for row, word in step["pokes"].items():
            self.vector[row] = word
        before = list(self.vector)
        port, begun, offered = self.port, None, False
        start, written = self.cycle, 0
        status = None
        while True:
            # A hang. The longest command reads 3 x 600 elements of 4 tokens; each row may wait for
            # 40 cycles of latency and for 10 of stalls at a time: 600 / 16 x 3 x 4 x 50 < 23,000.
            assert self.cycle - start < 60_000, f"{step['name']}: hangs"
            if stop_at is not None and self.cycle - start >= stop_at:
                break
            payload, valid, _ = port["command"]
            if begun is None and not offered and (not p_idle or rng.random() >= p_idle):
                offered = True
                payload.value = step["command"]
            valid.value = offered and begun is None
            if begun is not None:
                payload.value = rng.getrandbits(len(payload))
            for name, queue in self.answers.items():
                payload, valid, _ = port[name]
                shown = bool(queue) and queue[0][0] <= self.cycle
                valid.value = shown
                payload.value = queue[0][1] if shown else rng.getrandbits(len(payload))
            ready_now = {}
            for name in self.bench.sinks:
                ready_now[name] = not p_stall or rng.random() >= p_stall
                port[name][2].value = ready_now[name]
            await ReadOnly()
            if config.front:
                self.check_front(step, self.cycle - start, written)
            if begun is None and offered and port["command"][2].value:
                begun = self.cycle
            for name, queue in self.answers.items():
                if queue and queue[0][0] <= self.cycle and port[name][2].value:
                    queue.popleft()
            for name, (request, fields) in CLIENTS.items():
                payload, valid, _ = port[request]
                if self.offers(request, step) and ready_now[request]:
                    word, place = int(payload.value), []
                    for bits in fields:
                        place.append(word & ((1 << bits) - 1))
                        word >>= bits
                    wait = latency if not p_idle else rng.randint(1, latency)
                    queue = self.answers[name]
                    due = max(self.cycle + wait, queue[-1][0] if queue else 0)
                    queue.append((due, self.look_up(name, place)))
            if self.offers("write", step) and ready_now["write"]:
                word = int(port["write"][0].value)
                self.vector[word & 0xFFFF] = word >> 16
                written += 1
            if self.offers("status", step):
                assert begun is not None, f"{step['name']}: a status without a command"
                if ready_now["status"]:
                    status = int(port["status"][0].value)
            await FallingEdge(self.dut.clk)
            self.cycle += 1
            if status is not None:
                break
        for name in ("command", *CLIENTS):
            port[name][1].value = 0
        for name in self.bench.sinks:
            port[name][2].value = 0
        if stop_at is not None:
            return None
        name = step["name"]
        assert status == step["status"], f"{name}: status {status:#x}, not {step['status']:#x}"
        assert not any(self.answers.values()), f"{name}: answers not taken"
        for row, word in step["rows"].items():
            before[row] = word
        for row, (got, want) in enumerate(zip(self.vector, before, strict=True)):
            assert got == want, f"{name}: row {row}: {got:#066x}, golden {want:#066x}"
        return self.cycle - 1 - begun

    def check_front(self, step, cycle, written):
        """The rows still to be written, from the first one on to the status; of some commands."""
        front, told = int(self.dut.front.value), step["told"]
        if not front & 1:
            assert not (told and written), f"{step['name']}: {written} rows and no front"
            return
        assert told, f"{step['name']}: its rows are not told"
        assert cycle, f"{step['name']}: the front of the command before"
        first, rows = told
        assert (front >> 1 & 0x1FFFF, front >> 18) == (first + written, first + rows), step["name"]

    def offers(self, name, step):
        """A sink's valid; checks that an offered word stays."""
        payload, valid, ready = self.port[name]
        held = self.held
        if not valid.value:
            assert held.get(name) is None, f"{step['name']}: {name} fell before its transfer"
            return False
        word = int(payload.value)
        assert held.get(name) in (None, word), f"{step['name']}: {name} changed"
        held[name] = None if ready.value else word
        return True


@cocotb.test()
@cocotb.parametrize(
    case=[
        ("mixed", 0.0, 0.0, 2),
        ("mixed", 0.5, 0.5, 12),
        ("mixed", 0.9, 0.1, 40),
        ("mixed", 0.1, 0.8, 3),
        ("faults", 0.0, 0.0, 2),
        ("faults", 0.3, 0.3, 8),
        ("chains", 0.0, 0.0, 1),
        ("chains", 0.2, 0.6, 6),
    ]
)
async def programs(dut, case):
    """case: program, chances of idle and stall, latency."""
    name, p_idle, p_stall, latency = case
    machine = Machine(dut)
    await machine.reset()
    rng = machine.bench.rng(f"{name} {p_idle} {p_stall}")
    for step in PROGRAMS[name]:
        await machine.run(step, rng, p_idle, p_stall, latency)


@cocotb.test()
async def cycles(dut):
    """Full rate: each command within its passes and a constant."""
    machine = Machine(dut)
    await machine.reset()
    rng = machine.bench.rng("cycles")
    table = [
        (step["name"], await machine.run(step, rng), step["bound"]) for step in PROGRAMS["cycles"]
    ]
    for name, took, bound in table:
        cocotb.log.info("cycles: %s: %d, passes %d", name, took, bound)
    for name, took, bound in table:
        assert took <= bound + params["overhead"], f"{name}: {took} cycles, not {bound} + constant"


@cocotb.test()
async def reset_in_mid_command(dut):
    machine = Machine(dut)
    await machine.reset()
    rng = machine.bench.rng("reset")
    for step in PROGRAMS["codebooks"]:
        await machine.run(step, rng)
    for step in PROGRAMS["resets"]:
        for stop_at in (4, 13, 29, 47, 71, 110):
            await machine.run(step, rng, stop_at=stop_at)
            await machine.reset(1)
            for codebook in PROGRAMS["codebooks"]:
                await machine.run(codebook, rng)
            await machine.run(step, rng, 0.2, 0.2, 6)
