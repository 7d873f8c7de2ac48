"""MillionKvWriter against golden.million.split.rows: rows, words, verdicts and cycles.

Shown to fail:

- all rows in the window of head 0, V before K, a row that is not held;
- ``row`` once for K and once for V; a token of K alone; ``last`` with the last head only;
- NaN or infinity in the last beat only, in all lanes but one, or of the token before;
- one bit of one lane's exponent that reads as 0, or as 1;
- junk on ``kv`` judged, beats of a discarded token not judged;
- a discarded token that gives rows or beats;
- a beat, a row or ``done`` that does not wait.
"""

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.million.config import NAMED, HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.split import rows
from golden.words import layout_words
from hdl.million.encode_control import row_layout
from hdl.million.kv_writer import MillionKvWriter, MillionKvWriterConfig
from hdl.million.layouts import beat_layout
from tb.simulate.run import simulate

SMALL = PqShape(head_dim=16, subspaces=4, bits=4)


def writer(pq, heads, rate=None, **cache):
    return MillionKvWriterConfig(
        cache=MillionConfig(pq=pq, head=HeadShape(heads=heads), **cache), rate=rate or RateShape()
    )


CONFIGS = {
    "default": MillionKvWriterConfig(),
    "smollm2": writer(NAMED["4b_64"], 3, layers=3),
    "small": writer(SMALL, 2, RateShape(macs=8, window_macs=8, lanes=8), layers=2, sequences=2),
    "one_head_one_beat": writer(SMALL, 1, RateShape(macs=8, window_macs=8, lanes=16), layers=1,
                                window=WindowShape(sinks=0, keep=0, block=0)),
    "three_beats": writer(PqShape(head_dim=48, subspaces=12, bits=4), 2,
                          RateShape(macs=16, window_macs=16, lanes=16), layers=2),
    "many": writer(SMALL, 5, RateShape(macs=8, window_macs=8, lanes=4), sequences=256, layers=3,
                   window=WindowShape(sinks=64, keep=256, block=256)),
}  # fmt: skip
SPECIALS = (0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF)
FINITE = (0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x0000, 0x8000, 0x3C00)
TOKENS = 14  # and one for each lane


def token_vectors(block, seed):
    config = block.config
    cache, lanes = config.cache, config.rate.lanes
    heads, d = cache.head.heads, cache.pq.head_dim
    rng = np.random.default_rng([seed, 143])
    tokens = TOKENS + lanes
    words = rng.integers(0, 1 << 16, (tokens, 2, heads, d))
    words = np.where((words >> 10 & 31) == 31, words & ~(1 << 10), words)
    flat = words.reshape(tokens, -1)
    for n in range(TOKENS):
        flat[n, rng.integers(flat.shape[1], size=3)] = rng.choice(FINITE, 3)
        if n in (1, 4, 5, 8):  # a single element, the first and the last of a token among them
            at = {1: 0, 4: flat.shape[1] - 1}.get(n, rng.integers(flat.shape[1]))
            flat[n, at] = rng.choice(SPECIALS)
    # In each lane once: a NaN or an infinity, alone among words of the largest binade.
    for n, lane in enumerate(rng.permutation(lanes), TOKENS):
        flat[n] = 0x7800 | flat[n] & 0x83FF
        flat[n, rng.integers(flat.shape[1] // lanes) * lanes + lane] = rng.choice(SPECIALS)
    vectors_of = cache.sequences * cache.layers
    slot = rng.integers(0, vectors_of, tokens) * heads
    most = cache.window.sinks + cache.window.places
    row = rng.integers(0, most, tokens)
    slot[0], row[0] = (vectors_of - 1) * heads, most - 1
    discard = np.zeros(tokens, dtype=np.int64)
    discard[[2, 3, 5, 9]] = 1
    found = rows(*map(torch.tensor, (words, slot, row, discard)))
    beats = d // lanes
    last = np.tile(np.arange(beats) == beats - 1, len(found.row)).astype(int)
    vectors = {
        "job": layout_words(config.job_layout, discard=discard, slot=slot, row=row),
        "kv": layout_words(config.kv_layout, word=words.reshape(-1, lanes)),
        "row": layout_words(row_layout(cache), slot=found.slot, row=found.row, kv=found.kv),
        "x": layout_words(beat_layout(lanes), word=found.words.reshape(-1, lanes), last=last),
        "done": layout_words(block.done.p.shape(), nonfinite=found.nonfinite),
    }
    each = np.arange(1, tokens + 1)
    kept = np.cumsum(1 - discard)
    counts = {"job": each, "kv": each * 2 * heads * beats, "row": kept * 2 * heads,
              "x": kept * 2 * heads * beats, "done": each}  # fmt: skip
    packets = {name: count.tolist() for name, count in counts.items()}
    return vectors, {"packets": packets, "cycles": cycles(block, discard.tolist())}


def cycles(block, discards):
    """Job, rows and their beats one after another, ``done``, and the next job after it."""
    config, timing = block.config, block.timing
    heads = config.cache.head.heads
    beats = config.cache.pq.head_dim // config.rate.lanes
    to_row, to_beat, to_done = (cycles for _, cycles in timing.delays)
    found = {name: [] for name in ("job", "kv", "row", "x", "done")}
    at = 0
    for discard in discards:
        found["job"].append(at)
        at += to_row
        for _ in range(2 * heads):
            if not discard:
                found["row"].append(at)
                at += to_beat
            beat = list(range(at, at + beats))
            found["kv"] += beat
            found["x"] += [] if discard else [cycle + timing.latency for cycle in beat]
            at += beats
        found["done"].append(at - 1 + to_done)
        at += to_done
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_kv_writer(name, seed):
    block = MillionKvWriter(CONFIGS[name])
    vectors, params = token_vectors(block, seed)
    jobs = params["cycles"]["job"]
    beats = params["packets"]["x"][0]
    assert jobs[1] - jobs[0] == beats * block.timing.interval
    simulate(block, "tb.million.tb_kv_writer", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": RateShape(macs=256)}, "RateShape.macs must be a divisor of head_dim = 128, not"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        MillionKvWriterConfig(**wrong)
