"""Runs inside the simulator, started by test_lane_sparse.py: packets through KllmLaneSparse."""

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.index.support.two_sets import TwoSets

SIZES = [(words, config.columns) for words in params["lengths"]]
BOOKS = unpack_ints(vectors["codebook_b"])


class Sums(TwoSets):
    """All packets with one codebook."""

    def __init__(self, book: int) -> None:
        self.codebook = BOOKS[book]
        words = {"i": unpack_ints(vectors["i"]), "o": unpack_ints(vectors[f"o{book}"])}
        super().__init__(words, SIZES, cuts=range(1 + 3 * book, 30, 3 * len(BOOKS)))

    async def enter(self, bench, p_idle=0.0) -> None:
        bench.dut.codebook_b.value = self.codebook


first, *others = map(Sums, range(len(BOOKS)))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests(*others)
