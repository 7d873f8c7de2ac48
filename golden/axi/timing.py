"""Timing of the AXI blocks, without the cycles of the memory that they reach."""

from fractions import Fraction

from golden.timing import Timing


def read_port(buffered: bool) -> Timing:
    """``buffered``: a skid buffer cuts R from o."""
    return Timing(
        latency=2, start="command", end="axi__ar", delays=(("from axi__r to o", int(buffered)),)
    )


def read_interval(burst_beats: int, outstanding: int, latency: int) -> Fraction:
    """Cycles per word of a long read, 1 at least: the bursts in flight cover the memory's latency.

    latency: from AR to the first beat. A burst's place is free ``latency + 3 + burst_beats`` cycles
    after it was taken, and brings ``burst_beats`` words.
    """
    return max(Fraction(1), Fraction(latency + 3 + burst_beats, burst_beats * outstanding))
