"""Kits of the attention room: the words of its benches."""

import numpy as np

from hdl.kit.episodes import Vectors
from tb.attention.test_softmax import row_vectors as softmax_rows
from tb.attention.test_weights import row_vectors as weight_rows
from tb.kits.kit import SEED, Kit, plain

__all__ = ["KITS"]

_BAD = 1 << 16  # of a word of ``maximum``


def _softmax(config) -> Vectors:
    words, _ = softmax_rows(config, np.random.default_rng([SEED, 81]))
    # The word of the maximum of a bad row is unspecified.
    masks = {"maximum": [_BAD if word & _BAD else -1 for word in words["maximum"]]}
    covers = "rows: usual, masked, constant, wide; fault: rows with infinities and NaN"
    return Vectors(episodes=[plain(covers, words, masks=masks)])


def _weights(config) -> Vectors:
    words, _ = weight_rows(config, np.random.default_rng([SEED, 83]))
    covers = "rows of keys, window or past alone; fault: scores that are not finite"
    return Vectors(episodes=[plain(covers, words)])


KITS = {
    "attention_softmax": Kit(vectors=_softmax, shown="small"),
    "attention_weights": Kit(vectors=_weights, shown="small"),
}
