"""MillionPqEncoder against golden.index.pq.exact_codes: exact distances, ties, cycles.

Shown to fail:

- <= for <, the first distance compared, an index late by a cycle;
- the product not doubled, the square shifted once, a distance two bits short;
- the exponent of another word; a vector's x read at the last row; K's codebooks for V;
- a request that does not wait for its grant, or counts without it;
- a buffer given back before its last read;
- a third vector begun, or a vector that waits for its own codes;
- the codes of a part overwritten by those of another; ``bad`` of the next vector;
- book 1 at a wrong address, the offset of part 1 left out.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float
from golden.index.pq import exact_codes
from golden.million.config import NAMED, PqShape, RateShape
from golden.million.vectors.codebooks import corner_codebooks
from golden.million.vectors.tables import codebook_words
from golden.million.vectors.words import INFINITY, MINUS, MOST, NAN, ONE, finite, normal
from golden.words import layout_words
from hdl.million.layouts import beat_layout
from hdl.million.pq_encoder import MillionPqEncoder, MillionPqEncoderConfig
from tb.million.support.nearest import nearest_codes
from tb.simulate.run import simulate

CONFIGS = {
    "small": MillionPqEncoderConfig(
        pq=PqShape(head_dim=16, subspaces=4, bits=4),
        rate=RateShape(macs=8, keys=2, queries=2, window_macs=8, lanes=8),
        books=2,
    ),
    "one_element": MillionPqEncoderConfig(
        pq=PqShape(head_dim=16, subspaces=16, bits=5),
        rate=RateShape(macs=4, queries=1, window_macs=8, lanes=16),
    ),
    "one_part": MillionPqEncoderConfig(
        pq=PqShape(head_dim=32, subspaces=4, bits=4),
        rate=RateShape(macs=32, lanes=4),
        books=3,
    ),
    "64_elements": MillionPqEncoderConfig(
        pq=PqShape(head_dim=256, subspaces=4, bits=4),
        rate=RateShape(macs=64, queries=8, lanes=16),
    ),
    "five_parts": MillionPqEncoderConfig(
        pq=PqShape(head_dim=80, subspaces=20, bits=4),
        rate=RateShape(macs=16, queries=3, window_macs=16, lanes=16),
        books=2,
    ),
    "smollm2": MillionPqEncoderConfig(pq=NAMED["4b_64"], rate=RateShape(queries=3)),
    "default": MillionPqEncoderConfig(),
}


@dataclasses.dataclass
class Job:
    x: np.ndarray  # (d,) words
    kv: int
    book: int
    entries: int
    exponent: int

    @property
    def is_bad(self) -> bool:
        return bool(((self.x & INFINITY) == INFINITY).any())


def words_of(values) -> np.ndarray:
    """FP16 words of exact numbers."""
    words = bits_from_float(torch.tensor(np.asarray(values, dtype=np.float64)), FP16)
    return words.numpy().astype(np.int64)


def numbers(words) -> np.ndarray:
    return np.asarray(words).astype(np.uint16).view(np.float16).astype(np.float64)


class Builder:
    """Jobs that the configuration allows; books[kv] are the codebooks of K and of V."""

    def __init__(self, rng, config, books):
        self.rng, self.config, self.books, self.jobs = rng, config, books, []

    def add(self, x, entries=None, exponent=None, *, kv=None, book=None):
        rng = self.rng
        entries = int(rng.integers(1, 12)) if entries is None else entries
        exponent = int(rng.integers(-8, 16)) if exponent is None else exponent
        kv = int(rng.integers(2)) if kv is None else kv
        book = int(rng.integers(self.config.books)) if book is None else book
        self.jobs.append(Job(np.array(x).reshape(-1), kv, book, entries, exponent))

    def random(self, entries=None, exponent=None):
        """A vector of the size of the codebook's entries."""
        exponent = int(self.rng.integers(-8, 13)) if exponent is None else exponent
        x = words_of(self.rng.normal(0, 0.4 * 2.0**exponent, self.config.pq.head_dim))
        self.add(x, entries, exponent)

    def tie(self, exponent, unit):
        """Midpoints of two entries of each subspace, or ``unit`` steps of a word from them."""
        rng, pq, books = self.rng, self.config.pq, self.config.books
        kv, book = int(rng.integers(2)), books - 1
        if rng.random() < 0.3:
            book = int(rng.integers(books))
        entries = int(rng.integers(9, pq.entries + 1)) if pq.entries > 9 else pq.entries
        entries = min(entries, 16)
        pairs = rng.integers(8, entries, (2, pq.subspaces))
        if entries > 9 and rng.random() < 0.7:  # a pair of ``near_pairs``
            pairs[0] = 8 + 2 * rng.integers(0, (entries - 8) // 2, pq.subspaces)
            pairs[1] = pairs[0] + 1
        rows = np.arange(pq.subspaces)
        codebook = self.books[kv][book]
        middle = numbers(codebook[rows, pairs[0]]) + numbers(codebook[rows, pairs[1]])
        words = words_of(middle * 2.0 ** (exponent - 1))
        zero = words & 0x7FFF == 0
        self.add(np.where(zero, words, words + unit), entries, exponent, kv=kv, book=book)


def near_pairs(rng, shape) -> np.ndarray:
    """(2, M, rows, sub) words: rows 2i and 2i + 1 differ little, at a scale of their own.

    Their midpoint is a word, and a tie there depends on each bit of both norms.
    """
    *outer, rows, sub = shape
    first = rng.integers(-1020, 1021, (*outer, rows // 2, 1, sub))
    other = first + rng.integers(-3, 4, first.shape)
    smallest = rng.choice([18, 23], (*outer, rows // 2, 1, 1))
    scale = 2.0 ** -rng.integers(smallest - 8, smallest + 1)
    return words_of((np.concatenate([first, other], axis=-2) * scale).reshape(shape))


def store_books(rng, config) -> np.ndarray:
    """Codebooks of K and of V; rows 8.. of the last are pairs, or a few eighths with repeats."""
    pq = config.pq
    books = np.stack([corner_codebooks(rng, pq, config.books) for _ in range(2)])
    shape = (2, pq.subspaces, pq.entries - 8, pq.sub)
    eighths = words_of(rng.integers(-3, 4, shape) / 8)
    is_pair = rng.random((*shape[:2], 1, 1)) < 0.6
    books[:, -1, :, 8:] = np.where(is_pair, near_pairs(rng, shape), eighths)
    return books


def encoder_jobs(rng, config, books) -> list[Job]:
    build, most, dim = Builder(rng, config, books), config.pq.entries, config.pq.head_dim
    for entries in (1, 1, 1, 2, 1, 3, 1, 8, 12, 1):
        build.random(entries)
    for word in (INFINITY, MINUS | INFINITY, NAN):
        for place in (0, rng.integers(dim), dim - 1):
            x = normal(rng, dim)
            x[place] = word
            build.add(x, 2)
            build.random(2)
    for exponent in (-8, 0, 15, int(rng.integers(-8, 16))):
        for word in (MOST, MINUS | MOST, 1, MINUS | 1, ONE, 0):
            build.add(np.full(dim, word), 8, exponent)
        build.add(finite(rng, dim), 8, exponent)
        build.add(finite(rng, dim, top=0x800), 8, exponent)
        for unit in (0, 0, 1, -1):
            build.tie(exponent, unit)
    for _ in range(8):
        build.random()
    for _ in range(40):
        build.tie(int(rng.integers(-2, 16)), 0)
    build.random(most)
    build.random(min(most, 40))
    build.random(1)
    return build.jobs


def encoder_vectors(config, seed, *, check=False):
    rng = np.random.default_rng([seed, 143])
    books = store_books(rng, config)
    jobs = encoder_jobs(rng, config, books)
    codes = []
    for job in jobs:
        codebook = books[job.kv, job.book, :, : job.entries]
        x = np.where(job.x & INFINITY == INFINITY, 0, job.x)
        found = exact_codes(
            torch.tensor(x)[None], torch.tensor(codebook), job.exponent, config.pq.bits
        )[0].tolist()
        if check:
            assert found == nearest_codes(x, codebook, job.exponent)
        codes.append(found)
    bad = np.array([job.is_bad for job in jobs])
    beats = np.concatenate([job.x.reshape(-1, config.rate.lanes) for job in jobs])
    fields = ("kv", "book", "entries", "exponent")
    vectors = {
        "job": layout_words(
            config.job_layout,
            **{name: np.array([getattr(job, name) for job in jobs]) for name in fields},
        ),
        "x": layout_words(
            beat_layout(config.rate.lanes),
            word=beats,
            last=rng.integers(0, 2, len(beats)),  # the block counts
        ),
        "code": layout_words(config.code_layout, code=np.array(codes), bad=bad),
        "k": codebook_words(config.pq, config.rate, books[0]),
        "v": codebook_words(config.pq, config.rate, books[1]),
    }
    words = [job.entries * config.parts for job in jobs]
    params = {"words": words, "beats": len(beats) // len(jobs), "bad": bad.tolist()}
    return vectors, params


@pytest.mark.telling("small", "one_element", "one_part", "five_parts")
@pytest.mark.parametrize("name", CONFIGS)
def test_pq_encoder(name, seed):
    config = CONFIGS[name]
    vectors, params = encoder_vectors(config, seed, check=config.pq.head_dim <= 16)
    block = MillionPqEncoder(config)
    simulate(block, "tb.million.tb_pq_encoder", vectors=vectors, params=params, seed=seed)
