"""Timing of KLLM's blocks, as functions of their numbers."""

from golden.timing import Timing

__all__ = ["concat", "scaler"]


def concat() -> Timing:
    """A beat of pairs leaves in the cycle after both of its inputs came."""
    return Timing(latency=1, start="i_a", unit="beat")


def scaler(stages: int) -> Timing:
    """``stages`` registers from the sums to the output."""
    return Timing(latency=stages)
