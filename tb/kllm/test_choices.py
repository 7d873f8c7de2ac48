"""KllmChoices against golden.kllm.top_k: every place and rank, while elements come.

Shown to fail:

- a rank as high as the count that is a choice;
- a place beyond the configuration taken modulo a power of two in writes;
- the word of a key below that of 0 without its sign; an id that is not inverted.
"""

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16
from golden.kllm.format import ID_BITS, KEY_ZERO
from golden.kllm.top_k import ids, word_of
from golden.words import layout_word
from hdl.kllm.room import BLOCKS
from hdl.kllm.slots.choices import KllmChoices, choice_layout, chosen_layout
from tb.simulate.run import simulate

CONFIGS = BLOCKS["kllm_choices"].configs


def element(rng) -> int:
    """A rank: no element, both ends of keys and ids, or any."""
    if rng.random() < 0.1:
        return 0
    largest = FP16.infinity
    key = int(rng.choice([-largest, -1, 0, 1, largest, rng.integers(-largest, largest)]))
    number = int(rng.choice([0, (1 << ID_BITS) - 1, rng.integers(1 << 24)]))
    return (KEY_ZERO + key) << ID_BITS | (1 << ID_BITS) - 1 - number


def choice(rank: int) -> int:
    return layout_word(
        choice_layout, valid=1, word=word_of(rank), id=int(ids(torch.tensor(rank)))
    )


@pytest.mark.telling("odd")
@pytest.mark.parametrize("name", CONFIGS)
def test_choices(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 131])
    words, table = [], {}
    states = [dict(table)]  # choices of (place, rank) after so many words
    for _ in range(60):
        place = int(rng.integers(config.places))
        if rng.random() < 0.2:
            place = int(rng.choice([config.places, 64 + place, 255]))
        count = int(rng.integers(1, config.experts + 1))
        for rank in reversed(range(count)):
            made = element(rng)
            fields = {"place": place, "rank": rank, "count": count, "element": made}
            words.append(layout_word(chosen_layout, **fields))
            if place < config.places:
                held = {n: table.get((place, n)) for n in range(count)} | {rank: choice(made)}
                # A rank that a longer list had is a choice again only when it is written.
                table = {at: each for at, each in table.items() if at[0] != place}
                table |= {(place, n): each for n, each in held.items()}
            states.append(dict(table))
    params = {"words": words, "states": states}
    simulate(KllmChoices(config), "tb.kllm.tb_choices", params=params, seed=seed)
