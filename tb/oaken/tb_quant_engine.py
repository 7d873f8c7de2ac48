"""Runs inside the simulator, started by test_quant_engine.py: requests to OakenQuantEngine.

Shown to fail: the last beat of a vector expected one beat late.
"""

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract

NAMES = ("request", "i", "header", "dense", "sparse")
WORDS = {name: unpack_ints(vectors[name]) for name in NAMES}
# Words of each stream after each job.
COUNTS = dict(zip(NAMES, vectors["counts"][1:].T.tolist(), strict=True))


class Jobs(Contract):
    """Jobs right and wrong; a wrong one gives a header and no data."""

    async def replay(self, bench, packets=None, **flow):
        result = await super().replay(bench, packets, settle=40, **flow)
        if not flow.get("p_stall") and not flow.get("late_ready"):
            self.check_order(result, self.count if packets is None else packets)
        return result

    def check_order(self, flow, packets) -> None:
        """A header is taken before its data, if it is taken at once."""
        headers = flow.cycles["header"]
        for job in range(packets):
            header = COUNTS["header"][job - 1] if job else 0
            for name in ("dense", "sparse"):
                first = COUNTS[name][job - 1] if job else 0
                if COUNTS[name][job] > first:
                    assert headers[header] <= flow.cycles[name][first], name

    def check_timing(self, flow, packets=None) -> None:
        """A beat per cycle goes in from the first to the last; the first vector's latencies."""
        beats = COUNTS["i"][(self.count if packets is None else packets) - 1]
        assert flow.cycles["i"] == list(range(beats))
        alone = COUNTS["i"][0]
        assert flow.cycles["header"][0] - (alone - 1) == params["header_latency"]
        assert flow.cycles["dense"][0] - (alone - 1) == params["dense_latency"]
        assert flow.cycles["dense"][-1] <= beats + params["dense_latency"] + config.beats_max


contract = Jobs(
    WORDS,
    packets=COUNTS,
    some=max(1, sum(1 for beats in COUNTS["i"] if beats <= 1500)),
    cuts=(*range(1, 9), 15, 22, 29, 36, 43, 50, 77, 120, 250),
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
