"""Runs inside the simulator: scans and vectors through a GroupQuantizer.

Started by test_inlier_quantizer.py and test_outlier_quantizer.py. Shown to fail: maxima that a
vector inherits from the one before.
"""

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract

WORDS = {name: unpack_ints(vectors[name]) for name in ("scan", "i", "scale", "o")}
# After each vector: words on scan, on i and o, on scale.
SCANS, BEATS, SCALES = (column.tolist() for column in vectors["counts"][1:].T)


class Passes(Contract):
    """A vector is scanned, then quantized: the second pass starts when the scales are known."""

    def check_timing(self, flow, packets=None) -> None:
        """Both passes go on at a beat per cycle: the second ends when it must."""
        scans = SCANS[(self.count if packets is None else packets) - 1]
        if config.vectors >= len(flow.words["scale"]):
            assert flow.cycles["scan"] == list(range(scans))
        last = scans + params["scale_latency"] + params["longest"]
        assert flow.cycles["i"][-1] <= last, f"{flow.cycles['i'][-1]} cycles, at most {last}"
        # What one vector takes alone: its scan, its scales, its beats.
        assert flow.cycles["i"][0] == SCANS[0] - 1 + params["scale_latency"]
        assert flow.cycles["o"][0] - flow.cycles["i"][0] == params["latency"]


contract = Passes(
    WORDS,
    packets={"scan": SCANS, "i": BEATS, "scale": SCALES, "o": BEATS},
    some=50,
    cuts=(*range(1, 24), 40, 60),
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
