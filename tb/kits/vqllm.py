"""Kits of the vector quantizers: the words of their benches, and matrices in memory."""

import numpy as np

from hdl.kit.episodes import Vectors
from tb.kits.engine import engine_vectors
from tb.kits.kit import SEED, Kit, plain, rows
from tb.vqllm.support.pieces import beats_of
from tb.vqllm.test_dequantizer import dequantizer_vectors
from tb.vqllm.test_gemv import LATENCY, jobs_of
from tb.vqllm.test_reduce import reduce_vectors

__all__ = ["KITS"]

_COUNT = 200  # words of a stream


def _dequantizer(config) -> Vectors:
    words = rows(dequantizer_vectors(config, SEED), "i", "o")
    some = {name: each[:_COUNT] for name, each in words.items()}
    return Vectors(episodes=[plain("entries: usual, at the ends of their range", some)])


def _pieces(config) -> Vectors:
    vectors, _ = beats_of(config, np.random.default_rng([SEED, 166]))
    return Vectors(episodes=[plain("beats of vectors", rows(vectors, "i", "o"))])


def _reduce(config) -> Vectors:
    vectors, _ = reduce_vectors(config, SEED)
    covers = "jobs of any stripes and splits; fault: parts that are not finite"
    return Vectors(episodes=[plain(covers, rows(vectors, *vectors))])


def _gemv(config) -> Vectors:
    core = config.core
    shapes = [(core.rows, core.sums.columns), (3, core.sums.columns // 2)]
    jobs, _ = jobs_of(config, np.random.default_rng([SEED, 165]), shapes, None, LATENCY)
    sound = len(shapes) * config.cores.bit_length()
    marked = [job | {"is_faulty": sound <= n < len(jobs) - 1} for n, job in enumerate(jobs)]
    return engine_vectors(marked, config.image.word_bytes * 8)


KITS = {
    "vq_dequantizer": Kit(vectors=_dequantizer, shown="small"),
    "vq_exchange": Kit(vectors=_pieces, shown="small"),
    "vq_layout_buffer": Kit(vectors=_pieces, shown="small"),
    "vq_reduce": Kit(vectors=_reduce, shown="small"),
    "vq_gemv": Kit(vectors=_gemv, shown="small"),
}
