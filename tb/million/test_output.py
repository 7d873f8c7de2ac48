"""MillionOutput against golden.million.output: sums merged, rounded and divided, in query order.

Shown to fail with:

- N not scaled, W off the grid, their sum two bits short
- N of another query or part, one element of a word for all
- the reciprocal or ``bad`` of query 0, a bad query's words not NaN, the scale of the next group
- words of queries that do not count, their exact sums left over, ``last`` of the wrong query
- outputs before the last part, or before their exact sums
- N of a group over that of the one before, with or without its last reads
- an element lost where a beat is not taken
- a sum of weights one bit short
"""

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.limbs import Limbs
from golden.million.config import HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.output import outputs
from hdl.million.layouts import beat_layout
from hdl.million.output import MillionOutput, MillionOutputConfig
from tb.run import simulate
from tb.words import layout_word


def sized(head_dim, subspaces, bits, window=36, **rate):
    cache = MillionConfig(
        pq=PqShape(head_dim=head_dim, subspaces=subspaces, bits=bits),
        head=HeadShape(heads=1, group=2),
        window=WindowShape(sinks=0, block=window),
        layers=1,
    )
    return MillionOutputConfig(cache=cache, rate=RateShape(**rate))


CONFIGS = {
    "small": sized(16, 4, 4, macs=8, queries=2, window_macs=8, lanes=8),
    "one_query": sized(16, 4, 5, macs=4, queries=1, window_macs=16, lanes=4),
    "two_elements": sized(32, 8, 5, macs=16, queries=3, window_macs=4, lanes=16),
    "eight_elements": sized(64, 16, 4, macs=16, queries=5, window_macs=16, lanes=8),
    "three_parts": sized(48, 12, 4, macs=16, queries=2, window_macs=16, lanes=8),
    "smollm2": sized(64, 32, 8, queries=3),
    "full": sized(128, 64, 8),
    "long_window": sized(64, 32, 8, window=256, macs=64, queries=8, window_macs=64, lanes=64),
}
GROUPS = 34
MOST = 32768 + 36 << 24  # the largest sum of weights


def wide(rng, bits: int, *shape) -> np.ndarray:
    """Signed integers of up to ``bits`` bits, of all sizes, as Python's."""
    count = int(np.prod(shape))
    values = [
        (int.from_bytes(rng.bytes(16), "little") & (1 << bits) - 1) >> int(shift)
        for shift in rng.integers(0, bits, count)
    ]
    return np.array(values, dtype=object).reshape(shape) * rng.choice([-1, 1], shape).astype(object)


def limbs(values: np.ndarray) -> Limbs:
    """Integers below 2**120 as golden takes them."""
    high = (values >> 62).astype(np.int64)
    low = (values & (1 << 62) - 1).astype(np.int64)
    return Limbs(torch.tensor(high), torch.tensor(low))


def sums(config, rng, kind: int, exponent: int, total) -> tuple[np.ndarray, np.ndarray]:
    """(queries, head_dim) N and W: of all sizes, largest, cancelling, near ties, none of a kind.

    ``total``: (queries,) of kind 8, whose quotients are ties of FP16 but for S's rounding.
    """
    shape = config.rate.queries, config.cache.pq.head_dim
    most = config.window.keys << 64  # bound of W
    past, window = wide(rng, 63, *shape), wide(rng, most.bit_length() - 1, *shape)
    if kind == 1:
        past[:], window[:] = 2**63, most
    elif kind == 2:
        past[:], window[:] = -(2**63), -most
    elif kind == 3:
        past = past >> 24
        past = past << max(-exponent, 0)
        window = -(past << exponent if exponent >= 0 else past >> -exponent)
        window += rng.integers(-1, 2, shape).astype(object)
    elif kind == 4:  # ties of the rounding to FP32, and a unit from them
        window = rng.integers(1 << 23, 1 << 24, shape).astype(object) * 2 + 1 << 20
        window += rng.integers(-1, 2, shape).astype(object)
        past[:] = 0
    elif kind == 5:
        past[:] = 0
    elif kind == 6:
        window[:] = 0
    elif kind == 7:
        past[:], window[:] = 0, 0
    elif kind == 8:  # each bit of the total decides
        odd = rng.integers(1 << 10, 1 << 11, shape).astype(object) * 2 + 1
        window = odd * total.astype(object)[:, None] << int(rng.integers(0, 13))
        window *= rng.choice([-1, 1], shape).astype(object)
        past[:] = 0
    return past, window


def vectors(config, rng) -> tuple[dict, dict]:
    """Words of every stream, and by stream how many words are done after each group."""
    rate, size = config.rate, config.cache.pq.head_dim
    words: dict = {name: [] for name in ("past", "window", "total", "o")}
    ends: dict = {name: [] for name in words}

    def send(name, layout, field, beats):
        words[name] += [
            layout_word(layout, **{field: beat}, last=k == len(beats) - 1)
            for k, beat in enumerate(beats.tolist())
        ]

    for n in range(GROUPS):
        exponent = (-8, 15, 0, 7)[n % 4] if n < 12 else int(rng.integers(-8, 16))
        total = rng.integers(1 << 24, MOST, rate.queries) >> rng.integers(0, 14, rate.queries)
        total = np.maximum(total, 1 << 24)
        if n < 3:
            total[:] = (1 << 24, MOST, (1 << 25) + 1)[n]
        past, window = sums(config, rng, n % 10, exponent, total)
        bad = rng.random(rate.queries) < (0.3 if n > 3 else 0)
        total[bad & (rng.random(rate.queries) < 0.7)] = 0
        queries = rate.queries if n < 4 else int(rng.integers(1, rate.queries + 1))
        wanted = outputs(
            limbs(past), exponent, limbs(window), torch.tensor(total), torch.tensor(bad)
        )
        parts = past.reshape(rate.queries, -1, rate.macs).transpose(1, 0, 2)
        send("past", config.past_layout, "value", parts.reshape(-1, rate.macs))
        send("window", config.window.sum_layout, "value", window.reshape(-1, rate.window_macs))
        words["total"].append(
            layout_word(
                config.total_layout, sum=total.tolist(), queries=queries, exponent=exponent,
                bad=sum(int(flag) << k for k, flag in enumerate(bad)),
            )
        )  # fmt: skip
        send("o", beat_layout(rate.lanes), "word", wanted[:queries].reshape(-1, rate.lanes))
        assert wanted.shape == (rate.queries, size)
        for name in words:
            ends[name].append(len(words[name]))
    return words, {"ends": ends}


@pytest.mark.parametrize("name", CONFIGS)
def test_output(name, seed):
    config = CONFIGS[name]
    words, params = vectors(config, np.random.default_rng([seed, 85]))
    simulate(
        MillionOutput(config), "tb.million.tb_output", params={"words": words, **params}, seed=seed
    )


def test_elements():
    """Outputs take half the cycles of a word's pass over a codebook."""
    assert [CONFIGS[name].elements for name in CONFIGS] == [2, 1, 2, 8, 8, 1, 1, 1]
    for config in CONFIGS.values():
        size, entries = config.cache.pq.head_dim, config.cache.pq.entries
        assert 2 * size <= entries * config.elements or config.elements >= 8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": RateShape(lanes=64, macs=256)}, "macs must be a divisor of head_dim = 128"),
        ({"rate": None}, "rate must be a RateShape, not None"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match=message):
        MillionOutputConfig(**wrong)
