"""Runs inside the simulator, started by test_draw.py: elements, twice, and an id."""

from itertools import accumulate

from tb.bench import params
from tb.contract import Followed, block_timing

CHOICES, COUNTS = params["choice"], params["counts"]


class Draws(Followed):
    """The choice changes when an id is taken."""

    def begin(self, bench) -> None:
        self.done = 0

    def sample(self, bench) -> None:
        self.done += sum(1 for _ in bench.transfers(("o",)))

    def drive(self, bench) -> None:
        bench.dut.choice.value = CHOICES[min(self.done, len(CHOICES) - 1)]

    async def replay(self, bench, packets=None, **flow):
        self.begin(bench)
        self.drive(bench)
        return await super().replay(bench, packets, **flow)

    def check_timing(self, flow, packets=None) -> None:
        """Elements in successive cycles, the wait between, and the id after the last one."""
        timing, taken, given = block_timing(), iter(flow.cycles["i"]), iter(flow.cycles["o"])
        (_, from_first), (_, from_last) = timing.delays
        due = 0
        for k in COUNTS[: len(flow.cycles["o"])]:
            assert [next(taken) for _ in range(k)] == list(range(due, due + k))
            due = max(due + from_first, due + k - 1 + from_last)
            assert [next(taken) for _ in range(k)] == list(range(due, due + k))
            due += k - 1 + timing.latency
            assert next(given) == due
            due += 1


contract = Draws(
    {"i": params["i"], "o": params["o"]},
    packets={"i": list(accumulate(2 * k for k in COUNTS)), "o": range(1, len(COUNTS) + 1)},
    some=30, cuts=range(1, 200, 13),
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
