"""Rows of scores for AttentionSoftmax, and what golden makes of them."""

import numpy as np
import torch

from golden.attention.softmax import difference, partial, reciprocal
from golden.attention.vectors.rows import one_above
from golden.fp16.format import FP16
from golden.fp16.vectors.columns import random_words

ROWS = 72
INF, NEGATIVE_INF = FP16.infinity, FP16.sign_bit | FP16.infinity


def scores(rng, kind: int, count: int) -> np.ndarray:
    """A row: ordinary, masked, constant, wide, any words, all masked, infinite, NaN, near ties."""
    x = rng.normal(0, (1, 4, 20)[kind % 3], count).astype(np.float16).view(np.uint16).astype(int)
    if kind in (3, 4):
        x[rng.random(count) < (0.5, 0.95)[kind - 3]] = NEGATIVE_INF
        x[-1] = 0x4000
    if kind == 5:
        x[:] = x[0]
    if kind == 6:
        x = rng.uniform(-65000, 65000, count).astype(np.float16).view(np.uint16).astype(int)
    if kind == 7:
        x[:] = NEGATIVE_INF
    if kind == 8:
        x[rng.integers(0, count)] = rng.choice([INF, 0x7E00, 0xFE00, 0xFFFF])
    if kind == 9:
        x = rng.choice([0, 0x8000, 1, 0x8001], count)
    if kind == 10:
        x = random_words(rng, count).astype(int)
    if kind == 11:  # one word is the next above all others
        x = one_above(rng, x[0], count)
    return x


def row_vectors(config, rng) -> tuple[dict, list[int]]:
    """Words of every stream, and the beats of each row, negative if the row is bad.

    Lengths are 1, the longest, and others. Up to two beats of padding follow, with any words.
    """
    width, most = config.width, config.elements
    names = ("row", "score", "maximum", "difference", "total", "weight")
    words: dict[str, list[int]] = {name: [] for name in names}
    counts = []

    def beats_of(row) -> list[int]:
        return [config.beat_layout.const({"word": beat}).as_bits() for beat in row.tolist()]

    for k in range(ROWS):
        named = (1, most, width, max(width - 1, 1), width + 1)
        length = named[k] if k < 5 else rng.integers(1, most + 1)
        beats = int(min(-(-length // width) + rng.integers(0, 3), most // width))
        x = scores(rng, k % 12, int(length))
        part = partial(torch.tensor(x))
        row = {"length": int(length), "beats": beats}
        words["row"].append(config.row_layout.const(row).as_bits())
        padded = rng.integers(0, 1 << 16, (3, beats * width))
        padded[0, :length] = x
        words["score"] += beats_of(padded[0].reshape(beats, width))
        words["maximum"].append(int(part.maximum) | int(part.bad) << 16)
        counts.append(-beats if part.bad else beats)
        if part.bad:
            continue
        padded[1, :length] = difference(torch.tensor(x), part.maximum)
        padded[2] = 0
        padded[2, :length] = part.weight
        words["difference"] += beats_of(padded[1].reshape(beats, width))
        words["weight"] += beats_of(padded[2].reshape(beats, width))
        total = {"sum": int(part.total), "reciprocal": int(reciprocal(part.total))}
        words["total"].append(config.total_layout.const(total).as_bits())
    return words, counts
