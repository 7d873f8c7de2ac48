"""Runs inside the simulator, started by test_quantize_decode.py: commands, and their jobs."""

from tb.bench import params
from tb.contract import Contract

contract = Contract(params["words"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
