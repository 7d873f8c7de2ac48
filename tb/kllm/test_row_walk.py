"""KllmRowWalk against golden.kllm.walks.row_words.

Shown to fail with:

- the stride left out
- a row that stays after its last word
- ``last`` at the end of each row
- the rows of a group after those of the group before
- a walk that is done with its last request
- a bit of the group's number stuck at 0, or lost while the request waits (the longest walks alone)
- a bit of the number of rows stuck at 0 (the longest walks alone)
- bit 12 of a row, or bit 11 of the stride, stuck at 0 (walks far apart alone)
- by row: a row that is done by its words, ``last`` of a row that is not, a row that is offered as
  words too
- by row: a row that the sink of words takes
"""

import dataclasses
import itertools

import numpy as np

from golden.kllm.walks import RowWork, row_requests, row_words
from golden.words import alternating
from hdl.kllm.matmul.config import KllmRowWalkConfig
from hdl.kllm.matmul.payloads import (
    packet_row_layout,
    packet_word_layout,
    row_layout,
    row_work_layout,
)
from hdl.kllm.matmul.rows import KllmRowWalk
from tb.kllm.support.walks import Bench, rate, walk

DELAY = 3
LONGEST = 4


def works(rng) -> list[RowWork]:
    def work(words, **given):
        fields = {"src": int(rng.integers(0, 100)), "stride": int(rng.integers(0, 20)),
                  "groups": 1, "tokens": 1} | given  # fmt: skip
        return RowWork(rows=-(-words // 16), words=words, **fields)

    found = [work(n) for n in (1, 16, 17, 40)]
    found += [work(33, groups=2, tokens=3), work(16, tokens=4), work(5, groups=3, tokens=2)]
    found += [work(1000), work(600, tokens=2, stride=37)]
    # Every bit of a row and of a stride.
    found += [
        work(20, tokens=2, src=src, stride=stride)
        for src, stride in itertools.product(alternating(0x7FFF), repeat=2)
    ]
    found += [work(40, src=0xFFFD), work(16, tokens=2, src=0, stride=0xFFFF)]
    found.append(work(100, tokens=3))
    # Every bit of the groups, of the tokens and of the words, for ``longest_walks`` alone.
    found += [work(1, groups=(1 << 16) - 1), work(1, groups=2, tokens=255, stride=0)]
    return [*found, work(16 * 1023), work((1 << 14) - 1)]


def test_row_walk(seed):
    """Words."""
    rng = np.random.default_rng([seed, 91])
    found, walks = works(rng), []
    used = sorted({row for work in found for row in row_requests(work)})
    memory = dict(zip(used, rng.integers(0, 1 << 16, (len(used), 16)).tolist(), strict=True))
    for work in found:
        words = [
            packet_word_layout.const({"word": word, "last": int(last)}).as_bits()
            for word, last in row_words(work, memory)
        ]
        fields = row_work_layout.const(dataclasses.asdict(work)).as_bits()
        walks.append(walk({"work": fields}, {"read_request": row_requests(work), "o": words}))
    first = KllmRowWalk.timing.delay("from start to the first request") - 1
    start = first + DELAY + KllmRowWalk.timing.latency
    measured = len(walks) - LONGEST - 1
    count = len(walks[measured]["sinks"]["o"])
    Bench(
        clients={"read_request": "read_row"},
        answers={
            "read_request": {
                n: row_layout.const({"word": row}).as_bits() for n, row in memory.items()
            }
        },
        walks=walks[:-LONGEST],
        longest=walks[-LONGEST:],
        rates=[rate(measured, DELAY, {"o": range(start, start + count)})],
    ).run(KllmRowWalk(KllmRowWalkConfig()), seed)


def test_row_walk_by_row(seed):
    """Walks of rows among walks of words."""
    rng = np.random.default_rng([seed, 92])
    found = [each for each in works(rng)[:-LONGEST] for _ in range(2)]
    used = sorted({row for work in found for row in row_requests(work)})
    memory = dict(zip(used, rng.integers(0, 1 << 16, (len(used), 16)).tolist(), strict=True))
    walks = []
    for n, work in enumerate(found):
        requests, words, rows = row_requests(work), [], []
        if n % 2:
            rows = [
                packet_row_layout.const(
                    {"word": memory[row], "last": at % work.rows == work.rows - 1}
                ).as_bits()
                for at, row in enumerate(requests)
            ]
        else:
            words = [
                packet_word_layout.const({"word": word, "last": int(last)}).as_bits()
                for word, last in row_words(work, memory)
            ]
        fields = row_work_layout.const(dataclasses.asdict(work)).as_bits()
        sinks = {"read_request": requests, "o": words, "row": rows}
        walks.append(walk({"work": fields, "by_row": n % 2}, sinks))
    start = KllmRowWalk.timing.delay("from start to the first request") - 1 + DELAY
    measured = max(n for n in range(1, len(walks), 2) if found[n].words == 1000)
    count = len(walks[measured]["sinks"]["row"])
    Bench(
        clients={"read_request": "read_row"},
        answers={
            "read_request": {
                n: row_layout.const({"word": row}).as_bits() for n, row in memory.items()
            }
        },
        walks=walks,
        rates=[rate(measured, DELAY, {"row": range(start, start + count)})],
    ).run(KllmRowWalk(KllmRowWalkConfig(packet_words=16)), seed)
