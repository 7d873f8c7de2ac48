"""Runs inside the simulator: requests and scale words through OakenTokenParameters."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract

WORDS = {name: unpack_ints(vectors[name]) for name in ("request", "scale", "o")}
TOKENS = params["tokens"]  # scale words after each request

contract = Contract(
    WORDS,
    packets={"request": range(1, len(TOKENS) + 1), "scale": TOKENS, "o": TOKENS},
    some=40,
    cuts=range(1, 20),
    first=1,
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
