"""StreamWiden in Verilator against golden.stream.reference.widen."""

from itertools import accumulate

from golden.stream.reference import widen
from golden.stream.vectors import pack, random_words, rng
from hdl.stream.widen import StreamWiden, StreamWidenConfig
from tb.stream.support.bank import Case, check

COUNT = 240


def test_widen(seed):
    cases = []
    for width, ratio in ((1, 1), (1, 2), (7, 3), (8, 4), (5, 7)):
        config = StreamWidenConfig(width=width, ratio=ratio)
        words = random_words(rng(seed, "widen", width, ratio), width, COUNT, p_last=0.1)
        beats = widen(words, width, ratio)
        # A beat's final word is the n-th word, in cycle n - 1; the beat shows a cycle later.
        shown = list(accumulate(count for _, count, _ in beats))
        first_beat = beats[0][1]
        cases.append(
            Case(
                block=StreamWiden,
                config=config,
                sources={"i": pack(config.i_layout, words)},
                sinks={"o": pack(config.o_layout, beats)},
                cycles={"i": list(range(COUNT)), "o": shown},
                capacity=first_beat,
                cause=first_beat - 1,
                paced=False,
            )
        )
    check(cases, seed)
