"""Cycles of the lanes of other number formats. Pure Python."""

from collections.abc import Iterable

from golden.timing import Timing


def lane(stages: int) -> Timing:
    """From a packet's last beat to the sum of column 0; adding up overlaps giving.

    stages: registers between a beat and the accumulators. Accumulator, chain and rounding follow.
    """
    return Timing(
        latency=stages + 3,
        start="a packet's last i",
        unit="beat",
        delays=(("from a sum to the next", 1),),
    )


def lane_cycles(columns: int, stages: int, packets: Iterable[int]) -> tuple[list[int], list[int]]:
    """(cycle of each beat of ``i``, cycle of each packet's first sum) at full rate.

    packets: beats of each, the first beat of all in cycle 0. A beat is added ``stages`` cycles
    after it is taken, or later where it waits. A packet moves to the chain in the cycle after its
    last addition, or ``columns`` cycles after the packet before. No beat of the next packet is
    added earlier. A beat is taken when the beat ``stages`` places ahead leaves the registers.
    """
    taken: list[int] = []
    added: list[int] = []
    sums: list[int] = []
    moved = -columns  # when the last packet moved to the chain
    for beats in packets:
        for beat in range(beats):
            ahead = added[-stages] if len(added) >= stages else 0
            taken.append(max(taken[-1] + 1 if taken else 0, ahead))
            earliest = moved if sums and beat == 0 else 0
            added.append(max(taken[-1] + stages, added[-1] + 1 if added else 0, earliest))
        moved = max(added[-1] + 1, moved + columns)
        sums.append(moved + 2)
    return taken, sums


def column(stages: int) -> Timing:
    """From the beat that enters stage 0 to its sum: stages, accumulator, ``held``."""
    return Timing(latency=stages + 2, start="a", end="held", unit="beat")
