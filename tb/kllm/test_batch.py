"""KllmBatch against golden.kllm.engines.batch_table: every place, every reader, after each word.

Shown to fail:

- a place that changes with its second word, or one of five words with its third;
- words 3 and 4 of a place taken for the next place, with and without ``top``;
- k that is cut to its bits, a k of 0, or k of a place that has three words now;
- a place beyond the batch taken modulo a power of two;
- a place that stays when its token goes;
- a reader that looks at the place of another;
- bit 7 of a sequence, bit 20 of a position or bit 31 of a token lost;
- a position that is cut to its bits instead of held at the furthest;
- words before a reset that count after it.
"""

import numpy as np
import pytest

from golden.kllm.engines import Entry, Sampling, batch_table, place_words
from golden.kllm.format import FURTHEST
from golden.words import join
from hdl.kllm.batch import KllmBatch, KllmBatchConfig
from hdl.kllm.room import BLOCKS
from hdl.paging.layouts import TOKEN_BITS
from tb.simulate.run import simulate

CONFIGS = {
    **BLOCKS["kllm_batch"].configs,
    "most": KllmBatchConfig(places=64, readers=2, top=64),
}


def words(config: KllmBatchConfig, rng) -> list[int]:
    """Words that set places, within the batch and beyond it; every bit as 0 and as 1."""
    found: list[int] = []
    for n in range(40 + 3 * config.places):
        near = [config.places - 1, config.places, 255, config.places + 64, int(rng.integers(256))]
        inside = int(rng.integers(config.places))
        place = n if n < config.places else int(rng.choice([inside] * 8 + near)) & 0xFF
        position = int(rng.choice([0, FURTHEST - 1, FURTHEST, FURTHEST + 1, 1 << TOKEN_BITS,
                                   (1 << 32) - 1, int(rng.integers(1 << 20))]))  # fmt: skip
        sampling = None
        if rng.random() < 0.5:
            k = int(rng.choice([0, 0, 0, 0, 1, 2, 39, 40, 41, 63, 64, 65, 128, 255]))
            inverse, seed = int(rng.integers(1 << 16)), int(rng.integers(1 << 32))
            sampling = Sampling(k, inverse, seed)
        token = int(rng.integers(1 << 32))
        made = place_words(place, int(rng.integers(256)), position, token, sampling)
        made[0] ^= int(rng.integers(1 << 6)) << 10 | int(rng.integers(1 << 8)) << 24
        if sampling is not None:
            made[3] ^= int(rng.integers(1 << 8)) << 8
        if rng.random() < 0.25:
            made[0] &= ~(1 << 8)
        found += made
    return found


def entry_word(entry: Entry | None) -> int | None:
    """An entry as its port has it; None: it has no token, and the other fields have no meaning."""
    if entry is None:
        return None
    sequence, position, token, _ = entry
    return join((1, 1), (sequence, 8), (position, TOKEN_BITS), (token, 32))


def choice_word(entry: Entry | None, top: int) -> tuple[int, int]:
    """(the choice as its port has it, the bits of it that mean something)."""
    sampling = None if entry is None else entry[3]
    if entry is None or sampling is None:
        return 1, 0x7F
    k = min(max(sampling.k, 1), top)
    position, inverse, seed = entry[1], sampling.inverse_temperature, sampling.seed
    return join((k, 7), (position, TOKEN_BITS), (inverse, 16), (seed, 32)), -1


def tables(config: KllmBatchConfig, given: list[int]) -> list[dict[str, list]]:
    """After each word the entries and the choices of all places."""
    made = []
    for n in range(len(given) + 1):
        table = batch_table(given[:n], config.places)
        made.append({
            "entries": [entry_word(entry) for entry in table],
            "choices": [choice_word(entry, config.top) for entry in table],
        })  # fmt: skip
    return made


@pytest.mark.telling("odd")
@pytest.mark.parametrize("name", CONFIGS)
def test_batch(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 51])
    given = words(config, rng)
    params = {"words": given, "tables": tables(config, given)}
    simulate(KllmBatch(config), "tb.kllm.tb_batch", params=params, seed=seed)


def test_golden_by_hand():
    """Two places, one taken away, words that are no place, one beyond the batch."""
    given = [*place_words(1, 7, 3, 99), *place_words(0, 0, 0, 1)]
    assert given == [0x0007_0101, 3, 99, 0x0000_0100, 0, 1]
    assert batch_table(given, 2) == [(0, 0, 1, None), (7, 3, 99, None)]
    assert batch_table([*given, *place_words(1)], 2) == [(0, 0, 1, None), None]
    assert batch_table(given[:5], 2) == [None, (7, 3, 99, None)]
    assert batch_table(given, 1) == [(0, 0, 1, None)]
    assert batch_table(place_words(0, 1, 1 << 31), 1) == [(1, FURTHEST, 0, None)]
    drawn = place_words(0, 2, 5, 6, Sampling(40, 0x3DC5, 77))
    assert drawn == [0x0002_0300, 5, 6, 0x3DC5_0028, 77]
    assert batch_table([*drawn, *given], 2)[1] == (7, 3, 99, None)
    assert batch_table(drawn, 1) == [(2, 5, 6, Sampling(40, 0x3DC5, 77))]
    assert batch_table(drawn[:4], 1) == [None]
