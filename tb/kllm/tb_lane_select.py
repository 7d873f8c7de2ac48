"""Runs inside the simulator, started by test_lane_select.py: packets through KllmLaneSelect."""

from itertools import accumulate

import cocotb

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing
from tb.lanes.support.cycles import check_lane_cycles

STAGES = 1  # registers before the accumulators: those of a column's tree


class Packets(Contract):
    """All packets of one phase."""

    def __init__(self, name: str):
        phase = params["phases"][name]
        self.beats, self.integer = phase["beats"], phase["integer"]
        words = {each: unpack_ints(vectors[f"{name}.{each}"]) for each in ("i", "o")}
        sums = range(config.columns, len(words["o"]) + 1, config.columns)
        super().__init__(words, packets={"i": list(accumulate(self.beats)), "o": sums},
                         cuts=range(1, 60, 4))  # fmt: skip

    async def restart(self, bench, cycles=3) -> None:
        self.drive(bench)
        await super().restart(bench, cycles)

    def drive(self, bench) -> None:
        """The mode, of a lane whose sums have two grids."""
        if len(config.select_config.grids) > 1:
            bench.dut.is_integer.value = self.integer

    def check_timing(self, flow, packets=None) -> None:
        check_lane_cycles(flow, self.beats, config.columns, STAGES, block_timing())


PHASES = {name: Packets(name) for name in params["phases"]}
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = PHASES["kmeans"].tests()


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5])
async def all_phases(dut, p_idle, p_stall):
    """Largest words, and digits of integers."""
    bench = PHASES["kmeans"].bench(dut)
    await bench.reset()
    for phase in PHASES.values():
        phase.drive(bench)
        flow = await phase.replay(bench, p_idle=p_idle, p_stall=p_stall)
        if not p_idle and not p_stall:
            phase.check_timing(flow)
