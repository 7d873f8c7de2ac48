"""Runs inside the simulator: packets through any lane of this room, phase by phase.

A lane with a table gets that of the phase first.
"""

from itertools import accumulate

import cocotb

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing
from tb.lanes.support.cycles import check_lane_cycles


class Packets(Contract):
    """All packets of one phase."""

    def __init__(self, name: str):
        self.beats = params["phases"][name]
        words = {each: unpack_ints(vectors[f"{name}.{each}"]) for each in ("i", "o")}
        sums = range(config.columns, len(words["o"]) + 1, config.columns)
        packets = {"i": list(accumulate(self.beats)), "o": sums}
        self.table = {}
        if f"{name}.entry" in vectors:
            self.table = {"entry": unpack_ints(vectors[f"{name}.entry"])}
            words["entry"], packets["entry"] = [], [0] * len(self.beats)
        super().__init__(words, packets=packets, cuts=range(1, 60, 4))

    async def load(self, bench) -> None:
        if self.table:
            flow = await bench.run(self.table, {}, settle=0)
            cycles = flow.cycles["entry"]
            assert cycles == list(range(cycles[0], cycles[0] + len(cycles))), "an entry waited"

    async def restart(self, bench, cycles=3) -> None:
        await super().restart(bench, cycles)
        await self.load(bench)

    def check_timing(self, flow, packets=None) -> None:
        check_lane_cycles(flow, self.beats, config.columns, config.stages, block_timing())


PHASES = {name: Packets(name) for name in params["phases"]}
FIRST = PHASES[next(iter(PHASES))]
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = FIRST.tests()


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5])
async def all_phases(dut, p_idle, p_stall):
    """Every phase in turn: random words, and those at the ends of their ranges."""
    bench = FIRST.bench(dut)
    await bench.reset()
    for phase in PHASES.values():
        await phase.load(bench)
        flow = await phase.replay(bench, p_idle=p_idle, p_stall=p_stall)
        if not p_idle and not p_stall:
            phase.check_timing(flow)
