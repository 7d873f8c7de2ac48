"""Timing of the stream blocks, as functions of their numbers."""

from fractions import Fraction

from golden.timing import Timing


def register() -> Timing:
    """A word leaves in the cycle after it came."""
    return Timing(latency=1)


def skid() -> Timing:
    """A word leaves in the cycle after it came."""
    return Timing(latency=1)


def fifo(depth: int, storage: str) -> Timing:
    """A place is free again ``latency`` + 1 cycles after its word came: less depth, less rate."""
    latency = {"flipflop": 1, "memory": 2}[storage]
    interval = max(Fraction(1), Fraction(latency + 1, depth))
    return Timing(latency=latency, interval=interval, words=(("i", 1), ("o", 1)))


def fork() -> Timing:
    return Timing(latency=0, end="o_k")


def join() -> Timing:
    return Timing(latency=0, start="the last i_k")


def arbiter() -> Timing:
    return Timing(latency=0, start="i_k")


def widen(ratio: int) -> Timing:
    """From a beat's last word to the beat; words come one per cycle."""
    return Timing(latency=1, interval=Fraction(ratio), unit="beat", start="a beat's last word on i")


def narrow(ratio: int) -> Timing:
    """The first word of a beat leaves in the cycle of i.valid; words leave one per cycle."""
    return Timing(latency=0, interval=Fraction(ratio), unit="beat", start="i.valid")


def repack() -> Timing:
    """From the word with the last byte of a word of o to that word; sizes decide the ratio."""
    return Timing(latency=2, start="the word of i that completes a word of o")
