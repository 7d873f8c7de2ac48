"""Jobs of MillionScoreEngine, with the scores of golden."""

import dataclasses

import numpy as np
import torch

from golden.fp16.ops import is_special
from golden.million.scores import past_scores
from golden.million.vectors.decode_jobs import beats_of, beyond_by_one_bit
from golden.million.vectors.tables import entry_words
from golden.million.vectors.words import INFINITY, MINUS, MOST, NAN, ONE, finite, normal
from golden.words import layout_words

MOST_DISTANCE = 2**17 - 1


@dataclasses.dataclass
class Job:
    table: np.ndarray  # (L, M, entries) words
    bad: np.ndarray  # (L,) as the builder says
    codes: np.ndarray  # (keys, M)
    slope: np.ndarray  # (L,) words
    distance: int

    @property
    def score(self) -> torch.Tensor:
        """(keys, L)"""
        table, codes, slope, bad = map(torch.tensor, (self.table, self.codes, self.slope, self.bad))
        return past_scores(table, codes, slope, self.distance, bad=bad)

    @property
    def bad_code(self) -> bool:
        return bool((self.codes >= self.table.shape[-1]).any())


class Builder:
    """Jobs that the configuration allows."""

    def __init__(self, rng, config):
        self.rng, self.config, self.jobs = rng, config, []
        self.queries, self.subspaces = config.rate.queries, config.pq.subspaces

    def entries(self, most=12):
        return int(self.rng.integers(1, min(most, self.config.pq.entries) + 1))

    def words(self, entries, **limits):
        return finite(self.rng, self.queries, self.subspaces, entries, **limits)

    def add(self, table, keys, *, slope=None, distance=None, codes=None, bad=None):
        entries, rng = table.shape[-1], self.rng
        keys = min(keys, self.config.max_keys)
        if codes is None:
            codes = rng.integers(0, entries, (keys, self.subspaces))
        if distance is None:
            distance = int(rng.integers(max(keys - 1, 0), max(keys, 40)))
        if slope is None:
            slope = normal(rng, self.queries, width=0.1)
        found = is_special(torch.tensor(table)).flatten(1).any(1).numpy()
        flagged = found if bad is None else found | bad
        slopes = np.broadcast_to(slope, self.queries).copy()
        self.jobs.append(Job(table.copy(), flagged, codes, slopes, distance))

    def random(self, keys, most=12):
        table = normal(self.rng, self.queries, self.subspaces, self.entries(most))
        self.add(table, keys)


