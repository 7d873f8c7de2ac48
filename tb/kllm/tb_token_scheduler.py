"""Runs inside the simulator, started by test_token_scheduler.py: tokens, and what they start.

Expected words are (care, word) pairs: fields without a meaning are not compared.
"""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, interface, params
from tb.contract import block_timing
from tb.kllm.support.cared import check_cared, gathered

TOKENS, SOURCES, SINKS = params["tokens"], interface["sources"], interface["sinks"]


class Settled:
    """Drives ``settled``: low for up to ``most`` cycles after a word of ``finish``, then high.

    A token of another kind must not leave while it is low.
    """

    def __init__(self, bench, tokens, most):
        self.left = 0
        bench.dut.settled.value = 1
        self._task = cocotb.start_soon(self._run(bench, tokens, most))

    async def _run(self, bench, tokens, most):
        rng, given = bench.rng("settled"), 0
        while True:
            await ReadOnly()
            for _ in bench.transfers(("finish",)):
                assert not self.left or not tokens[given]["waits"], f"token {given} did not wait"
                given += 1
                self.left = rng.randint(0, most)
            await FallingEdge(bench.dut.clk)
            bench.dut.settled.value = self.left == 0
            self.left = max(self.left - 1, 0)

    def stop(self):
        """Stops at once: a last write of ``settled`` would meet the first of the next run."""
        self._task.cancel()


async def replay(bench, tokens=TOKENS, most=0, **flow):
    """All tokens, and every word that comes of them."""
    settled = Settled(bench, tokens, most)
    expected = gathered(tokens, SINKS)
    takes = {name: len(words) for name, words in expected.items()}
    result = await bench.run(gathered(tokens, SOURCES), takes, **flow)
    settled.stop()
    if flow.get("stop_at") is None:
        for name, words in expected.items():
            check_cared(name, result.words[name], words)
    return result


async def started(dut):
    dut.settled.value = 1
    dut.codebook_ok.value = params["codebook_ok"]
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    await replay(await started(dut), most=9, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    await replay(await started(dut), most=9, late_ready=True)


@cocotb.test()
async def another_kind_waits_until_settled(dut):
    bench = await started(dut)
    alike, other = params["pair"]
    bench.dut.settled.value = 0
    await replay_unsettled(bench, [alike], 1)
    await replay_unsettled(bench, [other], 0)


@cocotb.test()
async def the_first_token_waits_until_settled(dut):
    """After a reset, of whatever kind the token before it was. A refused one does not count."""
    bench = await started(dut)
    for refused, taken in params["firsts"]:
        bench.dut.settled.value = 1
        await bench.run(gathered([taken], SOURCES), dict.fromkeys(SINKS), stop_at=60)
        await bench.reset(1)
        bench.dut.settled.value = 0
        await replay_unsettled(bench, [refused], 1)
        await replay_unsettled(bench, [taken], 0)
        await bench.reset(1)


async def replay_unsettled(bench, tokens, count):
    """``settled`` stays low: ``count`` words of finish leave in 60 cycles."""
    offers = gathered(tokens, SOURCES)
    result = await bench.run(offers, dict.fromkeys(SINKS), stop_at=60)
    assert len(result.words["finish"]) == count


@cocotb.test()
async def full_rate(dut):
    """A token takes a cycle, and one for each of its rows."""
    bench, timing = await started(dut), block_timing()
    flow = await replay(bench)
    cycle, requests = flow.cycles["token"][0], iter(flow.cycles["request"])
    for n, token in enumerate(TOKENS):
        assert flow.cycles["token"][n] == cycle
        assert flow.cycles["finish"][n] == cycle + timing.latency
        first = cycle + timing.delay("from token to its first request")
        for row in range(len(token["request"])):
            assert next(requests) == first + row * timing.interval
        cycle = first + len(token["request"])


def after_reset(tokens):
    """The first token of a kind waits, whatever token was before it in the list."""
    first = next(n for n, token in enumerate(tokens) if token["touched"])
    return [*tokens[:first], {**tokens[first], "waits": True}, *tokens[first + 1 :]]


@cocotb.test()
async def reset_in_mid_token(dut):
    bench = await started(dut)
    for cut in range(1, 60, 4):
        await bench.reset(1)
        await replay(bench, after_reset(TOKENS[cut % 5 :]), most=3, p_stall=0.3, stop_at=cut)
        await bench.reset(1)
        if cut % 2:
            await bench.run({}, {})
        await replay(bench, TOKENS[:6])
    await replay(bench)
