"""Runs inside the simulator: scale words and requests through OakenScaleBuffer."""

import cocotb

from golden.words import unpack_ints
from tb.bench import config, vectors
from tb.contract import Gapless

NAMES = ("i", "request", "o")
CUTS = (1, 2, 3, 5, 8, 13, 21, 34, 55)


def requests(phase: str, is_full: bool = True) -> Gapless:
    """The requests of one phase of the vectors."""
    words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in NAMES}
    ends = dict(zip(NAMES, vectors[f"{phase}.ends"].T.tolist(), strict=True))
    masks = {"o": unpack_ints(vectors[f"{phase}.mask"])}
    return Gapless(words, packets=ends, cuts=CUTS, masks=masks, is_full=is_full)


mixed = requests("mixed", is_full=False)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = mixed.tests()
# A word in every cycle, also across heads and requests: later words come in meanwhile.
full_rate = requests("full").tests()[3]


@cocotb.test()
async def requests_late(dut):
    """The ring is full again and again."""
    await mixed.replay(await mixed.started(dut), p_idle={"request": 0.97, "i": 0.0})


@cocotb.test()
async def a_ring_full_of_one_request(dut):
    """``depth`` tokens and one more: held, refused; nothing hangs, what follows is right."""
    bench = await mixed.started(dut)
    for p_stall in (0.0, 0.5):
        await requests("edge").replay(bench, p_stall=p_stall)


@cocotb.test()
async def streams_through(dut):
    """One head: more words than the ring holds, without a pause."""
    through = requests("through")
    through.check_timing(await through.replay(await mixed.started(dut)))
    assert len(through.words["i"]) > 2 * config.depth
