"""Runs inside the simulator, started by test_descriptor_writer.py: tokens and what they wait for.

Expected descriptors are (care, word) pairs: those that are not valid have a slot only.
"""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, interface, params
from tb.contract import block_timing
from tb.kllm.support.cared import check_cared, gathered

TOKENS, AHEAD = params["tokens"], params["ahead"]
SOURCES, SINKS = interface["sources"], interface["sinks"]


class Entries:
    """Pulses of ``token_done``, at most AHEAD before their tokens; each with ``chance`` per cycle.

    No token leaves before its pulse.
    """

    def __init__(self, bench, tokens, chance):
        self.needs = [bool(token["needs"]) for token in tokens]
        self.given, self.used, self._running = 0, 0, True
        cocotb.start_soon(self._run(bench, chance))

    async def _run(self, bench, chance):
        rng, taken, pulse = bench.rng("entries"), 0, 0
        while self._running:
            await ReadOnly()
            for _ in bench.transfers(("finish",)):
                self.used += self.needs[taken]
                taken += 1
                assert self.used <= self.given, f"token {taken - 1} before its entries"
            self.given += pulse
            await FallingEdge(bench.dut.clk)
            left = min(sum(self.needs), self.used + AHEAD) - self.given
            pulse = int(left > 0 and rng.random() < chance)
            bench.dut.token_done.value = pulse
        bench.dut.token_done.value = 0

    def stop(self):
        self._running = False


async def replay(bench, tokens=TOKENS, chance=1.0, **flow):
    entries = Entries(bench, tokens, chance)
    expected = gathered(tokens, SINKS)
    takes = {name: len(words) for name, words in expected.items()}
    result = await bench.run(gathered(tokens, SOURCES), takes, **flow)
    entries.stop()
    await FallingEdge(bench.dut.clk)
    if flow.get("stop_at") is None:
        for name, words in expected.items():
            check_cared(name, result.words[name], words)
    return result


async def started(dut):
    dut.token_done.value = 0
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    await replay(await started(dut), chance=1 - p_idle, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def each_of_the_three_may_be_late(dut):
    """The outliers, the statistics or the entries; then a sink that is slow."""
    bench = await started(dut)
    for late in ("i", "norms", "finish"):
        await replay(bench, p_idle={name: 0.8 * (name == late) for name in SOURCES})
    await replay(bench, chance=0.1)
    for late in SINKS:
        await replay(bench, p_stall={name: 0.8 * (name == late) for name in SINKS})
    await replay(bench, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    bench, timing = await started(dut), block_timing()
    cycles = (await replay(bench)).cycles
    descriptors, statuses = iter(cycles["descriptor"]), iter(cycles["status"])
    for n, token in enumerate(TOKENS):
        cycle = cycles["finish"][n]
        if token["descriptor"]:
            cycle += timing.latency
            assert next(descriptors) == cycle
        if token["status"]:
            assert next(statuses) == cycle + 1
    # Tokens that wait for nothing.
    plain = params["plain"]
    cycle, cycles = 0, (await replay(bench, plain)).cycles
    for n, token in enumerate(plain):
        assert cycles["finish"][n] == cycle
        steps = timing.interval if token["descriptor"] else 1
        cycle += steps + len(token["status"])


@cocotb.test()
async def reset_in_mid_token(dut):
    bench = await started(dut)
    ends = [n + 1 for n, token in enumerate(TOKENS) if token["status"]]
    for cut in range(1, 90, 6):
        await replay(bench, TOKENS, p_stall=0.3, stop_at=cut)
        await bench.reset(1)
        if cut % 2:
            await bench.run({}, {})
        await replay(bench, TOKENS[: ends[3]])
    await replay(bench)
