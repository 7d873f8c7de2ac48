"""KllmJobWalk against golden.kllm.walks.job_words.

Shown to fail with:

- a job and a count that are sent twice when only one of them is taken
- a scale of 1.0 for slots
- a count of direct work
- outliers, a count or a slot of void work
- the descriptor of the first slot for each token
- a bit of the group's number, or of the token's, stuck at 0 (the longest walks alone)
- bit 5 of the slot stuck at 0
"""

import dataclasses
import functools

import numpy as np

from golden.kllm.walks import MatmulWork, job_words
from golden.words import alternating
from hdl.kllm.engine import descriptor_layout
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.matmul.jobs import KllmJobWalk
from hdl.kllm.matmul.payloads import matmul_work_layout, outlier_count_layout
from tb.kllm.support.walks import Bench, rate, walk

CONFIG = KllmPeLaneConfig(columns=16, k_max=256)
SLOTS, DELAY = 256, 3
MOST_GROUPS = (1 << 16) - 1


def work(rng, **given) -> MatmulWork:
    fields = {"slot": int(rng.integers(0, 8)), "tokens": 1, "groups": 1, "direct": 0,
              "integer": int(rng.integers(0, 2)), "length": int(rng.integers(1, 256)), "rows": 1,
              "beats": 1}  # fmt: skip
    return MatmulWork(**fields | given)


@functools.cache
def job_word(length: int, outliers: int, scale: int, integer: int) -> int:
    fields = {"length": length, "outliers": outliers, "s_a": scale,
              "last_column": CONFIG.columns - 1, "integer": integer}  # fmt: skip
    return CONFIG.job_layout.const(fields).as_bits()


def test_job_walk(seed):
    rng = np.random.default_rng([seed, 95])
    descriptors = [
        {name: int(rng.integers(0, 1 << bits)) for name, bits in
         (("outliers", 14), ("scale", 16), ("length", 14), ("mean", 32), ("valid", 1))}
        for _ in range(SLOTS)
    ]  # fmt: skip
    works = [work(rng), work(rng, tokens=3), work(rng, direct=1, groups=5), work(rng, groups=4),
             work(rng, direct=1, tokens=2, groups=2), work(rng, tokens=5, groups=6),
             work(rng, void=1, tokens=3, groups=2), work(rng, void=1, direct=1),
             work(rng)]  # fmt: skip
    works += [work(rng, slot=slot) for slot in alternating(SLOTS - 1)]
    longest = [work(rng, slot=1, tokens=255), work(rng, direct=1, groups=MOST_GROUPS)]
    works += longest
    walks = []
    for each in works:
        jobs = job_words(each, descriptors)
        words = [
            job_word(job["length"], job["outliers"], job["scale"], each.integer) for job in jobs
        ]
        read = [] if each.direct or each.void else jobs
        counts = [
            outlier_count_layout.const({"outliers": job["outliers"], "slot": job["slot"]}).as_bits()
            for job in read
        ]
        slots = [job["slot"] for job in read]
        fields = matmul_work_layout.const(dataclasses.asdict(each)).as_bits()
        walks.append(walk({"work": fields}, {"slot": slots, "count": counts, "job": words}))
    timing = KllmJobWalk.timing
    first = timing.delay("from start to the first request") - 1
    period = DELAY + timing.latency + timing.delay("from a job to the next request")
    requests = [first + period * n for n in range(len(walks[5]["sinks"]["slot"]))]
    jobs = [each + DELAY + timing.latency for each in requests]
    direct = timing.delay("from start to the first job, if direct") - 1
    Bench(
        clients={"slot": "descriptor"},
        answers={
            "slot": {
                n: descriptor_layout.const(each).as_bits() for n, each in enumerate(descriptors)
            }
        },
        walks=walks[: -len(longest)],
        longest=walks[-len(longest) :],
        rates=[
            rate(5, DELAY, {"slot": requests, "job": jobs, "count": jobs}),
            rate(2, DELAY, {"job": range(direct, direct + 5)}),
        ],
    ).run(KllmJobWalk(CONFIG), seed)
