"""Runs inside the simulator, started by test_token_scheduler.py: tokens, and what they start.

Expected words are (care, word) pairs: fields without a meaning are not compared.
"""

import cocotb

from tb.bench import interface, params
from tb.contract import Followed, block_timing
from tb.kllm.support.cared import gathered, masked

TOKENS, SOURCES, SINKS = params["tokens"], interface["sources"], interface["sinks"]


class Tokens(Followed):
    """Drives ``settled``: low for up to ``most`` cycles after a word of ``finish``, then high.

    A token of another kind must not leave while it is low.
    """

    most = 9

    def begin(self, bench) -> None:
        bench.dut.codebook_ok.value = params["codebook_ok"]
        self.rng = bench.rng("settled")
        self.given = self.left = 0

    def sample(self, bench) -> None:
        for _ in bench.transfers(("finish",)):
            waits = TOKENS[self.given]["waits"]
            assert not self.left or not waits, f"token {self.given} did not wait"
            self.given += 1
            self.left = self.rng.randint(0, self.most)

    def drive(self, bench) -> None:
        bench.dut.settled.value = self.left == 0
        self.left = max(self.left - 1, 0)

    async def replay(self, bench, packets=None, **flow):
        self.most = 9 if flow else 0
        return await super().replay(bench, packets, **flow)

    async def interrupt(self, bench, cut, **flow) -> None:
        await self.restart(bench, 1)  # the tokens begin with the first one
        await super().interrupt(bench, cut, **flow)

    def check_timing(self, flow, packets=None) -> None:
        """A token takes a cycle, and one for each of its rows."""
        timing, cycle = block_timing(), flow.cycles["token"][0]
        requests = iter(flow.cycles["request"])
        for n, token in enumerate(TOKENS[:packets]):
            assert flow.cycles["token"][n] == cycle
            assert flow.cycles["finish"][n] == cycle + timing.latency
            first = cycle + timing.delay("from token to its first request")
            for row in range(len(token["request"])):
                assert next(requests) == first + row * timing.interval
            cycle = first + len(token["request"])


words, packets, masks = masked(TOKENS, SOURCES, SINKS)
contract = Tokens(words, packets=packets, masks=masks, cuts=range(1, 120, 4))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


async def by_hand(dut):
    """A bench whose test drives ``settled``."""
    bench = contract.bench(dut)
    dut.codebook_ok.value = params["codebook_ok"]
    await bench.reset()
    return bench


@cocotb.test()
async def another_kind_waits_until_settled(dut):
    bench = await by_hand(dut)
    alike, other = params["pair"]
    bench.dut.settled.value = 0
    await replay_unsettled(bench, [alike], 1)
    await replay_unsettled(bench, [other], 0)


@cocotb.test()
async def the_first_token_waits_until_settled(dut):
    """After a reset, of whatever kind the token before it was. A refused one does not count."""
    bench = await by_hand(dut)
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
