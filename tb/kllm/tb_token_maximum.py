"""Runs inside the simulator, started by test_token_maximum.py: rows of tokens, and their maxima."""

from tb.bench import params
from tb.contract import Contract, block_timing


class Tokens(Contract):
    """A token begins when the maximum of the one before it was taken."""

    def check_timing(self, flow, packets=None):
        timing, begin = block_timing(), 0
        for n, end in enumerate(self.packets["i"][: len(flow.cycles["largest"])]):
            first = self.packets["i"][n - 1] if n else 0
            taken = flow.cycles["i"][first:end]
            assert taken == [begin + row * timing.interval for row in range(end - first)]
            largest = taken[-1] + timing.latency
            assert flow.cycles["largest"][n] == largest
            assert flow.cycles["status"][n] == largest + timing.delay("from largest to status")
            begin = largest + timing.delay("from largest to the next row")


contract = Tokens(params["words"], packets=params["packets"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
