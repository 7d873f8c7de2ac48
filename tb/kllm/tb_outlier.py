"""Runs inside the simulator, started by test_outlier.py: packets through the sparse path."""

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import block_timing
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


class SumsInTurn(Sums):
    """A present word takes ``parts`` cycles; these, and the last one, wait for the sums before."""

    def cycles(self, packets):
        i, o, now, free, words = [], [], 0, 0, iter(self.words["i"])
        for count, columns in self.sizes[:packets]:
            for n in range(count):
                is_present = next(words) & 1
                if is_present or n == count - 1:
                    now = max(now, free)
                now += config.parts if is_present else 1
                i.append(now - 1)
            first = i[-1] + block_timing().latency
            free = first + columns
            o += range(first, free)
        return i, o


of_phase = Sums if config.parts == 1 else SumsInTurn
first, *others = map(of_phase, params["phases"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests(*others)
