"""Words for the benches of stream blocks."""

import random

from golden.words import layout_word


def rng(seed: int, *names) -> random.Random:
    return random.Random(" ".join(map(str, (seed, *names))))


def random_words(generator: random.Random, width: int, count: int, p_last: float = 0.25):
    """``count`` words (data, last), among them all zeros and all ones; the final one is a last."""
    words = [(generator.getrandbits(width), int(generator.random() < p_last)) for _ in range(count)]
    words[0], words[1] = (0, words[0][1]), ((1 << width) - 1, words[1][1])
    return [*words[:-1], (words[-1][0], 1)]


def narrow_beats(generator: random.Random, config, count: int):
    """(data, count, last) of StreamNarrow, bad counts too: they pass as ``ratio``."""
    most = (1 << config.i_layout["count"].width) - 1
    return [
        (
            generator.getrandbits(config.width * config.ratio),
            generator.randint(0, most) if generator.random() < 0.5 else config.ratio,
            generator.getrandbits(1),
        )
        for _ in range(count)
    ]


def repack_words(generator: random.Random, size: int, count: int, error_bits: int = 1):
    """Full words most of the time; unaligned ends, words without bytes, ends out of range."""
    most_end = (1 << size.bit_length()) - 1
    most_first = max(1, size - 1)
    words = []
    for n in range(count):
        first, end = 0, size
        match generator.randrange(8):
            case 0:
                first, end = generator.randint(0, most_first), generator.randint(0, most_end)
            case 1:
                first = generator.randrange(size)
            case 2:
                end = generator.randint(1, size)
        last = int(n == count - 1 or generator.random() < 0.2)
        error = generator.randrange(1, 1 << error_bits) if generator.random() < 0.2 else 0
        words.append((generator.getrandbits(8 * size), first, end, error, last))
    return words


def pack(layout, words) -> list[int]:
    """Payload bits of words whose fields are in the order of ``layout``; errors: layout_word."""
    return [layout_word(layout, **dict(zip(layout.members, word, strict=True))) for word in words]
