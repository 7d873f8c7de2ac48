"""Runs inside the simulator: requests and transfers through OakenZeroInsert.

Shown to fail: entries out of order accepted; the next transfer let in a cycle late.
"""

import cocotb

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Gapless

NAMES = ("request", "sparse", "o")
CUTS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)


def requests(phase: str) -> Gapless:
    """The requests of one phase of the vectors; those of ``full`` bring the bytes in time."""
    ends = dict(zip(NAMES, vectors[f"{phase}.ends"].T.tolist(), strict=True))
    words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in NAMES}
    return Gapless(words, packets=ends, cuts=CUTS, is_full=phase == "full")


contract = requests("mixed")
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
if "full" in params["phases"]:
    # Every beat in the cycle after the one before, also across requests, at any density.
    full_rate = requests("full").tests()[3]


@cocotb.test()
async def requests_late(dut):
    """Words wait for their request."""
    await contract.replay(await contract.started(dut), p_idle={"request": 0.98, "sparse": 0.0})


@cocotb.test()
async def many_tokens(dut):
    if "long" in params["phases"]:
        await requests("long").replay(await contract.started(dut))


@cocotb.test()
async def skipping(dut):
    """A block of up to ``lanes`` outliers takes one cycle, unless its bytes are not there."""
    flow = await requests("skip").replay(await contract.started(dut))
    assert flow.cycles["o"][-1] <= params["skip_limit"], flow.cycles["o"][-1]
