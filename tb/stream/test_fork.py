"""StreamFork in Verilator against golden.stream.reference.fork."""

from golden.stream.reference import fork
from golden.stream.vectors import pack, random_words, rng
from hdl.stream.fork import StreamFork, StreamForkConfig
from tb.stream.support.bank import Case, check

COUNT = 120


def test_fork(seed):
    cases = []
    for width, outputs in ((1, 1), (32, 2), (7, 3), (2, 5)):
        config = StreamForkConfig(width=width, outputs=outputs)
        words = random_words(rng(seed, "fork", width), width, COUNT)
        copies = [pack(config.layout, copy) for copy in fork(words, outputs)]
        names = [f"o_{k}" for k in range(outputs)]
        cases.append(
            Case(
                block=StreamFork,
                config=config,
                sources={"i": pack(config.layout, words)},
                sinks=dict(zip(names, copies, strict=True)),
                cycles={key: list(range(COUNT)) for key in ["i", *names]},
                capacity=0,
            )
        )
    check(cases, seed)
