"""The cycles of a lane's packets at full rate."""

from collections.abc import Iterable, Sequence

from golden.timing import Timing


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


def check_lane_cycles(flow, packets: Sequence[int], columns: int, stages: int, timing: Timing):
    """Check the cycle of every beat and of every sum, and what ``timing`` says of them.

    packets: beats of each. stages: registers before the accumulators. Packets whose sums were not
    all given are left out.
    """
    taken, given = flow.cycles["i"], flow.cycles["o"]
    packets = packets[: len(given) // columns]
    beats, sums = lane_cycles(columns, stages, packets)
    assert taken == beats, f"beats taken in cycles {taken}, not {beats}"
    assert sums[0] - beats[packets[0] - 1] == timing.latency
    gap = timing.delay("from a sum to the next")
    due = [first + gap * c for first in sums for c in range(columns)]
    assert given == due, f"sums in cycles {given}, not {due}"
