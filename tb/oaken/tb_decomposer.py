"""Runs inside the simulator, started by test_decomposer.py: vectors through OakenDecomposer."""

from golden.words import unpack_ints
from tb.bench import config, vectors
from tb.contract import Contract

WORDS = {name: unpack_ints(vectors[name]) for name in ("thresholds", "i", "o")}
LAST = 1 << 16 * config.lanes
ENDS = [n + 1 for n, word in enumerate(WORDS["i"]) if word & LAST]

contract = Contract(
    WORDS, packets={"i": ENDS, "o": ENDS, "thresholds": range(1, len(ENDS) + 1)}, some=60
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
