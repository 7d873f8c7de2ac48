"""Rows of scores for AttentionWeights, and what golden makes of them."""

import numpy as np
import torch

from golden.attention.softmax import row_weights
from golden.attention.vectors.rows import one_above
from golden.fp16.format import FP16
from golden.fp16.vectors.columns import random_words
from golden.words import layout_word

ROWS = 48
ORDER_ROWS = 12  # in which one word is the next above all others, for every query
INF, NEGATIVE_INF = FP16.infinity, FP16.sign_bit | FP16.infinity


def near_ties() -> np.ndarray:
    """Words w whose exp(w) lies within 1/64 of a unit from a tie of the rounding."""
    words = np.arange(0x8001, 0xCC80)
    exact = np.exp(words.astype(np.uint16).view(np.float16).astype(np.float64))
    rounded = exact.astype(np.float16)
    unit = np.spacing(rounded).astype(np.float64)
    return words[np.abs(np.abs(exact - rounded) - unit / 2) < unit / 64]


NEAR_TIES = near_ties()


def scores(rng, kind: int, count: int) -> np.ndarray:
    """Scores of a query: ordinary, masked, constant, wide, zeros, any, not finite, near ties."""
    spread = (rng.choice([1, 3, 6]), 4, 20)[kind % 3]
    x = rng.normal(0, spread, count).astype(np.float16).view(np.uint16).astype(int)
    if kind in (3, 4):
        x[rng.random(count) < (0.5, 0.95)[kind - 3]] = NEGATIVE_INF
        x[rng.integers(0, count)] = 0x4000
    if kind == 5:
        x[:] = x[0]
    if kind == 6:
        x = rng.uniform(-65000, 65000, count).astype(np.float16).view(np.uint16).astype(int)
    if kind == 7:
        x[:] = NEGATIVE_INF
    if kind in (8, 9):  # in the first or the last place, or anywhere
        place = (0, count - 1, rng.integers(0, count))[rng.integers(0, 3)]
        x[place] = INF if kind == 8 else rng.choice([0x7C01, 0x7E00, 0xFE00, 0xFFFF])
    if kind == 10:
        x = rng.choice([0, 0x8000, 1, 0x8001], count)
    if kind == 11:
        x = random_words(rng, count).astype(int)
    if kind == 12:  # the largest in the first or the last place
        x[-rng.integers(0, 2)] = 0x7BFF
    if kind == 13:  # each bit of the exponential decides; the largest is 0
        x = rng.choice(NEAR_TIES, count)
        x[rng.integers(0, count)] = 0
    if kind == 14:  # all of them negative, in one binade, down to the most negative
        x = rng.integers(0, 31) * 0x400 + rng.integers(0, 0x400, count) | 0x8000
    if kind == 15:  # one word is the next above all others
        x = one_above(rng, x[0], count)
    if kind == 16:  # the first is not finite
        x[0] = rng.choice([INF, 0x7E00, 0xFE00])
    return x


def sizes(config, rng, n: int) -> tuple[int, int]:
    """(window, past) of row n: the ends of the ranges, none of a kind, and others."""
    window, past, keys = config.window, config.past, config.keys
    ends = [
        (window, past), (0, past), (window, 0), (1, 0), (0, 1), (1, 1), (0, 1), (1, 0),
        (window, min(past, keys + 1)), (0, min(past, 2 * keys - 1)), (1, min(past, 2 * keys)),
    ]  # fmt: skip
    if n < len(ends):
        return ends[n]
    while True:
        found = int(rng.integers(0, window + 1)), int(rng.integers(0, past + 1))
        if any(found):
            return found


def row_vectors(config, rng) -> tuple[dict, dict]:
    """Words of every stream, and by stream how many words are done after each row."""
    names = ("row", "past_score", "window_score", "window_weight", "past_weight", "total")
    words: dict[str, list[int]] = {name: [] for name in names}
    ends: dict[str, list[int]] = {name: [] for name in words}
    queries, keys = config.queries, config.keys
    # Unusual scores in 6 of 10 queries, each kind as often.
    kinds = np.resize(np.arange(16), ROWS * queries) * (np.arange(ROWS * queries) % 10 < 6)
    kinds = rng.permutation(kinds).reshape(ROWS, queries)
    kinds[0] = 5  # the largest sums
    # One query at a time: the first score of the window alone is not finite.
    first_special = np.where(np.eye(queries, dtype=int), 16, 0)
    kinds = np.concatenate([kinds, np.full((ORDER_ROWS, queries), 15), first_special])
    for n in range(len(kinds)):
        window, past = sizes(config, rng, n if n < len(kinds) - queries else 0)
        words["row"].append(layout_word(config.row_layout, past=past, window=window))
        x = np.stack([scores(rng, kind, window + past) for kind in kinds[n].tolist()])
        cut = torch.tensor(x)
        window_weight, past_weight, part = row_weights(cut[:, :window], cut[:, window:])
        beats = -(-past // keys)
        # Slots beyond the last key carry any words.
        padded = rng.choice([INF, 0x7E00, 0x7BFF, NEGATIVE_INF, 0], (queries, beats * keys))
        padded[:, :past] = x[:, window:]
        weight = np.zeros((queries, beats * keys), dtype=int)
        weight[:, :past] = past_weight
        for name, layout, values in (
            ("window_score", config.window_layout, x[:, :window].T),
            ("window_weight", config.window_layout, window_weight.numpy().T),
            ("past_score", config.past_layout, padded.T.reshape(beats, keys * queries)),
            ("past_weight", config.past_layout, weight.T.reshape(beats, keys * queries)),
        ):
            words[name] += [
                layout_word(layout, word=beat, last=k == len(values) - 1)
                for k, beat in enumerate(values.tolist())
            ]
        bad = sum(int(flag) << k for k, flag in enumerate(part.bad))
        words["total"].append(layout_word(config.total_layout, sum=part.total.tolist(), bad=bad))
        for name in words:
            ends[name].append(len(words[name]))
    return words, ends
