"""StreamJoin in Verilator against golden.stream.reference.join."""

from golden.stream.reference import join
from golden.stream.vectors import pack, random_words, rng
from hdl.stream.join import StreamJoin, StreamJoinConfig
from tb.stream.support.bank import Case, check

COUNT = 120


def test_join(seed):
    cases = []
    for width, inputs in ((1, 1), (32, 2), (7, 3), (2, 5)):
        config = StreamJoinConfig(width=width, inputs=inputs)
        words = [random_words(rng(seed, "join", k), width, COUNT) for k in range(inputs)]
        golden = join(words, width)
        joined = [(value, last) for value, last, _ in golden]
        names = [f"i_{k}" for k in range(inputs)]
        sent = [pack(config.i_layout, queue) for queue in words]
        cases.append(
            Case(
                block=StreamJoin,
                config=config,
                sources=dict(zip(names, sent, strict=True)),
                sinks={"o": pack(config.o_layout, joined)},
                cycles={key: list(range(COUNT)) for key in [*names, "o"]},
                capacity=0,
                flags={"mismatch": ("o", [int(mismatch) for _, _, mismatch in golden])},
            )
        )
    check(cases, seed)
