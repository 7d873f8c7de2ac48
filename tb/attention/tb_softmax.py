"""Runs inside the simulator, started by test_softmax.py: rows one after another."""

from itertools import accumulate

from tb.bench import params
from tb.contract import Contract, block_timing

WORDS, COUNTS = params["words"], params["counts"]  # beats of each row, negative: a bad one
BAD = 1 << 16  # of a word of ``maximum``
GOOD = [max(count, 0) for count in COUNTS]


class Rows(Contract):
    """Each packet without a gap, and the latencies between the packets of a row."""

    def check_timing(self, flow, packets=None) -> None:
        moved = {name: iter(flow.cycles[name]) for name in self.words}

        def packet(name, begin, beats=1):
            """Cycle of the last of ``beats`` words, of which the first moves at ``begin``."""
            cycles = [next(moved[name]) for _ in range(beats)]
            due = list(range(begin, begin + beats))
            assert cycles == due, f"{name}: {cycles}, not from {begin}"
            return cycles[-1]

        timing, begin = block_timing(), 0
        for count in COUNTS[:packets]:
            row = packet("row", begin)
            score = packet("score", row + timing.delay("from row to the first score"), abs(count))
            maximum = packet("maximum", score + timing.latency)
            begin = maximum + 1
            if count > 0:
                first = maximum + timing.delay("from maximum to the first difference")
                difference = packet("difference", first, count)
                last = difference + timing.delay("from the last difference to total")
                total = packet("total", last)
                first = total + timing.delay("from total to the first weight")
                begin = packet("weight", first, count) + timing.delay("from the last weight to row")


ROW = [1] * len(COUNTS)
SIZES = {
    "row": ROW, "score": map(abs, COUNTS), "maximum": ROW, "difference": GOOD,
    "total": [min(count, 1) for count in GOOD], "weight": GOOD,
}  # fmt: skip
contract = Rows(
    WORDS,
    packets={name: list(accumulate(sizes)) for name, sizes in SIZES.items()},
    # The word of a bad row's maximum is unspecified.
    masks={"maximum": [BAD if word & BAD else -1 for word in WORDS["maximum"]]},
    idles=(0.0, 0.5, 0.9),
    cuts=range(1, 400, 23),
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
