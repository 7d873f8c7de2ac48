"""Runs inside the simulator, started by test_descriptor_writer.py: tokens and what they wait for.

Expected descriptors are (care, word) pairs: those that are not valid have a slot only.
"""

import cocotb

from tb.bench import interface, params
from tb.contract import Followed, block_timing
from tb.kllm.support.cared import masked


class Tokens(Followed):
    """Pulses of ``token_done``, at most AHEAD before their tokens; each with ``chance`` per cycle.

    No token leaves before its pulse.
    """

    chance = 1.0

    def __init__(self, tokens) -> None:
        self.tokens, self.needs = tokens, [token["needs"] for token in tokens]
        words, packets, masks = masked(tokens, interface["sources"], interface["sinks"])
        super().__init__(words, packets=packets, masks=masks, cuts=range(1, 90, 6))

    def begin(self, bench) -> None:
        self.rng = bench.rng("entries")
        self.taken = self.given = self.used = self.pulse = 0

    def sample(self, bench) -> None:
        for _ in bench.transfers(("finish",)):
            self.used += self.needs[self.taken]
            assert self.used <= self.given, f"token {self.taken} before its entries"
            self.taken += 1
        self.given += self.pulse

    def drive(self, bench) -> None:
        left = min(sum(self.needs), self.used + params["ahead"]) - self.given
        self.pulse = int(left > 0 and self.rng.random() < self.chance)
        bench.dut.token_done.value = self.pulse

    async def replay(self, bench, packets=None, **flow):
        """The entries are as slow as the sources, or slow alone."""
        idle = flow.get("p_idle", 0.0)
        is_late = flow.get("late_ready", False)
        self.chance = 0.1 if is_late else 1.0 if isinstance(idle, dict) else 1 - idle
        return await super().replay(bench, packets, **flow)

    async def interrupt(self, bench, cut, **flow) -> None:
        await self.restart(bench, 1)  # the tokens begin with the first one
        await super().interrupt(bench, cut, **flow)

    def check_timing(self, flow, packets=None) -> None:
        cycles, latency = flow.cycles, block_timing().latency
        descriptors, statuses = iter(cycles["descriptor"]), iter(cycles["status"])
        for n, token in enumerate(self.tokens[:packets]):
            cycle = cycles["finish"][n]
            if token["descriptor"]:
                cycle += latency
                assert next(descriptors) == cycle
            if token["status"]:
                assert next(statuses) == cycle + 1


contract = Tokens(params["tokens"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def tokens_that_wait_for_nothing(dut):
    plain = Tokens(params["plain"])
    flow = await plain.replay(await plain.started(dut))
    plain.check_timing(flow)
    cycle = 0
    for n, token in enumerate(plain.tokens):
        assert flow.cycles["finish"][n] == cycle
        steps = block_timing().interval if token["descriptor"] else 1
        cycle += steps + len(token["status"])
