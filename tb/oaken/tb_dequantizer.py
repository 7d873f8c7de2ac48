"""Runs inside the simulator: beats through OakenInlierDequantizer or OakenOutlierDequantizer."""

from golden.words import unpack_ints
from tb.bench import vectors
from tb.contract import Contract

contract = Contract({name: unpack_ints(vectors[name]) for name in ("i", "o")}, some=120)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
