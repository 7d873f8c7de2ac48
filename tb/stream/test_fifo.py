"""StreamFifo in Verilator against golden.stream.reference.identity."""

from golden.stream.reference import identity
from golden.stream.vectors import pack, random_words, rng
from hdl.stream.fifo import StreamFifo, StreamFifoConfig
from tb.stream.support.bank import Case, check

COUNT = 150
SIZES = ((1, 1), (2, 2), (7, 3), (32, 5), (33, 16))


def output_cycles(latency, depth):
    """Cycle of every word at full offer and demand: a place is free the cycle after its word."""
    taken, left = [], []
    for n in range(COUNT):
        earliest = [taken[-1] + 1] if taken else [0]
        if n >= depth:
            earliest.append(left[n - depth] + 1)
        taken.append(max(earliest))
        left.append(max([taken[n] + latency, *([left[-1] + 1] if left else [])]))
    return taken, left


def test_fifo(seed):
    cases = []
    for storage in ("flipflop", "memory"):
        for width, depth in SIZES:
            config = StreamFifoConfig(width=width, depth=depth, storage=storage)
            words = random_words(rng(seed, "fifo", width), width, COUNT)
            taken, left = output_cycles(config.latency, depth)
            cases.append(
                Case(
                    block=StreamFifo,
                    config=config,
                    sources={"i": pack(config.layout, words)},
                    sinks={"o": pack(config.layout, identity(words))},
                    cycles={"i": taken, "o": left},
                    capacity=depth,
                )
            )
    check(cases, seed)
