"""Kits of the memory room: golden in plain Python, so they need no torch."""

import random

from golden.memory.reference import memory_shared
from golden.words import layout_word
from hdl.kit.episodes import Episode, Vectors
from hdl.kit.words import SEED, Kit, plain

_READS = 120  # of each reader


def _shared(config) -> Vectors:
    """Writers first, then readers: the order of a write and a read is the block's choice."""
    rng = random.Random(f"{SEED} shared")
    written: list[tuple[int, int, int]] = []
    episodes: list[Episode] = []
    for name in ("every word written", "some words written again"):
        words: dict[str, list] = {}
        for k in range(config.writers):
            addresses = list(range(k, config.depth, config.writers))
            if episodes:
                addresses = rng.sample(addresses, len(addresses) // 3)
            values = [rng.getrandbits(config.width) for _ in addresses]
            when = len(written)
            written += [(when, *each) for each in zip(addresses, values, strict=True)]
            words[f"write_{k}"] = [
                layout_word(config.write_layout, address=address, word=value)
                for address, value in zip(addresses, values, strict=True)
            ]
        episodes.append(plain(name, words))
        words = {}
        for k in range(config.readers):
            addresses = [rng.randrange(config.depth) for _ in range(_READS)]
            answers = memory_shared(written, [(len(written), each) for each in addresses])
            words[f"request_{k}"] = addresses
            words[f"answer_{k}"] = answers
        episodes.append(plain(f"{name}: reads of all readers at once", words))
    return Vectors(episodes=episodes)


KITS = {"memory_shared": Kit(vectors=_shared)}
