"""Words for the benches of stream blocks."""

import random

from tb.words import layout_word

__all__ = ["pack", "random_words", "rng"]


def rng(seed: int, *names) -> random.Random:
    return random.Random(" ".join(map(str, (seed, *names))))


def random_words(generator: random.Random, width: int, count: int, p_last: float = 0.25):
    """``count`` words (data, last), among them all zeros and all ones; the final one is a last."""
    words = [(generator.getrandbits(width), int(generator.random() < p_last)) for _ in range(count)]
    words[0], words[1] = (0, words[0][1]), ((1 << width) - 1, words[1][1])
    return [*words[:-1], (words[-1][0], 1)]


def pack(layout, words) -> list[int]:
    """Payload bits of words whose fields are in the order of ``layout``; errors: layout_word."""
    return [layout_word(layout, **dict(zip(layout.members, word, strict=True))) for word in words]
