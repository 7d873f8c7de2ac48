"""Runs inside the simulator: packets through any lane of this room, phase by phase.

A lane with a table gets that of the phase first.
"""

from itertools import accumulate

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

    async def enter(self, bench, p_idle=0.0) -> None:
        if self.table:
            flow = await bench.run(self.table, {}, p_idle=p_idle, settle=0)
            cycles = flow.cycles["entry"]
            is_whole = cycles == list(range(cycles[0], cycles[0] + len(cycles)))
            assert is_whole or p_idle, "an entry waited"

    def check_timing(self, flow, packets=None) -> None:
        check_lane_cycles(flow, self.beats, config.columns, config.stages, block_timing())


first, *others = map(Packets, params["phases"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests(*others)
