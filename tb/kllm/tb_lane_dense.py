"""Runs inside the simulator, started by test_lane_dense.py: packets through KllmLaneDense."""

from itertools import accumulate

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing

PHASES = params["phases"]  # beats of each packet, mode; each has its table of weights


class Packets(Contract):
    """All packets of one phase. A beat per cycle; the first latency, and the spacing of sums."""

    def __init__(self, name: str) -> None:
        self.beats, self.integer = PHASES[name]["beats"], PHASES[name]["integer"]
        words = {each: unpack_ints(vectors[f"{name}.{each}"]) for each in ("i", "o")}
        sums = range(config.columns, len(words["o"]) + 1, config.columns)
        packets = {"i": list(accumulate(self.beats)), "o": sums, "product": [0] * len(sums)}
        self.table = unpack_ints(vectors[f"{name}.product"])
        cuts = range(1 + 3 * list(PHASES).index(name), 80, 3 * len(PHASES))
        super().__init__(words | {"product": []}, packets=packets, cuts=cuts)

    async def enter(self, bench, p_idle=0.0) -> None:
        bench.dut.is_integer.value = self.integer
        await bench.run({"product": self.table}, {}, p_idle=p_idle)

    def check_timing(self, flow, packets=None) -> None:
        timing, i, o, first = block_timing(), flow.cycles["i"], flow.cycles["o"], self.beats[0]
        assert i[:first] == list(range(i[0], i[0] + first))
        gap = config.cycles.integer_words if self.integer else config.cycles.words
        latency = timing.delay("in integer mode") if self.integer else timing.latency
        assert o[0] - i[first - 1] == latency, f"{o[0] - i[first - 1]}, not {latency}"
        assert self.integer or gap == timing.delay("from a sum to the next")
        reduce = config.columns * gap
        assert o[: config.columns] == list(range(o[0], o[0] + reduce, gap))
        # Counting overlaps reducing: packets that take longer to count leave no gap.
        if min(self.beats) >= reduce:
            assert i == list(range(i[0], i[0] + sum(self.beats)))


first, *others = map(Packets, PHASES)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests(*others)
