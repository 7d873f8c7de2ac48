"""Runs inside the simulator, started by test_row_gather.py: words to rows."""

import cocotb

from tb.bench import params
from tb.contract import Contract

WORDS = {"y": params["y"], "o": params["o"]}
ROWS = range(1, len(WORDS["o"]) + 1)
contract = Contract(
    WORDS, packets={"y": [16 * n for n in ROWS], "o": list(ROWS)}, cuts=range(1, 60, 4)
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def a_row_and_15_words(dut):
    """While its row waits, the block takes 15 words of the next one."""
    bench = await contract.started(dut)
    flow = await bench.run({"y": WORDS["y"]}, {"o": None}, p_stall=1.0, stop_at=60)
    assert flow.sent["y"] == 31
