"""Runs inside the simulator, started by test_record_writer.py: codes of vectors to words."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.million.cycles import Scheduled

WORDS = {name: unpack_ints(vectors[name]) for name in ("code", "record", "w")}

contract = Scheduled(WORDS, packets=params["packets"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
