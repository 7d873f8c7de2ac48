"""Runs inside the simulator: requests and transfers through OakenTokenSplit."""

import cocotb

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Gapless

NAMES = ("request", "i", "scale", "dense", "sparse")
CUTS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)


def requests(phase: str, is_full: bool = False) -> Gapless:
    """The requests of one phase of the vectors."""
    ends = dict(zip(NAMES, vectors[f"{phase}.ends"].T.tolist(), strict=True))
    words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in NAMES}
    masks = {name: unpack_ints(vectors[f"{phase}.{name}_mask"]) for name in NAMES[2:]}
    return Gapless(words, packets=ends, cuts=CUTS, masks=masks, is_full=is_full)


contract = requests("mixed")
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
if "full" in params["phases"]:
    # A block in every cycle, across records.
    full_rate = requests("full", is_full=True).tests()[3]


@cocotb.test()
async def requests_late(dut):
    """Words wait for their request."""
    await contract.replay(await contract.started(dut), p_idle={"request": 0.98, "i": 0.0})


@cocotb.test()
async def skipping(dut):
    """A block that is skipped takes one cycle, unless its bytes are not there."""
    flow = await requests("skip").replay(await contract.started(dut))
    assert flow.cycles["dense"][-1] <= params["skip_limit"], flow.cycles["dense"][-1]
