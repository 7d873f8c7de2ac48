"""Runs inside the simulator, started by test_reduce.py: sums of cores and those of rows."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing

WORDS = {name: unpack_ints(words) for name, words in vectors.items()}
CAUSES = params["causes"]  # of each sum, (stream, word) of the parts that are added
STEPS = params["steps"]  # of each sum, cycles since the one before, at least


class Rows(Contract):
    """A sum comes at its latency after its last part, and rows follow each other."""

    def check_timing(self, flow, packets=None) -> None:
        latency, taken = block_timing().latency, flow.cycles
        for n, cycle in enumerate(taken["sum"]):
            last = max(taken[name][word] for name, word in CAUSES[n])
            assert cycle - last == latency, f"sum {n}"
            assert cycle - taken["sum"][n - 1] == STEPS[n] or not n, f"sum {n}"


contract = Rows(WORDS, packets=params["packets"], cuts=[*range(1, 8), 19, 33, 60, 111])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
