"""Entries for VqDequantizer, with the vectors of golden."""

import itertools

import numpy as np
import torch

from golden.vqllm import lattice
from golden.vqllm.matrix import summed
from golden.words import layout_words

ONE, SIGN = 0x3C00, 0x8000


def entries(rng, config) -> np.ndarray:
    """(beats, vectors, stages, size) words of at most 1 in magnitude."""
    size = config.vq.size
    shape = (config.vectors, config.vq.stages, size)

    def signed(words):
        return words | rng.integers(0, 2, words.shape) << 15

    beats = [signed(rng.integers(0, ONE + 1, shape)) for _ in range(60)]
    beats += [np.full(shape, word) for word in (ONE, ONE | SIGN, 1, 1 | SIGN, 0, SIGN, 0x3FF)]
    beats += [signed(rng.choice([0, 1, 0x3FF, 0x400, ONE], shape)) for _ in range(40)]
    # Few numbers that count, so that the sum takes every binade
    for _ in range(60):
        beats.append(signed(rng.integers(0, ONE + 1, shape) * (rng.random(shape) < 0.4)))
    # Ties: a large entry, half a unit of it, and in other stages a subnormal unit or none
    for exponent in [12, 13, 14] * 5:
        beat = rng.integers(0, 2, shape)
        beat[:, 1:2] = exponent - 11 << 10
        beat[:, 0] = (exponent << 10) + rng.integers(0, 1 << 10, (config.vectors, size))
        beats.append(signed(beat))
    # Sums that vanish, or nearly
    for unit in itertools.product((0, 1), repeat=3):
        beat = signed(rng.integers(0, ONE, shape))
        beat[:, 1:2] = beat[:, :1] ^ SIGN
        beat[:, 2:] = sum(unit)
        beats.append(beat)
    return np.stack(beats)[rng.permutation(len(beats))]


def of_lattice(rng, config, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(entries, codes): those given with any signs and shifts, then codes of the lattice itself.

    They are all 65,536 in each stage where 8 vectors come at a time.
    """
    stages = config.vq.stages
    codes = rng.integers(0, 1 << 16, words.shape[:-1])
    codes[::7] &= 0xFF00
    codes[1::7] |= 0x80
    every = np.stack([rng.permutation(1 << 16) for _ in range(stages)], -1)
    every = every.reshape(-1, config.vectors, stages)[: None if config.vectors == 8 else 64]
    stored = lattice.codebook(stages)[np.arange(stages), every >> 8].numpy()
    return np.concatenate([words, stored]), np.concatenate([codes, every])


def dequantizer_vectors(config, seed) -> dict:
    """Beats of entries, and their sums."""
    rng = np.random.default_rng([seed, 160])
    words, point = entries(rng, config), {}
    if config.vq.lattice:
        words, codes = of_lattice(rng, config, words)
        point["point"] = codes & 0xFF
        o = lattice.summed(torch.tensor(words), torch.tensor(codes)).numpy()
    else:
        o = summed(torch.tensor(words)).numpy()
    last = rng.integers(0, 2, len(words))
    return {
        "i": layout_words(config.i_layout, entry=words, **point, last=last),
        "o": layout_words(config.o_layout, word=o, last=last),
    }
