"""Timing of the memories: a read is answered after ``latency`` cycles, whatever the size."""

from golden.timing import Timing


def one_port() -> Timing:
    return Timing(latency=1, start="a read", end="read_data", unit="read or write")


def one_read_one_write() -> Timing:
    return Timing(latency=1, start="read_en", end="read_data", unit="read and one write")


def shared() -> Timing:
    """Over all clients: one read and one write per cycle."""
    return Timing(latency=2, start="a request", end="its answer", unit="read and one write")
