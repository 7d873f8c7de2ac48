"""Loads of codebooks and their images in memory. Before the simulation."""

import numpy as np
import torch

from golden.vqllm.cache import load_fault
from golden.words import layout_word


def host_params(config) -> dict:
    """The facts of a cache that CacheHost knows."""
    return {
        "load_last": config.load_layout["last"].offset,
        "count_fields": [(key, field.offset, field.width) for key, field in config.counts_layout],
    }


def image(config, rng, books: np.ndarray) -> str:
    """(stages, entries, size) words as memory has them, in hexadecimal; junk between entries."""
    memory = np.zeros((*books.shape[:2], config.entry_bytes // 2), "<u2")
    memory[..., : config.vq.size] = books
    memory[..., config.vq.size :] = rng.integers(1 << 16)
    return memory.tobytes().hex()


def load(config, tiers, base, words: np.ndarray) -> dict:
    """words: (entries, size) of all stages, ``tiers.shared`` of each; fewer or more are a fault.

    A beat has neighbours of a stage. Beyond the last one of a stage come wrong entries, which do
    not count.
    """
    expected = tiers.shared * config.vq.stages
    fault = load_fault(torch.tensor(words), expected)
    beats = []
    for first in range(0, len(words), tiers.shared):
        stage = words[first : first + tiers.shared]
        for at in range(0, len(stage), config.load_entries):
            some = stage[at : at + config.load_entries].tolist()
            rest = config.load_entries - len(some)
            beats.append([*some, *[[0x7C00] * config.vq.size] * rest])
    return {
        "info": layout_word(
            config.info_layout, registers=tiers.registers, shared=tiers.shared, base=base
        ),
        "words": [
            layout_word(config.load_layout, word=word, last=n == len(beats) - 1)
            for n, word in enumerate(beats)
        ],
        "fault": int(fault),
    }
