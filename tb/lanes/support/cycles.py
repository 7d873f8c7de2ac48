"""The cycles of a lane's packets at full rate, against golden.lanes.timing."""

from collections.abc import Sequence

from golden.lanes.timing import lane_cycles
from golden.timing import Timing


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
