"""Runs inside the simulator, started by test_row_sums.py: jobs on vectors and rows."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in ("x", "job", "w", "sum")}
CAUSES = params["causes"]  # the beat of w that ends the row of each sum
EARLY = params["early"]  # cycles before the sum of the row's last group
HELD = params["held"]  # cycles that each beat of w takes


class Rows(Contract):
    """The beats of a buffer of vectors follow each other; each sum comes at its latency."""

    def check_timing(self, flow, packets=None) -> None:
        latency, taken = block_timing().latency, flow.cycles["w"]
        for n, cycle in enumerate(flow.cycles["sum"]):
            assert cycle - taken[CAUSES[n]] == latency - EARLY[n], f"sum {n}"
        for first, last in params["gapless"]:
            if last < len(taken):
                cycles = sum(HELD[first + 1 : last + 1])
                assert taken[last] - taken[first] == cycles, f"beats {first} to {last}"


contract = Rows(
    WORDS,
    packets=params["packets"],
    cuts=[*range(1, 12), 19, 33, 60, 111, 230],
    masks={"sum": unpack_ints(vectors["mask"])},
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
