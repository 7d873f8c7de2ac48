"""Runs inside the simulator, started by test_orizuru_unit.py: leaves through KllmOrizuruUnit.

A tree without a leaf is compared by its ``valid`` alone.
"""

from golden.words import unpack_ints
from tb.bench import vectors
from tb.contract import Contract

WORDS = {name: unpack_ints(vectors[name]) for name in ("i", "o")}
contract = Contract(WORDS, some=300, masks={"o": unpack_ints(vectors["mask"])})
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
