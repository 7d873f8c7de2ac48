"""Runs inside the simulator, started by test_encode_control.py: rows to records of codes."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.million.cycles import Followed

WORDS = {name: unpack_ints(vectors[name]) for name in params["packets"]}


class Idle(Followed):
    """``idle`` in every cycle: no job is between ``job`` and ``done``."""

    def begin(self, bench) -> None:
        self.jobs = self.done = 0

    def sample(self, bench) -> None:
        is_idle = bool(bench.dut.idle.value)
        assert is_idle == (self.jobs == self.done), f"idle is {is_idle} in job {self.jobs}"
        for name, _ in bench.transfers(("job", "done")):
            self.jobs += name == "job"
            self.done += name == "done"

    def drive(self, bench) -> None:
        pass


contract = Idle(
    WORDS, packets=params["packets"], some=40, cuts=[*range(1, 14), 25, 49, 77, 103]
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
