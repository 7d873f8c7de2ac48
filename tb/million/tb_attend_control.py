"""Runs inside the simulator, started by test_attend_control.py: ATTENDs to groups and reads."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.million.cycles import Scheduled

WORDS = {name: unpack_ints(vectors[name]) for name in ("job", "slopes", "split", "group", "read")}

contract = Scheduled(
    WORDS, packets=params["packets"], some=8, cuts=[*range(1, 16), 23, 41, 58]
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
