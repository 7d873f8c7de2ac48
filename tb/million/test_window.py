"""MillionWindow against golden.million.window: exact rows, scores, weighted sums, rows fetched.

Shown to fail with:

- V written to K's RAM, or a window of another slot
- a fetch in a cycle in which a job reads, V fetched from K, a fetched word overwritten
- K's word of query 0 not kept for the others, the queries of the job before
- queries, or weights, of one job held instead of two, or of three
- a job without keys that leaves its queries, or takes weights
- the sum of the key, or of the group, before
- a key begun without room for its scores
- slope * distance in each step, of query 0, without sign, one place off, of a subnormal slope
- scores or products one bit short, weighted sums two bits short
- the ring without its end, from row 0 on, or advanced by sinks; the distance of recent tokens
- the ring not taken from its start again for the next group of sums
- sums over sums that are not taken; ``last`` of a key or a group
- a product's complement without its one, or one place off
"""

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.million.config import HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.window import key_rows, window_scores, window_sums
from golden.words import layout_word
from hdl.million.encode_control import row_layout
from hdl.million.layouts import beat_layout
from hdl.million.window import MillionWindow, MillionWindowConfig
from tb.simulate.run import simulate


def sized(head_dim, subspaces, window, heads=1, layers=1, **rate):
    cache = MillionConfig(
        pq=PqShape(head_dim=head_dim, subspaces=subspaces, bits=4),
        head=HeadShape(heads=heads, group=2),
        window=WindowShape(**window),
        layers=layers,
    )
    return MillionWindowConfig(cache=cache, rate=RateShape(**rate))


CONFIGS = {
    "small": sized(
        16, 4, {"sinks": 2, "keep": 3, "block": 4}, 2, 2, macs=8, queries=2, window_macs=8, lanes=8
    ),
    "one_step": sized(
        16, 4, {"sinks": 1, "block": 2}, 3, macs=4, queries=1, window_macs=16, lanes=4
    ),
    "wide_beats": sized(
        32, 8, {"sinks": 0, "block": 5}, 2, macs=8, queries=3, window_macs=4, lanes=16
    ),
    "no_recent": sized(
        64, 16, {"sinks": 3, "block": 0}, 2, macs=4, queries=4, window_macs=16, lanes=8
    ),
    "no_rows": sized(16, 4, {"sinks": 0, "block": 0}, macs=4, queries=2, window_macs=4, lanes=4),
    "three_steps": sized(
        48,
        12,
        {"sinks": 1, "keep": 2, "block": 3},
        2,
        2,
        macs=16,
        queries=2,
        window_macs=16,
        lanes=8,
    ),
    "smollm2": sized(64, 32, {"sinks": 4, "block": 32}, 2, macs=64, queries=3),
    "full": sized(128, 64, {"sinks": 4, "block": 32}, 2),
    "longest": sized(
        256, 128, {"sinks": 64, "keep": 256, "block": 256}, 2, queries=1, window_macs=256, lanes=64
    ),
}
JOBS = {"smollm2": 14, "full": 12, "longest": 4}  # of the others: 24
LARGEST = 0x7BFF


def finite(rng, *shape) -> np.ndarray:
    """Any finite words."""
    words = rng.integers(0, 1 << 16, shape)
    return np.where(words & FP16.infinity == FP16.infinity, words ^ 0x4000, words)


def ordinary(rng, *shape) -> np.ndarray:
    return rng.normal(0, 1, shape).astype(np.float16).view(np.uint16).astype(int)


def elements(rng, kind: int, *shape) -> np.ndarray:
    """Words: ordinary, any, all largest of one sign or of both, subnormal, or nearly all zero."""
    signs = rng.integers(0, 2, shape) << 15
    return (
        ordinary(rng, *shape),
        finite(rng, *shape),
        np.full(shape, LARGEST | int(rng.integers(0, 2)) << 15),
        LARGEST | signs,
        rng.integers(0, 0x400, shape) | signs,
        finite(rng, *shape) * (rng.random(shape) < 2 / shape[-1]),
    )[kind]


def stored_rows(config, rng) -> np.ndarray:
    """(slots, K or V, rows, head_dim) words. Window 0 is largest, of one sign."""
    size = config.cache.pq.head_dim
    x = np.stack([
        np.stack([elements(rng, (0, 0, 1, 1, 3, 4)[rng.integers(0, 6)], size)
                  for _ in range(2 * config.rows)]).reshape(2, config.rows, size)
        for _ in range(config.slots)
    ])  # fmt: skip
    x[0] = LARGEST
    return x


