"""Kits of the attention room."""

from itertools import accumulate

import numpy as np

from golden.attention.vectors.softmax import row_vectors as softmax_rows
from golden.attention.vectors.stream import run_vectors
from golden.attention.vectors.weights import row_vectors as weight_rows
from hdl.kit.episodes import Vectors
from hdl.kit.words import SEED, Kit, plain, sliced

_BAD = 1 << 16  # of a word of ``maximum``
_RUNS = 12


def _ends(counts: list[int]) -> dict[str, list[int]]:
    """Words of each stream after each row. counts: beats of the rows, negative of bad ones."""
    beats = list(accumulate(abs(count) for count in counts))
    good = list(accumulate(max(count, 0) for count in counts))
    totals = list(accumulate(int(count > 0) for count in counts))
    one = list(range(1, len(counts) + 1))
    return {
        "row": one, "score": beats, "maximum": one, "difference": good, "total": totals,
        "weight": good,
    }  # fmt: skip


def _softmax(config) -> Vectors:
    made, counts = softmax_rows(config, np.random.default_rng([SEED, 81]))
    words = sliced(made, _ends(counts), len(counts))
    # The word of the maximum of a bad row is unspecified.
    masks = {"maximum": [_BAD if word & _BAD else -1 for word in words["maximum"]]}
    covers = "rows: usual, masked, constant, wide; fault: rows with infinities and NaN"
    return Vectors(episodes=[plain(covers, words, masks=masks)])


def _weights(config) -> Vectors:
    made, ends = weight_rows(config, np.random.default_rng([SEED, 83]))
    words = sliced(made, ends, len(ends["row"]))
    covers = "rows of keys, window or past alone; fault: scores that are not finite"
    return Vectors(episodes=[plain(covers, words)])


def _stream(config) -> Vectors:
    made, told = run_vectors(config, np.random.default_rng([SEED, 85]), _RUNS)
    words = sliced(made, told["ends"], _RUNS)
    covers = "runs of jobs: lengths, sizes; fault: refused lengths, bad data, infinities and NaN"
    return Vectors(episodes=[plain(covers, words)])


KITS = {
    "attention_softmax": Kit(vectors=_softmax, shown="small"),
    "attention_weights": Kit(vectors=_weights, shown="small"),
    "attention_stream": Kit(vectors=_stream, shown="small"),
}
