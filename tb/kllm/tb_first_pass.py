"""Runs inside the simulator, started by test_first_pass.py: tokens, and rows to either output."""

from tb.bench import params
from tb.contract import Contract, block_timing


class Rows(Contract):
    """Row after row, also from one token to the next; the first one a cycle after the reset."""

    def check_timing(self, flow, packets=None):
        timing = block_timing()
        rows = flow.cycles["row"]
        assert rows == [1 + n * timing.interval for n in range(len(rows))]
        given = sorted([*flow.cycles["x"], *flow.cycles["integer"]])
        assert given == [cycle + timing.latency for cycle in rows]
        ends = self.packets["row"][: len(flow.cycles["token"])]
        assert flow.cycles["token"] == [rows[end - 1] for end in ends]


contract = Rows(params["words"], packets=params["packets"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
