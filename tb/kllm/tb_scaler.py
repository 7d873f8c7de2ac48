"""Runs inside the simulator, started by test_scaler.py: sums and scales through KllmScaler."""

from golden.words import unpack_ints
from tb.bench import vectors
from tb.contract import Contract

contract = Contract({name: unpack_ints(vectors[name]) for name in ("i", "o")}, some=600)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
