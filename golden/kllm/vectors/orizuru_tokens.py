"""Tokens that try kllm_orizuru, for its golden model and its co-simulation alike."""

import numpy as np

from golden.fp16.format import FP16
from golden.fp16.vectors.columns import random_words

POOLS = {
    "constant": (0x3C00,),
    "two_valued": (0x3C00, 0xBC00),
    "zeros": (0x0000,),
    "both_zeros": (0x0000, 0x8000),
    "infinities": (0x7C00, 0xFC00, 0x0000),
    "subnormal": (0x0001, 0x8001, 0x03FF, 0x83FF, 0x0000, 0x8000),
}


def token_words(rng, count: int, length: int) -> np.ndarray:
    """(count, length) words without NaN: random, normal, sorted both ways, and of small pools."""
    words = random_words(rng, count * length, FP16).reshape(count, length).astype(np.int64)
    normal = rng.standard_normal((count, length)).astype(np.float16).view(np.uint16)
    words = np.where(rng.random((count, 1)) < 0.5, words, normal)
    words = np.where(words & 0x7FFF > 0x7C00, words & 0x83FF, words)
    key = np.where(words >> 15, -1 - (words & 0x7FFF), words)
    upwards = np.take_along_axis(words, np.argsort(key, axis=1, kind="stable"), axis=1)
    for token, kind in enumerate(rng.integers(0, 4 + len(POOLS), count)):
        if kind == 0:
            words[token] = upwards[token]
        elif kind == 1:
            words[token] = upwards[token, ::-1]
        elif kind < 2 + len(POOLS):
            words[token] = rng.choice(list(POOLS.values())[kind - 2], length)
    return words
