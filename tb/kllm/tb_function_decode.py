"""Runs inside the simulator, started by test_function_decode.py: commands to jobs."""

from tb.bench import params
from tb.contract import Contract, block_timing


class Commands(Contract):
    """The next command is taken in the cycle after its job."""

    def check_timing(self, flow, packets=None) -> None:
        timing, taken = block_timing(), flow.cycles["command"]
        assert taken == [int(timing.interval) * n for n in range(len(taken))]
        assert flow.cycles["job"] == [begin + timing.latency for begin in taken]


contract = Commands(
    {"command": params["commands"], "job": params["jobs"]}, masks={"job": params["masks"]},
    idles=(0.0, 0.5, 0.9), cuts=range(1, 30),
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
