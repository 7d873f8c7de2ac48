"""Runs inside the simulator, started by test_function_control.py: jobs, and what they start."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, params
from tb.contract import block_timing
from tb.kllm.support.answers import Answers

FIELDS, DESCRIPTORS = params["fields"], params["descriptors"]
SOURCES = ("job", "slot_descriptor", "maximum", "total")
# Streams that begin a phase: it is idle, so their ready is never low when they are offered.
STARTS = ("walk_a", "walk_b", "walk_d", "entries", "outliers", "row")
SINKS = ("slot_slot", "fill", *STARTS, "load", "status")
EVENTS = ("slot_slot", "fill", "entries", "outliers", "walk_a", "row", "walk_b", "load",
          "walk_d", "status")  # fmt: skip
LANES = ("operation", "scalar", "scale")


def unpacked(name, word):
    """The fields of a stream's word; arrays as lists."""
    found = {}
    for field, (offset, width, count) in FIELDS[name].items():
        values = [word >> offset + width * k & (1 << width) - 1 for k in range(count)]
        found[field] = values if count > 1 else values[0]
    return found


class Monitor:
    """Events in order: [stream, its fields and what the lanes are told, now and a cycle later].

    ``changed`` of an event: of what the lanes are told, that which changes before the next event.
    """

    def __init__(self, bench):
        self.events, self._running = [], True
        cocotb.start_soon(self._watch(bench))

    async def _watch(self, bench):
        fresh = []
        while self._running:
            await ReadOnly()
            lanes = {name: int(bench.dut[name].value) for name in LANES}
            for event in fresh:
                event[1] |= {f"{name}_after": value for name, value in lanes.items()}
            moved = list(bench.transfers(EVENTS))
            if self.events and not fresh and not moved:
                last = self.events[-1][1]
                last["changed"] |= {n for n in LANES if lanes[n] != last[f"{n}_after"]}
            fresh = [[name, lanes | unpacked(name, word) | {"changed": set()}]
                     for name, word in moved]  # fmt: skip
            self.events += fresh
            await FallingEdge(bench.dut.clk)

    def stop(self):
        self._running = False

    def check(self, jobs):
        """Every event of every job in order, with the fields that are specified."""
        expected = [event for job in jobs for event in job]
        for n, (got, want) in enumerate(zip(self.events, expected, strict=True)):
            name, fields = want
            assert got[0] == name, f"event {n}: {got[0]}, not {name} {fields}"
            for field, value in fields.items():
                have = got[1][field]
                if isinstance(value, list):
                    have = have[: len(value)]
                assert have == value, f"event {n}: {name}.{field} {have}, not {value}"
                lane = field.removesuffix("_after")
                assert lane not in got[1]["changed"], f"event {n}: {lane} changes after {name}"


async def replay(bench, words, jobs, **flow):
    monitor = Monitor(bench)
    clients = {"slot_slot": ("slot_descriptor", lambda word: DESCRIPTORS[word])}
    answers = Answers(bench, clients, 4, random=True)
    takes = dict.fromkeys(SINKS, None) | {"status": len(jobs)}
    result = await bench.run(words | answers.offers, takes, **flow)
    answers.stop()
    monitor.stop()
    if flow.get("stop_at") is None:
        monitor.check(jobs)
    return result


async def started(dut):
    dut.idle.value = 1
    dut.loaded.value = params["loaded"]
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


async def _busy_at_random(bench, p_busy):
    """Results in flight at some times, for some cycles."""
    rng = bench.rng("idle")
    while True:
        await FallingEdge(bench.dut.clk)
        if rng.random() < 0.3:
            bench.dut.idle.value = int(rng.random() >= p_busy)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    stall = dict.fromkeys(SINKS, p_stall) | dict.fromkeys(STARTS, 0.0)
    bench = await started(dut)
    busy = cocotb.start_soon(_busy_at_random(bench, p_stall))
    await replay(bench, params["words"], params["events"], p_idle=p_idle, p_stall=stall)
    busy.cancel()


@cocotb.test()
async def waits_until_idle(dut):
    """No status before the results are idle, and the job is not taken before its status."""
    bench = await started(dut)
    plain = params["plain"]
    dut.idle.value = 0
    flow = await bench.run(plain["words"], dict.fromkeys(SINKS), stop_at=100)
    assert not flow.words["status"]
    assert flow.sent["job"] == 0
    assert len(flow.words["walk_d"]) == 1


@cocotb.test()
async def full_rate(dut):
    bench = await started(dut)
    plain, timing = params["plain"], block_timing()
    flow = await replay(bench, plain["words"], plain["events"])
    begins = [int(timing.interval) * n for n in range(len(plain["events"]))]
    assert flow.cycles["walk_d"] == [begin + timing.latency for begin in begins]
    assert flow.cycles["status"] == flow.cycles["job"]
    delay = timing.delay("from job to status, without the time of the phases")
    assert flow.cycles["status"] == [begin + delay for begin in begins]


@cocotb.test()
async def reset_in_mid_job(dut):
    bench = await started(dut)
    for cut in range(1, 60, 4):
        await replay(bench, params["words"], params["events"], stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
    await replay(bench, params["words"], params["events"])
