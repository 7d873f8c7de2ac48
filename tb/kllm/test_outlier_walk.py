"""KllmOutlierWalk against golden.kllm.walks.outlier_places.

Shown to fail with:

- a count of 0 that requests a word
- positions that go on in the next count
- ``idle`` with words in flight, or with counts that wait
- a bit of a count stuck at 0 in one place of the queue
"""

import numpy as np

from golden.kllm.walks import outlier_places
from hdl.kllm.matmul.config import KllmMatmulPhaseConfig
from hdl.kllm.matmul.outliers import KllmOutlierWalk
from hdl.kllm.matmul.payloads import outlier_count_layout
from tb.kllm.support.walks import Bench, rate, walk

DELAY = 3
COUNTS = (
    [(1, 3)],
    [(5, 200), (0, 1), (3, 2)],
    [(2, 7)] * 12,
    [(40, 1), (1, 0), (0, 0), (0, 9), (17, 255)],
    [(0, 4)] * 7 + [(1, 1)],
    [(1 << 13, 8), (1, 4)],  # the highest bit of a count
)
LONGEST = ([(0x1FFF, 6)] * 6,)  # every other bit of a count, in every place of the queue


def test_outlier_walk(seed):
    rng = np.random.default_rng([seed, 94])
    block = KllmOutlierWalk(KllmMatmulPhaseConfig())
    place = block.outlier_request.payload.shape()
    words = {
        place.const({"slot": slot, "position": n}).as_bits(): int(rng.integers(0, 1 << 16))
        for counts in (*COUNTS, *LONGEST)
        for slot, n in outlier_places(counts)
    }
    walks = []
    for counts in (*COUNTS, *LONGEST):
        requests = [
            place.const({"slot": slot, "position": n}).as_bits()
            for slot, n in outlier_places(counts)
        ]
        given = [
            outlier_count_layout.const({"outliers": outliers, "slot": slot}).as_bits()
            for outliers, slot in counts
        ]
        answers = [words[each] for each in requests]
        walks.append(walk({}, {"outlier_request": requests, "x": answers}, {"count": given}))
    timing = KllmOutlierWalk.timing
    cycle, requests = timing.delay("from count to its first request"), []
    for outliers, _ in COUNTS[3]:
        requests += range(cycle, cycle + outliers)
        cycle += outliers + timing.delay("of each count in addition")
    given = [each + DELAY + timing.latency for each in requests]
    Bench(
        clients={"outlier_request": "outlier"},
        answers={"outlier_request": words},
        walks=walks[: len(COUNTS)],
        longest=walks[len(COUNTS) :],
        rates=[rate(3, DELAY, {"outlier_request": requests, "x": given})],
        flag="idle",
        starts=False,
    ).run(block, seed)
