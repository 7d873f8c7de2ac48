"""Runs inside the simulator, started by test_kv_writer.py: K and V of tokens to rows."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.million.cycles import Scheduled

WORDS = {name: unpack_ints(vectors[name]) for name in ("job", "kv", "row", "x", "done")}

contract = Scheduled(
    WORDS, packets=params["packets"], some=6, cuts=[*range(1, 12), 17, 29, 40, 63]
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
