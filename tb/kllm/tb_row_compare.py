"""Runs inside the simulator, started by test_row_compare.py: rows of tokens, and their masks."""

from tb.bench import params
from tb.contract import Contract

# The first row is taken in the cycle after its token.
contract = Contract(params["words"], packets=params["packets"], some=params["some"], first=1)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
