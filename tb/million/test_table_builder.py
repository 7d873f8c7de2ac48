"""MillionTableBuilder against golden.index.tables.tables: exact sums, one rounding, cycles.

Shown to fail:

- a product or a sum a bit short; a shift beyond 31 cut off; signs joined by OR; a complement
  without its one;
- the exponent of the entry before; book 1 at a wrong address; the offset of a part or of a job
  that stays;
- ``read_data`` looked at after its cycle; the codebook read for each query;
- a buffer of queries given back before its last read, or a cycle late; used until then;
- the queue of entries one place short, or not used whole; a buffer of queries used twice;
- ``bad`` kept for the next job, of query 0 for all, of +infinity alone, without the query's own;
- a flag of a query kept for the next one, or of its last beat alone.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from golden.index.tables import tables
from golden.million.config import NAMED, PqShape, RateShape
from golden.million.vectors.codebooks import corner_codebooks
from golden.million.vectors.tables import codebook_words, entry_words
from golden.million.vectors.words import INFINITY, MINUS, MOST, NAN, ONE, finite, normal
from golden.words import layout_words
from hdl.million.layouts import beat_layout
from hdl.million.table_builder import MillionTableBuilder, MillionTableBuilderConfig
from tb.simulate.run import simulate

CONFIGS = {
    "small": MillionTableBuilderConfig(
        pq=PqShape(head_dim=16, subspaces=4, bits=4),
        rate=RateShape(macs=8, keys=2, queries=2, window_macs=8, lanes=8),
        books=2,
    ),
    "one_query": MillionTableBuilderConfig(
        pq=PqShape(head_dim=16, subspaces=16, bits=5),
        rate=RateShape(macs=4, queries=1, window_macs=8, lanes=16),
    ),
    "one_part": MillionTableBuilderConfig(
        pq=PqShape(head_dim=64, subspaces=4, bits=4),
        rate=RateShape(macs=64, queries=1, lanes=4),
        books=3,
    ),
    "one_beat": MillionTableBuilderConfig(
        pq=PqShape(head_dim=16, subspaces=4, bits=4),
        rate=RateShape(macs=16, queries=1, window_macs=16, lanes=16),
    ),
    "64_elements": MillionTableBuilderConfig(
        pq=PqShape(head_dim=256, subspaces=4, bits=4),
        rate=RateShape(macs=64, queries=8, lanes=16),
    ),
    "three_parts": MillionTableBuilderConfig(
        pq=PqShape(head_dim=48, subspaces=12, bits=4),
        rate=RateShape(macs=16, queries=3, window_macs=16, lanes=8),
        books=2,
    ),
    "smollm2": MillionTableBuilderConfig(pq=NAMED["4b_64"], rate=RateShape(queries=3)),
    "default": MillionTableBuilderConfig(),
}


@dataclasses.dataclass
class Job:
    q: np.ndarray  # (L, d) words
    book: int
    entries: int
    exponent: int


class Builder:
    """Jobs that the configuration allows."""

    def __init__(self, rng, config):
        self.rng, self.config, self.jobs = rng, config, []
        self.shape = (config.rate.queries, config.pq.head_dim)

    def add(self, q, entries=None, exponent=None):
        rng = self.rng
        if entries is None:
            entries = int(rng.integers(1, 9))
        if exponent is None:
            exponent = int(rng.integers(-8, 16))
        book = int(rng.integers(self.config.books))
        self.jobs.append(Job(np.array(q).reshape(self.shape), book, entries, exponent))

    def same(self, word, entries, exponent):
        self.add(np.full(self.shape, word), entries, exponent)


def builder_jobs(rng, config) -> list[Job]:
    build, most = Builder(rng, config), config.pq.entries
    shape = build.shape
    for entries in (1, 2, 1, 1, 1, 3, 1, 2, 1, 8):
        build.add(normal(rng, *shape), entries)
    if shape[0] * config.parts == 1:  # a job is one transfer: as many as fill the queue of entries
        for _ in range(24):
            build.add(normal(rng, *shape), 1)
    for word in (0x7FFF, 0xFFFF):  # beyond the largest finite sum
        build.same(word, 8, -8)
    for word, place in itertools.product((INFINITY, MINUS | INFINITY, NAN, 0xFFFF), (0, None, -1)):
        q = normal(rng, *shape)
        q[rng.integers(shape[0]), rng.integers(shape[1]) if place is None else place] = word
        build.add(q, 2, -8)  # no entry is infinite
        build.add(normal(rng, *shape), 1)
    # infinite entries: of the first, of the last row; of one query
    for exponent in (15, -8, 0):
        for word in (MOST, MINUS | MOST, 1, MINUS | 1, 0x3FF, 0x7801, ONE, 0):
            build.same(word, 8, exponent)
        build.add(finite(rng, *shape), 8, exponent)
    q = normal(rng, *shape)
    q[0] = MOST
    build.add(q, 1, 15)
    q[0], q[-1] = q[-1], MOST
    build.add(q, 2, 15)
    build.add(normal(rng, *shape), 2, 0)
    # an infinite entry of one lane alone
    for lane in range(config.group):
        q = np.zeros(shape, dtype=np.int64)
        first = int(rng.integers(config.parts)) * config.group + lane
        q[rng.integers(shape[0]), first * config.pq.sub : (first + 1) * config.pq.sub] = MOST
        build.add(q, 8, 15)
    # ties: with rows of ones 1 + 2**-11, and a unit of the grid from it
    for word in (0x1000, MINUS | 0x1000, 0x1001, 0x0FFF):
        q = np.zeros(shape, dtype=np.int64)
        q[:, :: config.pq.sub] = ONE
        q[:, config.pq.sub - 1 :: config.pq.sub] |= word if config.pq.sub > 1 else 0
        build.add(q, 8, int(rng.choice([-8, 0, 15])))
    # an entry of one or two products takes every binade
    for _ in range(4):
        filled = rng.random(shape) < 1.5 / config.pq.sub
        build.add(finite(rng, *shape) * filled, min(most, 32))
    for _ in range(10):
        low, high = sorted(int(each) for each in rng.integers(0, MOST, 2))
        build.add(finite(rng, *shape, low=low, top=high))
    build.add(normal(rng, *shape), most)
    build.add(normal(rng, *shape), min(most, 20))
    build.add(normal(rng, *shape), 1)
    return build.jobs


def builder_vectors(config, seed):
    rng = np.random.default_rng([seed, 142])
    books, jobs = corner_codebooks(rng, config.pq, config.books), builder_jobs(rng, config)
    found = []
    for job in jobs:
        codebook = torch.tensor(books[job.book, :, : job.entries])
        words, bad = tables(torch.tensor(job.q), codebook, job.exponent)
        found.append((words.numpy(), bad.numpy()))
    entry, counts = entry_words(config, found, lambda count: np.zeros(count, dtype=np.int64))
    beats = np.concatenate([job.q.reshape(-1, config.rate.lanes) for job in jobs])
    per_job = len(beats) // len(jobs)
    vectors = {
        "job": layout_words(
            config.job_layout,
            book=np.array([job.book for job in jobs]),
            entries=np.array([job.entries for job in jobs]),
            exponent=np.array([job.exponent for job in jobs]),
        ),
        "q": layout_words(
            beat_layout(config.rate.lanes), word=beats,
            last=rng.integers(0, 2, len(beats)),  # the block counts
        ),
        "entry": entry,
        "store": codebook_words(config.pq, config.rate, books),
    }  # fmt: skip
    return vectors, {"entries": counts, "beats": per_job}


@pytest.mark.telling("small", "one_query", "one_part", "three_parts")
@pytest.mark.parametrize("name", CONFIGS)
def test_table_builder(name, seed):
    config = CONFIGS[name]
    vectors, params = builder_vectors(config, seed)
    block = MillionTableBuilder(config)
    simulate(block, "tb.million.tb_table_builder", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"rate": RateShape(lanes=64), "pq": PqShape(head_dim=32, subspaces=4)},
            "RateShape.macs must be a divisor of head_dim = 32, not 64",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        MillionTableBuilderConfig(**wrong)
    assert str(error.value) == message
