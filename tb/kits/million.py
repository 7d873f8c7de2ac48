"""Kits of MILLION: the words of its benches."""

import numpy as np

from hdl.kit.episodes import Vectors
from hdl.million.record_writer import MillionRecordWriter
from tb.kits.kit import SEED, Kit, plain, rows, sliced
from tb.million.test_code_reader import reader_vectors
from tb.million.test_decode_keys import key_vectors
from tb.million.test_output import vectors as output_words
from tb.million.test_record_writer import record_vectors
from tb.million.test_score_engine import engine_vectors

__all__ = ["KITS"]


def _code_reader(config) -> Vectors:
    vectors, params = reader_vectors(config, SEED)
    packets = {"word": params["words"], "code": params["beats"]}
    covers = "transfers of records at any byte; fault: words with bus errors"
    return Vectors(episodes=[plain(covers, sliced(rows(vectors, "word", "code"), packets, 60))])


def _record_writer(config) -> Vectors:
    block = MillionRecordWriter(config)
    block._MustUse__silence = True  # it gives its timing alone
    vectors, params = record_vectors(block, SEED)
    words = rows(vectors, "code", "record", "w")
    return Vectors(episodes=[plain("codes", sliced(words, params["packets"], 60))])


def _jobs(make, covers: str):
    """``make(config, seed)``: vectors of the streams, and what its bench knows of the jobs."""

    def vectors_of(config) -> Vectors:
        vectors, _ = make(config, SEED)
        return Vectors(episodes=[plain(covers, rows(vectors, *vectors))])

    return vectors_of


def _output(config) -> Vectors:
    words, params = output_words(config, np.random.default_rng([SEED, 85]))
    covers = "groups of queries; fault: queries whose sums are bad"
    return Vectors(episodes=[plain(covers, sliced(words, params["ends"], 20))])


_SCORES = "jobs of any number of keys; fault: codes beyond the table, NaN and infinities"
_DECODE = "jobs with new codebooks and without; fault: codes beyond the codebook, NaN, infinities"

KITS = {
    "million_code_reader": Kit(vectors=_code_reader, shown="small"),
    "million_record_writer": Kit(vectors=_record_writer, shown="small"),
    "million_score_engine": Kit(vectors=_jobs(engine_vectors, _SCORES), shown="small"),
    "million_decode_keys": Kit(vectors=_jobs(key_vectors, _DECODE), shown="small"),
    "million_output": Kit(vectors=_output, shown="small"),
}
