"""VqBookShare: every reader has its words in order, and common bursts are read once.

Shown to fail with:

- words that go to the first reader of a burst alone, or to all readers
- bursts compared by their addresses alone
- no end of patience: a lone reader waits for ever
- a later burst that waits for all readers, or for no mates
- a reader that left and is waited for again; mates that are waited for no longer than others
- mates, or later bursts, that outlast ``clear``
- a first burst that waits for readers whose first one was taken
"""

import numpy as np
import pytest

from hdl.vqllm.cache.book_share import VqBookShare, VqBookShareConfig
from tb.simulate.run import simulate

CONFIGS = {
    "two": VqBookShareConfig(data_bits=64, patience=5, mate_patience=11),
    "four": VqBookShareConfig(readers=4, address_bits=32, data_bits=128, bursts=8),
    "sixteen": VqBookShareConfig(readers=16, data_bits=64, bursts=2, patience=255),
    "hurried": VqBookShareConfig(readers=4, data_bits=64, patience=0, mate_patience=0),
}
BOOK_BYTES = 4096  # a burst stays in 4 KiB


def book(config, number: int, bursts: int, beats: int = 4) -> list[tuple[int, int]]:
    """Bursts (address, beats) that continue each other."""
    size = beats * config.data_bits // 8
    return [(number * BOOK_BYTES + n * size, beats) for n in range(bursts)]


def phases_of(config, rng) -> list[dict]:
    """lists: bursts of each reader. requests: of the manager, if they are certain.

    steps: cycles from each request of the manager to the next, if they are certain; the first is
    from the first offer. clear: in each cycle, or in none.
    """
    count, patience, loyal = config.readers, config.patience, config.mate_patience
    others = [[] for _ in range(count - 1)]
    first, second = book(config, 1, 6), book(config, 2, 3)
    long = [(first[0][0], first[0][1] + 1), *second]
    latency = 1  # of the queue of bursts
    found = [
        {"lists": [first + second] * count, "requests": 9, "steps": [latency, *[1] * 8]},
        # Alone: the first burst waits.
        {
            "lists": [first + second, *others],
            "requests": 9,
            "steps": [patience + latency, *[1] * 8],
        },
        # Of others that leave, the next burst alone waits.
        {
            "lists": [first, *[first[:2]] * (count - 1)],
            "requests": 6,
            "steps": [latency, 1, loyal + 1, 1, 1, 1],
        },
        # Each burst is a first one.
        {
            "lists": [first, *[first[:2]] * (count - 1)],
            "requests": 6,
            "steps": [latency, 1, *[patience + 1] * 4],
            "clear": 1,
        },
        # The same address, and another length: a reader that had its first burst is not awaited.
        {
            "lists": [first[:1], *[long[:1]] * (count - 1)],
            "requests": 2,
            "steps": [latency, 1],
        },
        {
            "lists": [book(config, k % 2, 5) for k in range(count)],
            "requests": 10,
            "steps": None,
        },
        {
            "lists": [book(config, k, 4) for k in range(count)],
            "requests": 4 * count,
            "steps": [latency, *[1] * (4 * count - 1)],
        },
    ]
    for _ in range(8):
        choice = [
            book(config, int(rng.integers(9)), int(rng.integers(1, 7)), int(rng.choice([1, 3, 4])))
            for _ in range(3)
        ]
        lists = [
            [burst for n in rng.integers(0, 3, rng.integers(0, 4)) for burst in choice[n]]
            for _ in range(count)
        ]
        found.append({"lists": lists, "requests": None, "steps": None})
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_book_share(name, seed):
    config = CONFIGS[name]
    params = {"phases": phases_of(config, np.random.default_rng([seed, 217]))}
    simulate(VqBookShare(config), "tb.vqllm.tb_book_share", params=params, seed=seed)
