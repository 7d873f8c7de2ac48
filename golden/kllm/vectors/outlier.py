"""Packets for KllmOutlier, with the sums of golden."""

import numpy as np
import torch

from golden.index.vectors.codebooks import other_bits
from golden.kllm.blocks import sparse_sums
from golden.words import layout_words, pack


def codebooks(rng, entries) -> dict[str, np.ndarray]:
    random = rng.integers(0, 2, entries) << 15 | rng.integers(0, 0x3C01, entries)
    random[[0, -1]] = 0xBC00, 0x3C00
    return {
        "random": random,
        "other_bits": other_bits(random),
        "ones": np.resize([0x3C00, 0xBC00], entries),
        "subnormal": rng.integers(0, 2, entries) << 15 | rng.integers(0, 0x400, entries),
    }


def outlier_packets(rng, config) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """[(x, present, index)] of each packet."""
    codes, most = 2**config.bits_b, config.outliers_max

    def packet(words, *, x=None, present=True, index=None):
        drawn = rng.integers(0, 2, words) << 15 | rng.integers(0, 0x7C00, words)
        drawn_index = rng.integers(0, codes, (words, config.columns))
        return (
            drawn if x is None else np.resize(x, words),
            np.broadcast_to(np.asarray(present), words).copy(),
            drawn_index if index is None else np.full_like(drawn_index, index),
        )

    packets = [packet(1), packet(1, present=False), packet(5, present=False)]
    # nothing present, whatever the word is
    packets.append(packet(3, x=[0x7C00, 0x7E00, 0xFFFF], present=False))
    packets += [packet(1) for _ in range(4)]
    for words in (x for x in (most, max(most // 2, 1)) if x):
        for x in (0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0000, 0x8000):
            packets += [packet(words, x=x, index=j) for j in (0, codes - 1)]
        packets += [packet(words, x=[0x7BFF, 0xFBFF], index=0)]  # cancels
        packets += [packet(words, x=[0x7BFF, 0x0001, 0xFBFF]), packet(words)]
    for _ in range(12):
        words = int(rng.integers(1, 3 * most + 2))
        present = np.zeros(words, dtype=bool)
        present[rng.permutation(words)[: rng.integers(0, min(most, words) + 1)]] = True
        packets.append(packet(words, present=present))
    return packets


def outlier_vectors(config, seed):
    """(vectors, params): packets of each codebook, and their lengths."""
    rng = np.random.default_rng([seed, 14])
    vectors, phases = {}, {}
    for name, codebook in codebooks(rng, 2**config.bits_b).items():
        packets = outlier_packets(rng, config)
        sums = []
        for packet in packets:
            sums += sparse_sums(*map(torch.as_tensor, (*packet, codebook)))
        x, present, index = map(np.concatenate, zip(*packets, strict=True))
        phases[name] = [len(p[0]) for p in packets]
        last = np.concatenate([np.arange(n) == n - 1 for n in phases[name]])
        column = np.arange(len(sums)) % config.columns
        vectors[f"{name}.codebook"] = pack((codebook[None], 16))
        vectors[f"{name}.i"] = layout_words(
            config.i_layout, present=present, x=x, index=index, last=last
        )
        vectors[f"{name}.o"] = layout_words(
            config.o_layout, sum=sums, last=column == config.columns - 1
        )
    return vectors, {"phases": phases}
