"""Runs inside the simulator, started by test_cache_host.py: words, requests, answers."""

from tb.bench import params
from tb.contract import Contract

WORDS = params["words"]
count = len(WORDS["request"])
packets = dict.fromkeys(WORDS, range(1, count + 1)) | {"word": range(4, 4 * count + 1, 4)}


class Requests(Contract):
    """A request leaves in the cycle after its last word; an answer with its status."""

    def check_timing(self, flow, packets=None) -> None:
        super().check_timing(flow, packets)
        assert flow.cycles["answer"] == flow.cycles["status"]


# The last request has no word after it.
contract = Requests(WORDS, packets=packets, units=count)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
