"""StreamNarrow in Verilator against golden.stream.reference.narrow."""

from itertools import accumulate

from golden.stream.reference import narrow
from golden.stream.vectors import narrow_beats, pack, rng
from hdl.stream.narrow import StreamNarrow, StreamNarrowConfig
from tb.stream.support.bank import Case, check

COUNT = 60


def test_narrow(seed):
    cases = []
    for width, ratio in ((1, 1), (1, 2), (7, 3), (8, 4), (5, 7)):
        config = StreamNarrowConfig(width=width, ratio=ratio)
        generator = rng(seed, "narrow", width, ratio)
        beats = narrow_beats(generator, config, COUNT)
        words = narrow(beats, width, ratio)
        # A beat leaves with its final word.
        lengths = [len(narrow([beat], width, ratio)) for beat in beats]
        taken = [total - 1 for total in accumulate(lengths)]
        cases.append(
            Case(
                block=StreamNarrow,
                config=config,
                sources={"i": pack(config.i_layout, beats)},
                sinks={"o": pack(config.o_layout, words)},
                cycles={"i": taken, "o": list(range(len(words)))},
                capacity=0,
                cause=None,
                paced=False,
                flags={"bad_count": ("i", [int(not 1 <= n <= ratio) for _, n, _ in beats])},
            )
        )
    check(cases, seed)
