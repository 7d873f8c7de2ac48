"""StreamSkidBuffer in Verilator against golden.stream.reference.identity."""

from golden.stream.reference import identity
from golden.stream.vectors import pack, random_words, rng
from hdl.stream.skid import StreamSkidBuffer, StreamSkidBufferConfig
from tb.stream.support.bank import Case, check

COUNT = 150


def test_skid(seed):
    cases = []
    for width, last in ((1, True), (2, True), (7, False), (7, True), (32, True), (129, True)):
        config = StreamSkidBufferConfig(width=width, last=last)
        words = [word[: 1 + last] for word in random_words(rng(seed, "skid", width), width, COUNT)]
        cases.append(
            Case(
                block=StreamSkidBuffer,
                config=config,
                sources={"i": pack(config.layout, words)},
                sinks={"o": pack(config.layout, identity(words))},
                cycles={
                    "i": list(range(COUNT)),
                    "o": [StreamSkidBuffer.timing.latency + n for n in range(COUNT)],
                },
                capacity=2,
            )
        )
    check(cases, seed)
