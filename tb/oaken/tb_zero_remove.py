"""Runs inside the simulator, started by test_zero_remove.py: blocks through OakenZeroRemove."""

from golden.words import unpack_ints
from tb.bench import config, vectors
from tb.contract import Contract

WORDS = {name: unpack_ints(vectors[name]) for name in ("i", "o")}
BEATS, BLOCKS = config.block // config.lanes, len(WORDS["o"])

contract = Contract(
    WORDS,
    packets={"i": range(BEATS, BEATS * BLOCKS + 1, BEATS), "o": range(1, BLOCKS + 1)},
    some=100,
    cuts=range(1, 20),
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
