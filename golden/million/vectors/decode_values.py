"""Jobs of MillionDecodeValues, with the sums of golden."""

import numpy as np
import torch

from golden.million import timing
from golden.million.decode import decode_sums
from golden.million.vectors.decode_jobs import Builder, Job, beats_of, shared_vectors
from golden.million.vectors.words import MINUS, ONE
from golden.words import layout_words

LONGEST = 2048  # keys of a simulated job


def sums_of(job: Job, parts: int) -> list[list[int]]:
    """(parts * L, macs) integers."""
    tensors = torch.tensor(job.given["weight"]), torch.tensor(job.codebook)
    found = decode_sums(*tensors, torch.tensor(job.codes))
    queries, head_dim = found.low.shape
    flat, macs = found.integers(), head_dim // parts
    return [
        flat[n * head_dim + part * macs : n * head_dim + (part + 1) * macs]
        for part in range(parts)
        for n in range(queries)
    ]


def value_jobs(rng, config) -> list[Job]:
    queries = config.rate.queries

    def more(keys):
        return {"weight": rng.integers(0, ONE + 1, (keys, queries))}

    def even(keys, word):
        return np.full((keys, queries), word)

    build = Builder(rng, config, more)
    build.usual()
    # the ends of the sums
    build.add(2, build.even(ONE, MINUS | ONE, 1, MINUS | 1, 0, MINUS))
    for entry in range(6):
        for word in (0, 1, 0x3FF, 0x400, 0x3BFF, ONE):
            keys = int(rng.integers(1, 9))
            codes = np.full((keys, config.pq.subspaces), entry)
            build.add(keys, codes=codes, weight=even(keys, word))
    build.longest(300)
    most = min(config.max_keys, LONGEST)
    for word in (ONE, MINUS | ONE):
        build.add(most, build.even(word), weight=even(most, ONE))
    build.add(1)
    return build.jobs


def value_vectors(config, seed):
    """Vectors; what tb_decode knows of the jobs."""
    rng = np.random.default_rng([seed, 143])
    jobs, keys = value_jobs(rng, config), config.rate.keys
    vectors, counts = shared_vectors(rng, config, jobs)

    def junk(count):
        return rng.integers(0, ONE + 1, (count, config.rate.queries))

    weights = [beats_of(job.given["weight"], keys, junk) for job in jobs]
    sums = [row for job in jobs for row in sums_of(job, config.parts)]
    count = config.parts * config.rate.queries
    beats = np.concatenate(weights)
    vectors |= {
        "job": layout_words(
            config.job_layout,
            keys=np.array([len(job.codes) for job in jobs]),
            entries=np.array([job.entries for job in jobs]),
            switch=np.array([job.switch for job in jobs]),
        ),
        "weight": layout_words(
            config.weight_layout, word=beats, last=rng.integers(0, 2, len(beats))
        ),
        "sum": layout_words(
            config.sum_layout, value=sums, last=np.arange(len(sums)) % count == count - 1
        ),
        "end": layout_words(config.end_layout, bad_code=np.array([job.bad_code for job in jobs])),
    }
    latency = timing.decode_values().latency
    return vectors, {"prefix": "", "counts": counts, "sums": count, "latency": latency}
