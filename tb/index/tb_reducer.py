"""Runs inside the simulator, started by test_reducer.py: packets of counts through IndexReducer."""

from itertools import accumulate

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, params, vectors
from tb.contract import Contract

WORDS = {name: unpack_ints(vectors[name]) for name in ("i", "o")}
ENDS = list(accumulate(params["beats"]))  # beats up to the end of each packet

contract = Contract(WORDS, packets={"i": ENDS, "o": range(1, len(ENDS) + 1)})
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def a_sum_that_waits_stops_no_packet(dut):
    """The block takes the whole next packet while ``o`` is stalled and a sum is there.

    Shown to fail: ``move`` that waits for the rounder although no finished sum does.
    """
    bench = await Bench.started(dut, sources=("i",), sinks=("o",))
    longest = sorted(range(1, len(ENDS)), key=lambda n: ENDS[n] - ENDS[n - 1])[-3:]
    for n in longest:
        begin = ENDS[n - 2] if n > 1 else 0
        offered = WORDS["i"][begin : ENDS[n]]
        assert ENDS[n] - ENDS[n - 1] > 1
        flow = await bench.run({"i": offered}, {"o": None}, p_stall=1.0, stop_at=len(offered) + 20)
        assert flow.sent["i"] == len(offered)
        assert bench.offered("o")
        await bench.reset(1)
