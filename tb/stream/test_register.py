"""StreamRegister in Verilator against golden.stream.reference.identity."""

from golden.stream.reference import identity
from golden.stream.vectors import pack, random_words, rng
from hdl.stream.register import StreamRegister, StreamRegisterConfig
from tb.stream.support.bank import Case, check

COUNT = 150


def test_register(seed):
    cases = []
    for width in (1, 2, 7, 32, 129):
        config = StreamRegisterConfig(width=width)
        words = random_words(rng(seed, "register", width), width, COUNT)
        cases.append(
            Case(
                block=StreamRegister,
                config=config,
                sources={"i": pack(config.layout, words)},
                sinks={"o": pack(config.layout, identity(words))},
                cycles={
                    "i": list(range(COUNT)),
                    "o": [StreamRegister.timing.latency + n for n in range(COUNT)],
                },
                capacity=1,
            )
        )
    check(cases, seed)
