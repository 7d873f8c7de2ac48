"""Timing of Oaken's blocks, as functions of their numbers."""

from golden.timing import Timing

__all__ = ["decomposer", "zero_remove"]


def decomposer() -> Timing:
    """A beat of groups and codes leaves three cycles after its values came."""
    return Timing(latency=3, unit="beat")


def zero_remove() -> Timing:
    """From the last beat of a block to the block."""
    return Timing(latency=3, unit="beat")
