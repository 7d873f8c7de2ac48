"""MillionQuerySplitter against golden.million.split.groups: words, slopes, masks and cycles.

Shown to fail:

- the queries of the group before in place of zeros;
- the slope of the first or of the last beat of the group for all queries;
- a slope or a mask that stays from the group before;
- NaN or infinity in one lane, in the slope, or in all but the last beat only;
- the largest finite word as infinite;
- words or slopes of a discarded group, or a discarded group that takes no query;
- ``last`` with the last real query;
- a job taken while ``slopes`` waits;
- a cycle between ``slopes`` and the next job.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.million.config import NAMED, PqShape, RateShape
from golden.million.split import groups
from golden.words import layout_words
from hdl.million.layouts import beat_layout, query_layout, slopes_layout
from hdl.million.query_splitter import MillionQuerySplitter, MillionQuerySplitterConfig
from tb.simulate.run import simulate


def splitter(pq, **rate):
    return MillionQuerySplitterConfig(pq=pq, rate=RateShape(**rate))


CONFIGS = {
    "default": MillionQuerySplitterConfig(),
    "smollm2": splitter(NAMED["4b_64"], queries=3),
    "small": splitter(PqShape(head_dim=16, subspaces=4, bits=4), macs=8, window_macs=8, lanes=8,
                      queries=2),
    "one_query": splitter(PqShape(head_dim=16, subspaces=4, bits=4), macs=8, window_macs=8,
                          lanes=4, queries=1),
    "one_beat": splitter(PqShape(head_dim=16, subspaces=4, bits=4), macs=8, window_macs=8,
                         lanes=16, queries=5),
    "five_beats": splitter(PqShape(head_dim=80, subspaces=40, bits=4), macs=16, window_macs=16,
                           lanes=16, queries=3),
    "widest": splitter(PqShape(head_dim=256, subspaces=16, bits=4), macs=256, lanes=64,
                       queries=8),
}  # fmt: skip
SPECIALS = (0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF)
FINITE = (0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x0000, 0x8000, 0x3C00)


def group_jobs(rng, queries):
    """Each size twice in a row, random ones, and discarded groups between them."""
    jobs = [(size, False) for size in range(1, queries + 1) for _ in range(2)]
    jobs += [(queries, True), (queries, False), (1, True), (1, True), (1, False)]
    jobs += [(int(rng.integers(1, queries + 1)), bool(rng.random() < 0.3)) for _ in range(16)]
    return [*jobs, (queries, False)]


def splitter_vectors(block, seed):
    config = block.config
    rng = np.random.default_rng([seed, 141])
    queries, d, lanes = config.rate.queries, config.pq.head_dim, config.rate.lanes
    jobs = group_jobs(rng, queries)
    count = sum(size for size, _ in jobs)
    words = rng.integers(0, 1 << 16, (count, d))
    words = np.where((words >> 10 & 31) == 31, words & ~(1 << 10), words)
    slope = rng.integers(0, 0x7C00, count)
    for n in range(count):  # one special word at any place, or finite words next to them
        words[n, rng.integers(d)] = rng.choice(FINITE)
        if rng.random() < 0.4:
            words[n, rng.integers(d)] = rng.choice(SPECIALS)
        elif rng.random() < 0.3:
            slope[n] = rng.choice(SPECIALS)
    found = groups(torch.tensor(words), torch.tensor(slope), jobs, queries)
    assert 0 < int(found.bad.sum()) < found.bad.numel()
    sizes, discards = map(np.array, zip(*jobs, strict=True))
    q = found.words.reshape(-1, lanes)
    last = np.zeros(len(q), dtype=np.int64)
    last[queries * config.beats - 1 :: queries * config.beats] = 1
    beats = words.reshape(-1, lanes)
    vectors = {
        "job": layout_words(config.job_layout, queries=sizes, discard=discards.astype(int)),
        "query": layout_words(
            query_layout(lanes), word=beats, slope=np.repeat(slope, config.beats)
        ),
        "q": layout_words(beat_layout(lanes), word=q, last=last),
        "slopes": layout_words(
            slopes_layout(queries), slope=found.slope,
            bad=found.bad.long() @ (1 << torch.arange(queries)),
        ),
    }  # fmt: skip
    kept = np.cumsum(~discards.astype(bool))
    packets = {
        "job": list(range(1, len(jobs) + 1)),
        "query": (np.cumsum(sizes) * config.beats).tolist(),
        "q": (kept * queries * config.beats).tolist(),
        "slopes": kept.tolist(),
    }
    return vectors, {"packets": packets, "cycles": cycles(config, block.timing, jobs)}


def cycles(config, timing, jobs):
    """The cycle of each transfer: a job, its beats, and the slopes with the next job."""
    found = {"job": [], "query": [], "q": [], "slopes": []}
    start, beats = 0, config.rate.queries * config.beats
    for size, discard in jobs:
        at = list(range(start + 1, start + beats + 1))
        found["job"].append(start)
        found["query"] += at[: size * config.beats]
        if not discard:
            found["q"] += [cycle + timing.latency for cycle in at]
            found["slopes"].append(at[-1] + timing.delays[0][1])
        start += int(beats * timing.interval)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_query_splitter(name, seed):
    block = MillionQuerySplitter(CONFIGS[name])
    vectors, params = splitter_vectors(block, seed)
    simulate(block, "tb.million.tb_query_splitter", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": RateShape(lanes=32), "pq": PqShape(head_dim=80, subspaces=16)}, "RateShape.macs"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(MillionQuerySplitterConfig(), **wrong)
