"""Runs inside the simulator, for VqExchange and VqLayoutBuffer: vectors to pieces.

``params["pieces"]``: beats that leave for each beat of vectors. ``params["waits"]``: a beat of
vectors is taken in its last cycle.
"""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in ("i", "o")}
PIECES, ENDS = params["pieces"], params["ends"]


class Pieces(Contract):
    """Beats leave without a pause, from the latency after their vectors on."""

    def check_timing(self, flow, packets=None) -> None:
        packets = self.count if packets is None else packets
        timing, taken, given = block_timing(), flow.cycles["i"], flow.cycles["o"]
        first = PIECES[0] - 1 if params["waits"] else 0
        assert taken[0] == first, f"first beat in cycle {taken[0]}"
        due = first + timing.latency
        assert given == list(range(due, due + ENDS[packets - 1])), f"beats in {given[:20]}"
        assert timing.interval == max(PIECES)
        for n in range(packets):
            assert given[ENDS[n] - PIECES[n]] - taken[n] == timing.latency, f"beat {n}"


contract = Pieces(
    WORDS,
    packets={"i": range(1, len(PIECES) + 1), "o": ENDS},
    cuts=[*range(1, 14), 17, 26, 37],
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
