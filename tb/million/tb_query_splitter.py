"""Runs inside the simulator, started by test_query_splitter.py: groups of queries."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.million.cycles import Scheduled

WORDS = {name: unpack_ints(vectors[name]) for name in ("job", "query", "q", "slopes")}

contract = Scheduled(WORDS, packets=params["packets"], some=12)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
