"""Runs inside the simulator, started by test_outlier.py: packets through KllmOutlier."""

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.index.support.two_sets import TwoSets


class Sums(TwoSets):
    """The packets of one codebook."""

    def __init__(self, phase: str) -> None:
        words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in ("i", "o")}
        self.codebook = unpack_ints(vectors[f"{phase}.codebook"])[0]
        sizes = [(count, config.columns) for count in params["phases"][phase]]
        super().__init__(words, sizes, cuts=range(1, 40, 3))

    async def enter(self, bench, p_idle=0.0) -> None:
        bench.dut.codebook.value = self.codebook


first, *others = map(Sums, params["phases"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests(*others)
