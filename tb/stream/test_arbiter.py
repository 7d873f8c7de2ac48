"""StreamArbiter in Verilator against golden.stream.reference.check_arbitration."""

from golden.stream.vectors import pack, random_words, rng
from hdl.stream.arbiter import StreamArbiter, StreamArbiterConfig
from tb.stream.support.bank import Case, check

COUNT = 80


def test_arbiter(seed):
    cases = []
    for policy in ("round_robin", "priority"):
        for width, inputs, last in (
            (1, 1, True), (32, 2, True), (7, 3, True), (2, 5, True), (7, 3, False)
        ):  # fmt: skip
            config = StreamArbiterConfig(width=width, inputs=inputs, policy=policy, last=last)
            # The last input has the most, so that at the end it is alone.
            words = [
                random_words(rng(seed, "arbiter", k), width, COUNT + 10 * k) for k in range(inputs)
            ]
            total = sum(map(len, words))
            cases.append(
                Case(
                    block=StreamArbiter,
                    config=config,
                    sources={
                        f"i_{k}": pack(config.i_layout, [word[: 1 + last] for word in queue])
                        for k, queue in enumerate(words)
                    },
                    sinks={"o": [0] * total},  # their number; the order is the block's choice
                    cycles={"o": list(range(total))},
                    capacity=0,
                    merge=True,
                )
            )
    check(cases, seed)
