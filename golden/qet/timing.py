"""Timing of the blocks of QET, as functions of their numbers."""

from golden.timing import Timing

__all__ = ["swap", "unswap"]


def swap(levels: int) -> Timing:
    """A register after each level, as each level compares once; without levels, one register."""
    return Timing(latency=max(levels, 1), unit="beat")


def unswap() -> Timing:
    """One register after all levels: a level selects, and does not compare."""
    return Timing(latency=1, unit="beat")
