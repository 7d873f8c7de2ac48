"""Runs inside the simulator, started by test_reducer.py: packets of counts through IndexReducer."""

from itertools import accumulate

from tb.bench import params, vectors
from tb.contract import Contract
from tb.words import unpack_ints

WORDS = {name: unpack_ints(vectors[name]) for name in ("i", "o")}
ENDS = list(accumulate(params["beats"]))  # beats up to the end of each packet

contract = Contract(WORDS, packets={"i": ENDS, "o": range(1, len(ENDS) + 1)})
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
