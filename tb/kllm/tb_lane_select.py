"""Runs inside the simulator, started by test_lane_select.py: packets through KllmLaneSelect."""

from itertools import accumulate

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

    async def enter(self, bench, p_idle=0.0) -> None:
        """The mode, of a lane whose sums have two grids."""
        if len(config.select_config.grids) > 1:
            bench.dut.is_integer.value = self.integer

    def check_timing(self, flow, packets=None) -> None:
        check_lane_cycles(flow, self.beats, config.columns, STAGES, block_timing())


first, *others = map(Packets, params["phases"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests(*others)
