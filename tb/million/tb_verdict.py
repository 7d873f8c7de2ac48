"""Runs inside the simulator, started by test_verdict.py: ends of groups to results and statuses."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.million.cycles import Followed

STREAMS = (
    "begun", "group", "score_end", "value_end", "total", "read_end", "result", "status"
)  # fmt: skip
WORDS = {name: unpack_ints(vectors[name]) for name in STREAMS}


class Outputs(Followed):
    """``given`` follows each result, in the next cycle at full rate; ``attended`` each status.

    In ``late_ready`` all of an ATTEND's results come before the first ``given``.
    """

    chance = 0.5  # of ``given`` in a cycle after a result
    pause = 0  # cycles without a result before ``given``

    async def replay(self, bench, packets=None, **flow):
        self.chance = 0.2 if flow else 1.0
        self.pause = 9 if flow.get("late_ready") else 0
        return await super().replay(bench, packets, **flow)

    def begin(self, bench) -> None:
        self.waiting = self.pulse = self.quiet = 0
        self.rng = bench.rng("given")

    def sample(self, bench) -> None:
        moved = {name for name, _ in bench.transfers(("result", "status"))}
        assert int(bench.dut.attended.value) == ("status" in moved), "attended"
        self.waiting += "result" in moved
        self.quiet = 0 if "result" in moved else self.quiet + 1
        assert not ("status" in moved and self.waiting), "a status before the last output"

    def drive(self, bench) -> None:
        may = self.waiting > 0 and self.quiet >= self.pause
        self.pulse = int(may and self.rng.random() < self.chance)
        self.waiting -= self.pulse
        bench.dut.given.value = self.pulse


contract = Outputs(
    WORDS, packets=params["packets"], some=13, cuts=[*range(1, 14), 19, 27, 45]
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
