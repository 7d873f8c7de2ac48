"""MillionLoader against golden.index.store.store_words and golden.million.verdicts.load_status.

Shown to fail:

- K's exponent for V, ``last`` one word early, words of one book alone;
- faults of K alone, of V alone, a NONFINITE taken from the bit of MAGNITUDE;
- beats that do not wrap, a second LOAD that begins with V;
- a word of V that waits for K's store, a beat that waits for an empty word;
- ``idle`` during a LOAD, a status with another sequence.
"""

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.index.format import CodebookFault
from golden.index.store import store_words
from golden.million.config import NAMED, HeadShape, MillionConfig, PqShape, RateShape
from golden.million.format import Op
from golden.million.verdicts import load_status
from golden.words import layout_words
from hdl.million.layouts import STATUS_LAYOUT
from hdl.million.loader import LOAD_LAYOUT, MillionLoader, MillionLoaderConfig
from tb.simulate.run import simulate

SMALL = PqShape(head_dim=16, subspaces=4, bits=4)


def loader(pq, rate=None, heads=1, **cache):
    return MillionLoaderConfig(
        cache=MillionConfig(pq=pq, head=HeadShape(heads=heads), scope_heads=heads > 1, **cache),
        rate=rate or RateShape(),
    )


CONFIGS = {
    "default": MillionLoaderConfig(),
    "smollm2": loader(NAMED["4b_64"]),
    "small": loader(SMALL, RateShape(macs=8, window_macs=8, lanes=4)),
    "three_parts": loader(
        PqShape(head_dim=48, subspaces=12, bits=4), RateShape(macs=16, window_macs=16, lanes=8)
    ),
    "one_beat_one_part": loader(SMALL, RateShape(macs=16, window_macs=8, lanes=16)),
    "of_each_head": loader(SMALL, RateShape(macs=8, window_macs=8, lanes=8), heads=3),
}
FAULTS = [(0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (3, 0), (2, 1), (4, 4), (0, 0), (7, 7), (0, 4)]


def load_vectors(block, seed):
    """Codebooks of one entry, of as many as there are, and between; words of any value."""
    config = block.config
    cache, rate = config.cache, config.rate
    pq = cache.pq
    rng = np.random.default_rng([seed, 145])
    some = [1, 2, 1, 3, 1, 2, 1, 1, 1, 2]
    entries = [*some, pq.entries]
    count = len(entries)
    assert count == len(FAULTS)
    beats, words, last = [], ([], []), ([], [])
    packets = {name: [] for name in ("codebook", "word_0", "word_1")}
    for size in entries:
        shape = (cache.books, pq.subspaces, size, pq.sub)
        for kv in range(2):
            codebook = torch.tensor(rng.integers(0, 1 << 16, shape))
            beats.append(store_words(codebook, rate.lanes))
            words[kv].append(store_words(codebook, rate.macs))
            last[kv].append(torch.arange(len(words[kv][-1])) == len(words[kv][-1]) - 1)
            packets[f"word_{kv}"].append(sum(map(len, words[kv])))
        packets["codebook"].append(sum(map(len, beats)))
    fields = {
        "tag": rng.integers(0, 256, count),
        "sequence": rng.integers(0, 256, count),
    }
    exponents = rng.integers(-8, 16, (2, count))
    status = [int(load_status(CodebookFault(k | v))) for k, v in FAULTS]
    vectors = {
        "load": layout_words(
            LOAD_LAYOUT, **fields, entries=entries, exponent_k=exponents[0], exponent_v=exponents[1]
        ),
        "codebook": layout_words(config.codebook_layout, word=torch.cat(beats)),
        "status": layout_words(
            STATUS_LAYOUT, **fields, op=np.full(count, int(Op.LOAD)), status=status
        ),
    }
    for kv in range(2):
        vectors[f"info_{kv}"] = layout_words(
            config.info_layout, entries=entries, exponent=exponents[kv]
        )
        vectors[f"word_{kv}"] = layout_words(
            config.word_layout, word=torch.cat(words[kv]), last=torch.cat(last[kv])
        )
    packets |= {name: list(range(1, count + 1)) for name in ("load", "info_0", "info_1", "status")}
    params = {"packets": packets, "cycles": cycles(block, entries), "some": len(some)}
    return vectors, params | {"faults": FAULTS}


def cycles(block, entries):
    """Info, beats, and a word after its last beat, for K, then for V; then the status."""
    config, timing = block.config, block.timing
    rate, cache = config.rate, config.cache
    ratio, parts = rate.macs // rate.lanes, cache.pq.head_dim // rate.macs
    names = ("load", "codebook", "info_0", "info_1", "word_0", "word_1", "status")
    found = {name: [] for name in names}
    at = 0
    for size in entries:
        found["load"].append(at)
        first = at + timing.delay("from load to the first beat")
        for kv in range(2):
            count = cache.books * size * parts
            found[f"info_{kv}"].append(first - 1)
            found["codebook"] += range(first, first + ratio * count)
            ends = range(first + ratio - 1, first + ratio * count, ratio)
            found[f"word_{kv}"] += [end + timing.latency for end in ends]
            at = ends[-1] + timing.latency
            first = ends[-1] + timing.delay("from the last beat of K to the first of V")
        at += timing.delay("from the last word to status")
        found["status"].append(at)
        at += 1
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_loader(name, seed):
    block = MillionLoader(CONFIGS[name])
    vectors, params = load_vectors(block, seed)
    simulate(block, "tb.million.tb_loader", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"rate": RateShape(macs=16, lanes=32)},
            "MillionLoaderConfig.rate.lanes must be a divisor of macs = 16, not 32",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        MillionLoaderConfig(**wrong)