def score_jobs(rng, config) -> list[Job]:
    build, most = Builder(rng, config), config.pq.entries
    keys, queries, slots = config.max_keys, config.rate.queries, config.rate.keys
    for count in (1, 2, 0, 7, slots, slots + 1, 0, 0, 2 * slots - 1, 30):
        build.random(count)
    # bad codes, in one key and in one subspace; codes of the slots beyond the keys do not count
    if most > 3:
        for key, code in ((0, 3), (4, most - 1), (2, 4)):
            codes = rng.integers(0, 3, (5, config.pq.subspaces))
            codes[key, rng.integers(config.pq.subspaces)] = code
            build.add(normal(rng, queries, config.pq.subspaces, 3), 5, codes=codes)
        build.random(3)
    for _ in range(6):
        build.random(0, most=1)
    # queries without scores
    table = build.words(2)
    for word in (INFINITY, MINUS | INFINITY, NAN):
        table[rng.integers(queries), rng.integers(config.pq.subspaces), rng.integers(2)] = word
        build.add(table, 3)
        slope = normal(rng, queries)
        slope[rng.integers(queries)] = word
        build.add(build.words(1), 2, slope=slope)
        build.random(2)
    for query in range(2 * queries):  # in both buffers of the tables
        build.add(build.words(1), 2, bad=np.arange(queries) == query // 2)
        for _ in range(1 + query % 2):
            build.random(2)
    # the ends of the sums
    shape = (queries, config.pq.subspaces, 1)
    for word in (MOST, MINUS | MOST, 1, MINUS | 1, 0, MINUS, 0x3FF, 0x400, 0x3FFF, 0xBFFF):
        for same in (0, MINUS, word, word ^ MINUS, 1):
            distance = int(rng.choice([2, 3, MOST_DISTANCE]))
            build.add(np.full(shape, word), 3, slope=same, distance=distance)
    both = np.stack([np.full(shape[:2], MOST), np.full(shape[:2], MINUS | MOST)], axis=-1)
    build.add(both, 20)
    for word in (MOST, MINUS | MOST):
        build.add(np.full(shape, word), 2, slope=word, distance=MOST_DISTANCE)
    # ties of the rounding: 1 + k / 2**11, and a unit of the grid from it
    for unit in (0, 1, MINUS | 1):
        table = np.zeros((queries, config.pq.subspaces, 8), dtype=np.int64)
        table[:, 0], table[:, 1] = ONE, [0x1000 | sign for sign in (0, MINUS)] * 4
        table[:, 2] = np.arange(8)[None] % 2 * 0x1400
        table[:, 3] = unit
        build.add(table, 16, slope=0)
    # a score of one or two words takes every binade, in each place of a key and of a query
    for _ in range(4):
        table = build.words(min(most, 16))
        filled = rng.random((queries, config.pq.subspaces, 1)) < 1.5 / config.pq.subspaces
        build.add(table * filled, 24 * slots, slope=0)
    for _ in range(12):
        span = sorted(int(each) for each in rng.integers(0, MOST, 2))
        table = build.words(build.entries(), low=span[0], top=span[1])
        slope = finite(rng, queries, top=0x5000)
        build.add(table, int(rng.integers(0, 3 * slots + 2)), slope=slope)
    # a whole codebook, and the most keys that the time allows, down to distance 0
    build.random(20, most=most)
    build.add(normal(rng, queries, config.pq.subspaces, most), 300, distance=None)
    build.add(normal(rng, queries, config.pq.subspaces, 2), min(keys, 400), slope=0xB800,
              distance=min(keys, 400) - 1)  # fmt: skip
    for codes in beyond_by_one_bit(rng, config.pq, config.rate):
        build.add(build.words(1), len(codes), codes=codes)
    build.random(1)
    return build.jobs


def engine_vectors(config, seed):
    rng = np.random.default_rng([seed, 141])
    jobs, keys = score_jobs(rng, config), config.rate.keys
    entry, counts = entry_words(
        config,
        [(job.table, job.bad) for job in jobs],
        lambda count: rng.integers(0, 1 << config.rate.queries, count),
    )

    def junk(count):
        return rng.integers(0, config.pq.entries, (count, config.pq.subspaces))

    def nothing(count):
        return np.zeros((count, config.rate.queries), dtype=np.int64)

    codes = [beats_of(job.codes, keys, junk) for job in jobs]
    scores = [beats_of(job.score.numpy(), keys, nothing) for job in jobs]
    beats = [len(each) for each in codes]
    last = np.concatenate([np.arange(n) == n - 1 for n in beats])
    bad = [job.bad | is_special(torch.tensor(job.slope)).numpy() for job in jobs]
    vectors = {
        "entry": entry,
        "job": layout_words(
            config.job_layout,
            keys=np.array([len(job.codes) for job in jobs]),
            entries=np.array([job.table.shape[-1] for job in jobs]),
            distance=np.array([job.distance for job in jobs]),
            slope=np.stack([job.slope for job in jobs]),
        ),
        "code": layout_words(
            config.code_layout,
            code=np.concatenate(codes),
            last=rng.integers(0, 2, len(last)),  # the block counts
        ),
        "score": layout_words(config.score_layout, word=np.concatenate(scores), last=last),
        "end": layout_words(
            config.end_layout,
            bad_code=np.array([job.bad_code for job in jobs]),
            bad=(np.stack(bad) << np.arange(config.rate.queries)).sum(1),
        ),
    }
    return vectors, {"entries": counts, "beats": beats}
