"""Inside the simulator: requests and transfers through OakenZeroInsert.

Shown to fail: entries out of order accepted; the next transfer let in a cycle late.
"""

import cocotb

from tb.bench import params, vectors
from tb.contract import Contract, block_timing
from tb.words import unpack_ints

NAMES = ("request", "sparse", "o")
CUTS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)


class Requests(Contract):
    """The requests of one phase of the vectors."""

    def __init__(self, phase: str):
        ends = dict(zip(NAMES, vectors[f"{phase}.ends"].T.tolist(), strict=True))
        words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in NAMES}
        super().__init__(words, packets=ends, cuts=CUTS)
        self.phase = phase

    def check_timing(self, flow, packets=None) -> None:
        """Every beat in the cycle after the one before, also across requests, at any density.

        Only requests of phase ``full`` bring the bytes in time.
        """
        taken = flow.cycles["o"]
        assert taken[0] >= block_timing().latency
        if self.phase == "full":
            first = block_timing().latency
            assert taken == list(range(first, first + len(taken)))


contract = Requests("mixed")
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
if "full" in params["phases"]:
    full_rate = Requests("full").tests()[3]


async def new_bench(dut):
    bench = contract.bench(dut)
    await bench.reset()
    return bench


@cocotb.test()
async def requests_late(dut):
    """Words wait for their request."""
    await contract.replay(await new_bench(dut), p_idle={"request": 0.98, "sparse": 0.0})


@cocotb.test()
async def skipping(dut):
    """A block of up to ``lanes`` outliers takes one cycle, unless its bytes are not there."""
    flow = await Requests("skip").replay(await new_bench(dut))
    assert flow.cycles["o"][-1] <= params["skip_limit"], flow.cycles["o"][-1]
