"""Beats of both blocks: rows of words that golden sorts into parts, and any parts with any maps."""

import numpy as np
import torch

from golden.fp16.vectors.columns import corner_words
from golden.qet.config import FORMATS, swap_bits
from golden.qet.swap import keys, maps_of_words, swap, unswap, words_of_maps
from golden.words import layout_words

_BEATS = 60


def rows(rng, count: int, columns: int, bits: int) -> np.ndarray:
    """Words of every class at its ends, rows of few values, rows in order, and random words."""
    format = FORMATS[bits]
    corners = corner_words(format).astype(np.int64)
    zeros = np.array([0, format.sign_bit])
    found = rng.integers(0, 1 << bits, (count, columns))
    for n, row in enumerate(found):
        match n % 8:
            case 0:
                row[:] = rng.choice(corners, columns)
            case 1:
                row[:] = rng.choice(rng.choice(corners, 3), columns)
            case 2:
                row[:] = rng.choice(zeros, columns)
            case 3:
                row[:] = rng.choice(corners)
            case 4:  # nothing is exchanged, or everything is
                order = np.argsort(keys(torch.tensor(row), bits).numpy())
                row[:] = row[order if n % 16 < 8 else order[::-1]]
            case 5:  # neighbours that differ in the sign alone, or in the last bit
                differences = np.array([format.sign_bit, 1, 0])
                row[1::2] = row[: columns // 2 * 2 : 2] ^ rng.choice(differences, columns // 2)
    return found


def swap_vectors(config, rng) -> dict[str, np.ndarray]:
    """Words of both streams of QetSwap; the packets are of one to a few beats."""
    columns = config.networks << config.levels
    words = rows(rng, _BEATS, columns, config.bits)
    last = rng.integers(0, 2, _BEATS)
    parts, maps = swap(torch.tensor(words), config.levels, config.bits)
    given = {"word": parts.transpose(1, 2).numpy()}
    if config.levels:
        given["map"] = words_of_maps(maps, _BEATS, columns).numpy()
    return {
        "i": layout_words(config.i_layout, word=words, last=last),
        "o": layout_words(config.o_layout, **given, last=last),
    }


def unswap_vectors(config, rng) -> dict[str, np.ndarray]:
    """Words of both streams of QetUnswap: any values, in no order, with any maps."""
    parts = rng.integers(0, 1 << config.bits, (_BEATS, config.networks, 1 << config.levels))
    maps = rng.integers(0, 2, (_BEATS, config.networks, swap_bits(config.levels)))
    maps[0], maps[1] = 0, 1
    last = rng.integers(0, 2, _BEATS)
    by_level = maps_of_words(torch.tensor(maps).bool(), config.levels)
    columns = unswap(torch.tensor(parts).transpose(1, 2), by_level)
    taken = {"word": parts} | ({"map": maps} if config.levels else {})
    return {
        "i": layout_words(config.i_layout, **taken, last=last),
        "o": layout_words(config.o_layout, word=columns.numpy(), last=last),
    }
