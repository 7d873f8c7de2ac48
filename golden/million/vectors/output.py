"""Groups of queries for MillionOutput, with the outputs of golden."""

import numpy as np
import torch

from golden.fp16.limbs import Limbs
from golden.million.output import outputs
from golden.words import layout_word

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
        send("o", config.o_layout, "word", wanted[:queries].reshape(-1, rate.lanes))
        assert wanted.shape == (rate.queries, size)
        for name in words:
            ends[name].append(len(words[name]))
    return words, {"ends": ends}