def job_fields(config, rng, n: int) -> dict:
    """Job n: no key, one of each kind, all of the largest rows, a full ring, and others."""
    most, sinks = config.cache.window.recent, config.cache.window.sinks
    used = [
        (sinks, most), (0, 0), (sinks, most), (min(sinks, 1), 0), (0, min(most, 1)), (0, 0),
        (sinks, 0), (0, most),
    ]  # fmt: skip
    ends = n < len(used)
    return {
        "slot": (0, 0, config.slots - 1)[n] if n < 3 else int(rng.integers(0, config.slots)),
        "sinks": used[n][0] if ends else int(rng.integers(0, sinks + 1)),
        "recent": used[n][1] if ends else int(rng.integers(0, most + 1)),
        "start": config.places - 1 if n == 2 else int(rng.integers(0, config.places)),
        "distance": (1 << 17) - 1 if n == 0 else int(rng.integers(sinks + most, 40000)),
    }


def vectors(config, rng, jobs: int) -> tuple[dict, dict]:
    """Words of every stream, and by stream how many words are done after each job."""
    cache, rate = config.cache, config.rate
    size, lanes, macs, queries = cache.pq.head_dim, rate.lanes, rate.window_macs, rate.queries
    rows = row_layout(cache)
    names = ("write", "x", "fetch", "vector", "job", "q", "window_score", "window_weight", "sum")
    words: dict = {name: [] for name in names}
    ends: dict = {name: [] for name in names}

    def send(name, layout, field, beats):
        beats = np.asarray(beats, dtype=object).tolist()
        words[name] += [
            layout_word(layout, **{field: beat}, last=k == len(beats) - 1)
            for k, beat in enumerate(beats)
        ]

    def row_word(place) -> int:
        return layout_word(rows, **dict(zip(("slot", "kv", "row"), place, strict=True)))

    stored = stored_rows(config, rng)
    places = [(slot, kv, row) for slot in range(config.slots) for kv in range(2)
              for row in range(config.rows)]  # fmt: skip
    for place in rng.permutation(places).tolist():
        words["write"].append(row_word(place))
        send("x", beat_layout(lanes), "word", stored[tuple(place)].reshape(-1, lanes))
    counts = []
    for n in range(jobs):
        job = job_fields(config, rng, n)
        kind = (2, 0, 0, 5, 1, 3, 5, 4)[n % 8]  # a score of few products takes every binade
        q, slope = elements(rng, kind, queries, size), elements(rng, kind, queries)
        slope[rng.random(queries) < 0.3] = 0
        if n == 0:  # the largest score
            slope[:] = q[0, 0]
        of_ring = cache.window.sinks, config.places
        keys = key_rows(job["sinks"], job["start"], job["recent"], *of_ring)
        k, v = (torch.tensor(stored[job["slot"], kv][keys]) for kv in range(2))
        distances = [job["distance"] - row for row in range(job["sinks"])]
        distances += range(job["recent"] - 1, -1, -1)
        scores = window_scores(
            torch.tensor(q), k, torch.tensor(slope), torch.tensor(distances, dtype=torch.int64)
        )
        weight = rng.integers(0, 0x3C01, (queries, len(keys)))
        weight[rng.random(weight.shape) < (1.0 if n == 0 else 0.2)] = 0x3C00
        sums = window_sums(torch.tensor(weight), v).integers()
        words["job"].append(layout_word(config.job_layout, **job, slope=slope.tolist()))
        send("q", beat_layout(lanes), "word", q.reshape(-1, lanes))
        send("window_score", config.heads_layout, "word", scores.numpy())
        send("window_weight", config.heads_layout, "word", weight.T)
        send("sum", config.sum_layout, "value", np.array(sums, dtype=object).reshape(-1, macs))
        for place in rng.permutation(places)[: rng.integers(0, 3)].tolist():
            words["fetch"].append(row_word(place))
            send("vector", beat_layout(lanes), "word", stored[tuple(place)].reshape(-1, lanes))
        counts.append(len(keys))
        for name in names:
            ends[name].append(len(words[name]))
    ends["write"] = ends["x"] = [0] * jobs  # before the first job
    return words, {"ends": ends, "counts": counts}


@pytest.mark.telling("small", "one_step", "no_recent", "three_steps")
@pytest.mark.parametrize("name", CONFIGS)
def test_window(name, seed):
    config = CONFIGS[name]
    words, params = vectors(config, np.random.default_rng([seed, 84]), JOBS.get(name, 24))
    simulate(
        MillionWindow(config),
        "tb.million.tb_window",
        params={"words": words, "steps": config.steps, "queries": config.rate.queries, **params},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cache": MillionConfig(sequences=256, layers=32)}, "must have at most 1048576 words"),
        ({"rate": RateShape(window_macs=256)}, "window_macs must be a divisor of head_dim = 128"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        MillionWindowConfig(**wrong)
