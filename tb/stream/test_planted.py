"""The testbench of the stream blocks fails on blocks with a planted defect."""

import pytest

from golden.stream.reference import identity, widen
from golden.stream.vectors import pack, random_words, rng
from hdl.stream.arbiter import StreamArbiterConfig
from hdl.stream.fifo import StreamFifoConfig
from hdl.stream.widen import StreamWidenConfig
from tb.formal.streams import InterruptingArbiter, LateWiden, OverflowingFifo, UnfairArbiter
from tb.stream.support.bank import Case, check

COUNT = 60


def fifo(seed):
    config = StreamFifoConfig(width=7, depth=3)
    words = random_words(rng(seed, "fifo"), 7, COUNT)
    return Case(
        block=OverflowingFifo,
        config=config,
        sources={"i": pack(config.layout, words)},
        sinks={"o": pack(config.layout, identity(words))},
        cycles={},
        capacity=3,
    )


def gatherer(seed):
    config = StreamWidenConfig(width=5, ratio=3)
    words = random_words(rng(seed, "widen"), 5, COUNT)
    beats = widen(words, 5, 3)
    return Case(
        block=LateWiden,
        config=config,
        sources={"i": pack(config.i_layout, words)},
        sinks={"o": pack(config.o_layout, beats)},
        cycles={},
        capacity=beats[0][1],
    )


def arbiter(seed, block=InterruptingArbiter):
    config = StreamArbiterConfig(width=7, inputs=3)
    words = [random_words(rng(seed, k), 7, COUNT) for k in range(3)]
    return Case(
        block=block,
        config=config,
        sources={f"i_{k}": pack(config.i_layout, queue) for k, queue in enumerate(words)},
        sinks={"o": [0] * (3 * COUNT)},
        cycles={},
        capacity=0,
        merge=True,
    )


def unfair(seed):
    """The last input waits until no other has a word."""
    return arbiter(seed, UnfairArbiter)


@pytest.mark.parametrize("case", [fifo, gatherer, arbiter, unfair])
def test_planted_defect_is_found(case, seed):
    with pytest.raises(AssertionError, match="check_stream"):
        check([case(seed)], seed)
