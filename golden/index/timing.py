"""Timing of the index blocks, as functions of their numbers."""

from golden.timing import Timing

__all__ = ["reducer"]


def reducer() -> Timing:
    """Products, sum, rounding: from the beat with last to the sum."""
    return Timing(latency=3, unit="beat", start="i")
