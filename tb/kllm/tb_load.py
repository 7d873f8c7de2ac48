"""Runs inside the simulator, started by test_load.py: commands between a read port and rows."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import join
from tb.bench import Bench, config, params
from tb.contract import block_timing

SOURCES, SINKS = ("command", "data"), ("status", "read", "write")
PROGRAM, MEMORY = params["program"], params["memory"]  # MEMORY: row: (word, error)


class Port:
    """Answers each read, in order, some cycles later."""

    def __init__(self, bench, delay):
        self.words, self.running, self.transfers = [], True, []
        cocotb.start_soon(self._serve(bench, delay))

    async def _serve(self, bench, delay):
        rng, cycle, due = bench.rng("port"), 0, []
        while self.running:
            await ReadOnly()
            for name, word in bench.transfers(SINKS):
                self.transfers.append(name)
                if name == "read":
                    row = (word & ((1 << config.address_bits) - 1)) // 32
                    count = word >> config.address_bits
                    answer = []
                    for n in range(count):
                        held, error = MEMORY[row + n]
                        answer.append(join((held, 256), (error, 1), (n == count - 1, 1)))
                    due.append((cycle + rng.randint(0, delay), answer))
            while due and due[0][0] <= cycle:
                self.words += due.pop(0)[1]
            await FallingEdge(bench.dut.clk)
            cycle += 1


async def play(bench, first=0, delay=3, **flow):
    steps = PROGRAM[first:]
    port = Port(bench, delay)
    expected = {name: [word for step in steps for word in step[name]] for name in SINKS}
    offers = {"command": [step["command"] for step in steps], "data": port.words}
    takes = {name: len(words) for name, words in expected.items()}
    result = await bench.run(offers, takes, **flow)
    port.running = False
    if flow.get("stop_at") is None:
        for name in SINKS:
            result.check(name, expected[name])
        # In order: read, rows, status.
        order = [name for step in steps for name in ("read", "write", "status") for _ in step[name]]
        assert port.transfers == order
        assert result.sent["data"] == len(port.words)
    return result


async def started(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    await play(await started(dut), delay=9, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    """Latency from command to read; a row per cycle in the cycle of its data."""
    bench = await started(dut)
    step = params["long"]
    flow = await play(bench, step, delay=0)
    timing = block_timing()
    assert flow.cycles["read"][0] == timing.latency  # the command is offered in cycle 0
    rows = len(PROGRAM[step]["write"])
    assert flow.cycles["write"][:rows] == flow.cycles["data"][:rows]
    taken = flow.cycles["write"][rows - 1] - flow.cycles["write"][0]
    assert taken == (rows - 1) * timing.interval
    assert flow.cycles["status"][0] == flow.cycles["write"][rows - 1] + 1


@cocotb.test()
async def reset_in_mid_command(dut):
    bench = await started(dut)
    for cut in range(1, 60, 4):
        await play(bench, cut % 5, delay=2, p_stall=0.3, stop_at=cut)
        await bench.reset(1)
    await play(bench, p_stall=0.2)
