"""Runs inside the simulator, started by test_token_walk.py: jobs, their tokens and rows."""

from tb.bench import params
from tb.contract import Contract, block_timing


class Jobs(Contract):
    """A token takes a cycle, and one for each row of its first pass."""

    def check_timing(self, flow, packets=None):
        timing, cycle = block_timing(), 1  # none is taken in the first cycle after reset
        tokens, requests = iter(flow.cycles["token"]), iter(flow.cycles["request"])
        taken = []
        for job in params["jobs"][: len(flow.cycles["job"])]:
            for rows in job:
                assert next(tokens) == cycle + timing.latency
                first = cycle + timing.delay("from token to its first request")
                for row in range(rows):
                    assert next(requests) == first + row
                cycle = cycle + timing.interval + rows
            taken.append(cycle - 1)
        assert flow.cycles["job"] == taken


contract = Jobs(params["words"], packets=params["packets"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
