"""Runs inside the simulator, started by test_row_finish.py: sums of rows to FP16."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract


class OfExponent(Contract):
    """All sums of a run have one exponent."""

    async def restart(self, bench, cycles=3) -> None:
        bench.dut.exponent.value = params["exponent"]
        await super().restart(bench, cycles)


WORDS = {name: unpack_ints(words) for name, words in vectors.items()}
# A packet is a row: one scale, and a sum of each group
ENDS = {"sum": params["ends"], "y": params["ends"], "scale": range(1, len(params["ends"]) + 1)}
contract = OfExponent(WORDS, packets={name: ENDS[name] for name in WORDS})
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
