"""Runs inside the simulator, started by test_readback.py: rows and slots to words."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from hdl.kllm.slots.readback import read_slot_cycles
from tb.bench import Bench, params
from tb.contract import block_timing

PROGRAM, TABLES = params["program"], params["tables"]
REQUESTS = {
    "row_request": ("row_row", (16,)),
    "slot_slot": ("slot_descriptor", (8,)),
    "slot_entry_request": ("slot_entries", (8, 10)),
    "slot_outlier_request": ("slot_outlier", (8, 14)),
}
ANSWERS = tuple(answer for answer, _ in REQUESTS.values())
SINKS = (*REQUESTS, "o", "status")


class Memories:
    """Answers each request some cycles later; notes the order of words and statuses."""

    def __init__(self, bench, delay):
        self.offers = {name: [] for name in ANSWERS}
        self.running, self.order = True, []
        cocotb.start_soon(self._serve(bench, delay))

    async def _serve(self, bench, delay):
        rng, cycle, due = bench.rng("memories"), 0, []
        while self.running:
            await ReadOnly()
            for name, word in bench.transfers(SINKS):
                if name in ("o", "status"):
                    self.order.append(name)
                    continue
                answer, fields = REQUESTS[name]
                place = []
                for bits in fields:
                    place.append(word & ((1 << bits) - 1))
                    word >>= bits
                due.append((cycle + rng.randint(0, delay), answer, TABLES[answer][tuple(place)]))
            while due and due[0][0] <= cycle:
                _, answer, word = due.pop(0)
                self.offers[answer].append(word)
            await FallingEdge(bench.dut.clk)
            cycle += 1


async def play(bench, program=PROGRAM, delay=3, **flow):
    memories = Memories(bench, delay)
    expected = {name: [word for step in program for word in step[name]] for name in SINKS}
    offers = {"command": [step["command"] for step in program], **memories.offers}
    takes = {name: len(words) for name, words in expected.items()}
    result = await bench.run(offers, takes, **flow)
    memories.running = False
    if flow.get("stop_at") is None:
        for name in SINKS:
            result.check(name, expected[name])
        assert memories.order == [
            name for step in program for name in ("o", "status") for _ in step[name]
        ]
        assert all(len(memories.offers[name]) == result.sent[name] for name in ANSWERS)
    return result


async def started(dut):
    return await Bench.started(dut, sources=("command", *ANSWERS), sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    await play(await started(dut), delay=7, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    """A word per cycle from the first one on, though the memory takes up to 8 cycles."""
    bench = await started(dut)
    flow = await play(bench, params["rows"], delay=7)
    assert flow.cycles["row_request"][0] == block_timing().latency
    cycles = flow.cycles["o"]
    assert len(cycles) >= 64
    assert flow.cycles["row_row"] == cycles[7::8]
    interval = block_timing().interval
    assert cycles == [cycles[0] + int(interval * n) for n in range(len(cycles))]


@cocotb.test()
async def slots_at_full_rate(dut):
    """Every READ_SLOT takes the cycles that golden states, from a memory without stalls."""
    flow = await play(await started(dut), params["slots"], delay=0)
    begin, ends = 0, []
    for length, outliers in params["slot_sizes"]:
        ends.append(begin + read_slot_cycles(length, outliers))
        begin = ends[-1] + 1
    assert flow.cycles["status"] == ends


@cocotb.test()
async def reset_in_mid_command(dut):
    bench = await started(dut)
    for n, cut in enumerate(range(2, 90, 7)):
        await play(bench, PROGRAM[n:], delay=2, p_stall=0.3, stop_at=cut)
        await bench.reset(1)
    await play(bench, p_stall=0.2)
