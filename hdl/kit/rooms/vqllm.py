"""Kits of the vector quantizers, with matrices in memory."""

import numpy as np

from golden.vqllm.vectors.dequantizer import dequantizer_vectors
from golden.vqllm.vectors.gemv import jobs_of
from golden.vqllm.vectors.pieces import beats_of
from golden.vqllm.vectors.reduce import reduce_vectors
from hdl.kit.engine import engine_vectors
from hdl.kit.episodes import Vectors
from hdl.kit.words import SEED, Kit, plain, rows

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
    jobs, _ = jobs_of(config, np.random.default_rng([SEED, 165]), shapes)
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
