"""Kits of the stream room: golden in plain Python, without torch."""

from hdl.kit.episodes import Vectors
from golden.stream.reference import widen
from tb.kits.kit import SEED, Kit, plain
from tb.stream.support.words import pack, random_words, rng


def _skid(config) -> Vectors:
    words = pack(config.layout, random_words(rng(SEED, "skid", config.width), config.width, 64))
    return Vectors(golden="golden", episodes=[plain("packets", {"i": words, "o": words})])


KITS = {"stream_skid": Kit(vectors=_skid)}
