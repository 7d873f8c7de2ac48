"""Timing of the floating-point operators: one register per stage."""

from golden.timing import Timing


def operator(stages: int) -> Timing:
    """``stages`` registers from operands to result; 0 stages are combinational."""
    return Timing(latency=stages)
