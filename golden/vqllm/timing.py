"""Timing of the blocks of VQ-LLM, as functions of their numbers."""

from golden.timing import Timing

__all__ = ["codebook_cache", "dequantizer"]


def codebook_cache() -> Timing:
    """Tiers, reads, words, queue in two cycles, answer: of a beat on chip without conflicts."""
    return Timing(latency=6, start="look", end="entry", unit="beat")


def dequantizer() -> Timing:
    """Sum, rounding."""
    return Timing(latency=2, unit="beat")
