"""Runs inside the simulator, started by test_lane_select.py: packets through KllmLaneSelect."""

from itertools import accumulate

import cocotb

from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing
from tb.words import unpack_ints


class Packets(Contract):
    """All packets of one phase."""

    def __init__(self, name: str):
        self.beats = params["phases"][name]
        words = {each: unpack_ints(vectors[f"{name}.{each}"]) for each in ("i", "o")}
        sums = range(config.columns, len(words["o"]) + 1, config.columns)
        super().__init__(words, packets={"i": list(accumulate(self.beats)), "o": sums},
                         cuts=range(1, 60, 4))  # fmt: skip

    def check_timing(self, flow, packets=None) -> None:
        """The first packet's latency; sums in consecutive cycles; no gap but for the chain."""
        timing, columns = block_timing(), config.columns
        taken, given = flow.cycles["i"], flow.cycles["o"]
        first = self.beats[0]
        assert taken[:first] == list(range(first)), "a beat of the first packet waited"
        assert given[0] - taken[first - 1] == timing.latency
        gap = timing.delay("from a sum to the next")
        for at in range(0, len(given), columns):
            start = given[at]
            assert given[at : at + columns] == list(range(start, start + columns * gap, gap))
        # The sums of a packet follow its last beat, or the sums of the packet before it.
        end = -1
        for n, last in enumerate(list(accumulate(self.beats))[: len(given) // columns]):
            due = max(taken[last - 1] + timing.latency, end + 1)
            assert given[n * columns] == due, f"packet {n}: sums in {given[n * columns]}, not {due}"
            end = given[(n + 1) * columns - 1]
        if min(self.beats) >= columns:
            assert taken == list(range(len(taken))), "a beat waited"


PHASES = {name: Packets(name) for name in params["phases"]}
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = PHASES["kmeans"].tests()


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5])
async def all_phases(dut, p_idle, p_stall):
    """Largest words, and digits of integers."""
    bench = PHASES["kmeans"].bench(dut)
    await bench.reset()
    for phase in PHASES.values():
        flow = await phase.replay(bench, p_idle=p_idle, p_stall=p_stall)
        if not p_idle and not p_stall:
            phase.check_timing(flow)
