"""Runs inside the simulator, started by test_dequantizer.py: beats of entries to elements."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract

WORDS = {name: unpack_ints(vectors[name]) for name in ("i", "o")}
contract = Contract(WORDS, some=params["some"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
