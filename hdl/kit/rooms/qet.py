"""Kits of QET, with matrices in memory."""

import numpy as np

from golden.qet.vectors.gemv import SPOILS, bad_jobs, gemv_job, random_matrix
from golden.qet.vectors.networks import swap_vectors, unswap_vectors
from golden.qet.vectors.tiles import DecoderWords, EncoderWords
from golden.vqllm.vectors.engine import random_x
from golden.words import unpack_ints
from hdl.kit.engine import engine_vectors
from hdl.kit.episodes import Vectors
from hdl.kit.words import SEED, Kit, plain, rows


def _network(make, salt: int):
    def vectors_of(config) -> Vectors:
        words = rows(make(config, np.random.default_rng([SEED, salt])), "i", "o")
        some = {name: each[:200] for name, each in words.items()}
        return Vectors(episodes=[plain("any rows and any maps", some)])

    return vectors_of


def _decoder(config) -> Vectors:
    vectors = DecoderWords(config, np.random.default_rng([SEED, 222])).vectors()
    covers = "loads of codebooks and rows; fault: damaged loads, codes beyond their codebook"
    words = rows(vectors, "info", "load", "verdict", "row", "o")
    return Vectors(episodes=[plain(covers, words)])


def _encoder(config) -> Vectors:
    vectors = EncoderWords(config, np.random.default_rng([SEED, 223]), rows=10).vectors()
    covers = "loads of codebooks and rows; fault: damaged loads, rows with infinities and NaN"
    words = rows(vectors, "info", "load", "verdict", "x", "o")
    return Vectors(episodes=[plain(covers, words, masks={"o": unpack_ints(vectors["mask"])})])


def _dequant_gemv(config) -> Vectors:
    rng = np.random.default_rng([SEED, 224])
    jobs, base = [], 0

    def add(rows_and_columns: tuple[int, int], spoil=None) -> None:
        nonlocal base
        matrix = random_matrix(config.shape, rng, *rows_and_columns)
        x = random_x(rng, int(rng.integers(1, config.batch + 1)), rows_and_columns[1])
        job = gemv_job(config, matrix, x, base)
        if spoil is None or spoil(job, rng) is not False:
            jobs.append(job.params() | {"is_faulty": spoil is not None})
            base = job.end()

    for size in ((config.rows, config.columns), (1, 1), (config.rows // 2, config.columns // 2)):
        add(size)
    for spoil in SPOILS:
        add((config.rows, config.columns), spoil)
    matrix = random_matrix(config.shape, rng, 2, config.columns)
    sound = gemv_job(config, matrix, random_x(rng, 1, config.columns), base)
    jobs += [job.params() | {"is_faulty": True} for job in list(bad_jobs(sound))[:3]]
    add((3, config.columns))
    return engine_vectors(jobs, config.image.word_bytes * 8)


KITS = {
    "qet_swap": Kit(vectors=_network(swap_vectors, 220), shown="small"),
    "qet_unswap": Kit(vectors=_network(unswap_vectors, 221), shown="small"),
    "qet_decoder": Kit(vectors=_decoder, shown="small"),
    "qet_encoder": Kit(vectors=_encoder, shown="small"),
    "qet_dequant_gemv": Kit(vectors=_dequant_gemv, shown="small"),
}
