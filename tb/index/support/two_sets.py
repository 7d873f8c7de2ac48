"""A block that adds a packet up in one set of registers and reads out another: its cycles."""

from collections.abc import Iterable
from itertools import accumulate

from tb.contract import Contract, block_timing


def two_set_cycles(packets: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Cycle of each transfer (in, out) at full rate, from the contract alone.

    packets: (words in, words out) of each. A word is registered in the cycle of its transfer and
    added in the next; complete sums are copied, in the first cycle after that in which the other
    set is free or gives its last word; they go out from the cycle after the copy on. While complete
    sums wait for their copy nothing moves.
    """
    taken, given = [], []
    cycle, complete, copy, end = 0, 0, 0, -1
    for words_in, words_out in packets:
        for _ in range(words_in):
            if complete <= cycle < copy:
                cycle = copy
            taken.append(cycle)
            cycle += 1
        if complete <= cycle < copy:  # the last word waits in its register
            cycle = copy
        complete = cycle + 1
        copy = max(complete, end)
        given += range(copy + 1, copy + 1 + words_out)
        end = given[-1]
    return taken, given


class TwoSets(Contract):
    """Every transfer in the cycle that the contract gives; adding up overlaps the output.

    sizes: (words in, words out) of each packet.
    """

    def __init__(self, words, sizes, **fields) -> None:
        self.sizes = sizes
        i, o = (list(accumulate(counts)) for counts in zip(*sizes, strict=True))
        super().__init__(words, packets={"i": i, "o": o}, **fields)

    def cycles(self, packets: int | None) -> tuple[list[int], list[int]]:
        return two_set_cycles(self.sizes[:packets])

    def check_timing(self, flow, packets=None) -> None:
        i, o = self.cycles(packets)
        assert flow.cycles["i"] == i
        assert flow.cycles["o"] == o
        assert o[0] - i[self.sizes[0][0] - 1] == block_timing().latency
