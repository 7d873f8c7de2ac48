"""Jobs of the blocks that decode keys and values, and their words on the streams that both have."""

import dataclasses

import numpy as np

from golden.million.config import NAMED, PqShape, RateShape
from golden.million.vectors.words import MINUS, ONE, finite
from golden.words import layout_words

BITS_MOST = 100  # of the codes of a beat, up to which each gets a job of its own

SHAPES = {
    "small": {
        "pq": PqShape(head_dim=16, subspaces=4, bits=4),
        "rate": RateShape(macs=8, keys=2, queries=2, window_macs=8, lanes=8),
        "max_keys": 64,
    },
    "one_query": {
        "pq": PqShape(head_dim=16, subspaces=16, bits=5),
        "rate": RateShape(macs=4, keys=1, queries=1, window_macs=8, lanes=4),
        "max_keys": 33,
    },
    "four_keys": {
        "pq": PqShape(head_dim=32, subspaces=8, bits=4),
        "rate": RateShape(macs=32, keys=4, queries=3, lanes=16, window_macs=16),
        "max_keys": 50,
    },
    "three_parts": {
        "pq": PqShape(head_dim=48, subspaces=12, bits=4),
        "rate": RateShape(macs=16, keys=2, queries=3, lanes=8, window_macs=8),
        "max_keys": 50,
    },
    "smollm2": {"pq": NAMED["4b_64"], "rate": RateShape(queries=3), "max_keys": 1000},
    "default": {"pq": PqShape(), "rate": RateShape(), "max_keys": 32768},
}


@dataclasses.dataclass
class Job:
    codebook: np.ndarray  # (M, entries, sub) words, in use
    switch: bool  # whether it comes with this job
    codes: np.ndarray  # (keys, M)
    given: dict[str, np.ndarray]  # what the block takes in addition

    @property
    def entries(self) -> int:
        return self.codebook.shape[1]

    @property
    def bad_code(self) -> bool:
        return bool((self.codes >= self.entries).any())


class Builder:
    """Jobs that the configuration allows; ``more(keys)`` makes what the block takes in addition."""

    def __init__(self, rng, config, more):
        self.rng, self.config, self.more = rng, config, more
        self.jobs: list[Job] = []
        self.subspaces, self.sub = config.pq.subspaces, config.pq.sub

    def codebook(self, entries, low=0, top=ONE):
        return finite(self.rng, self.subspaces, entries, self.sub, low=low, top=top)

    def even(self, *words):
        """A codebook whose entry j is ``words[j]`` in all places."""
        shape = (self.subspaces, len(words), self.sub)
        return np.broadcast_to(np.array(words)[None, :, None], shape)

    def add(self, keys, codebook=None, codes=None, **given):
        """Adds a job; without a codebook it has that of the job before."""
        keys = min(keys, self.config.max_keys) if codes is None else len(codes)
        used = self.jobs[-1].codebook if codebook is None else codebook
        if codes is None:
            codes = self.rng.integers(0, used.shape[1], (keys, self.subspaces))
        self.jobs.append(Job(used, codebook is not None, codes, self.more(keys) | given))

    def usual(self):
        """Sizes of jobs and codebooks; codes beyond the entries."""
        rng, slots, most = self.rng, self.config.rate.keys, self.config.pq.entries
        self.add(1, self.codebook(3))
        for count in (2, 0, 7, slots, slots + 1):
            self.add(count)
        for count in (3, 0, 0, 2 * slots - 1, 30):
            self.add(count, self.codebook(int(rng.integers(1, min(most, 12)))))
        self.add(5)
        for key, code in ((0, 3), (4, most - 1), (2, 4)):
            codes = rng.integers(0, 3, (5, self.subspaces))
            codes[key, rng.integers(self.subspaces)] = code
            self.add(5, self.codebook(3), codes)
            self.add(2)
        self.add(1, self.codebook(1, low=1, top=0x3FF))
        self.add(3, self.even(ONE, MINUS | ONE, 0, MINUS, 1, MINUS | 1)[:, :most])

    def longest(self, most):
        """Codes beyond by one bit; a whole codebook, and ``most`` keys or all that may come."""
        self.add(1, self.codebook(1))
        for codes in beyond_by_one_bit(self.rng, self.config.pq, self.config.rate):
            self.add(len(codes), codes=codes)
        self.add(20, self.codebook(self.config.pq.entries))
        self.add(most)
        self.add(1)


def beyond_by_one_bit(rng, pq: PqShape, rate: RateShape) -> list[np.ndarray]:
    """Codes of a beat, (keys, M), of which one bit is 1: with one entry, that bit alone is bad.

    Each code of a beat has its turn: with each of its bits where the beat has few, else with one.
    """
    bits, places = pq.bits, rate.keys * pq.subspaces
    drawn = rng.integers(0, bits, places).tolist()
    found = []
    for place in range(places):
        slot, subspace = divmod(place, pq.subspaces)
        for bit in range(bits) if places * bits <= BITS_MOST else [drawn[place]]:
            codes = np.zeros((slot + 1, pq.subspaces), dtype=np.int64)
            codes[slot, subspace] = 1 << bit
            found.append(codes)
    return found


def beats_of(rows, keys, fill):
    """(n, ...) rows as beats of ``keys``; ``fill(n)`` gives rows beyond."""
    rest = -len(rows) % keys
    rows = np.concatenate([rows, fill(rest)]) if rest else rows
    return rows.reshape(-1, keys, *rows.shape[1:])


def codebook_words(config, job) -> np.ndarray:
    """(words, macs): row by row."""
    rows = job.codebook.transpose(1, 0, 2)
    return np.ascontiguousarray(rows).reshape(-1, config.rate.macs)


def shared_vectors(rng, config, jobs) -> tuple[dict, dict]:
    """Vectors of ``codebook`` and ``code``; by stream, how many words each job has."""
    books = [codebook_words(config, job) for job in jobs if job.switch]
    last = np.concatenate([np.arange(len(book)) == len(book) - 1 for book in books])

    def junk(count):
        return rng.integers(0, config.pq.entries, (count, config.pq.subspaces))

    codes = [beats_of(job.codes, config.rate.keys, junk) for job in jobs]
    beats = np.concatenate(codes)
    vectors = {
        "codebook": layout_words(config.codebook_layout, word=np.concatenate(books), last=last),
        "code": layout_words(
            config.code_layout,
            code=beats,
            last=rng.integers(0, 2, len(beats)),  # the blocks count
        ),
    }
    counts = {
        "codebook": [len(codebook_words(config, job)) * job.switch for job in jobs],
        "code": [len(each) for each in codes],
    }
    return vectors, counts
