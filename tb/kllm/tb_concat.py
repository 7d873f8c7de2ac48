"""Runs inside the simulator, started by test_concat.py: beats through KllmConcat."""

from golden.words import unpack_ints
from tb.bench import vectors
from tb.contract import Contract


def joined(flow, counts):
    assert flow.cycles["i_a"] == flow.cycles["i_w"], "a beat of one input went alone"


contract = Contract(
    {name: unpack_ints(vectors[name]) for name in ("i_a", "i_w", "o")}, check=joined
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
