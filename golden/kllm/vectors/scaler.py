"""Sums and scales for KllmScaler, with the products of golden."""

from itertools import product

import numpy as np
import torch

from golden.fp16.format import FP16, FP32
from golden.fp16.vectors.columns import random_words
from golden.kllm.blocks import scale_outputs
from golden.words import layout_words

ONE, INF = 0x3C00, 0x7C00


def fp32(value) -> int:
    return int(np.float32(value).view(np.uint32))


def tie_operands() -> list[tuple[int, int, int, int]]:
    """(d, s, s_a, s_b) at ties of each rounding, and one step from them."""
    operands = []
    for sign in (1, -1):
        for beside in (-1, 0, 1):
            # rne32(s): 25 significant bits, odd
            for odd in (1, 3, 5, 7):
                for shift in (0, 1, 20, 40):
                    s = sign * (((1 << 24) + odd << shift) + beside * (shift > 0))
                    operands.append((fp32(0), s, ONE, ONE))
                    # d cancels all but the last bits, so that y shows how s was rounded
                    d = -sign * 2.0 ** (24 + shift - 48)
                    operands += [(fp32(d), s, ONE, b) for b in (ONE, 0x7400)]
            # fma32: half an ulp of t from s, where t itself is at a tie of y: rounding once
            # from the exact sum would give another y
            for base in (1 + 2**-11, 1 + 3 * 2**-11, 1 + 3 * 2**-11 - 2**-23, 1 + 2**-11 - 2**-23):
                for half in (1, -1):
                    s = sign * half * (2**24 + 2 * beside)
                    operands.append((fp32(sign * base), s, ONE, ONE))
                    operands.append((fp32(sign * base / 4), s // 4, ONE, ONE | 0x8000))
            # rne16(t * s_b): half an ulp of y, normal, subnormal and at the largest value
            for significand in (1025, 1027, 2047):
                for exponent in (-10, 0, 5, -20, -24, -25):
                    t = sign * (significand + 0.5 + beside * 2.0**-12) * 2.0**exponent
                    operands.append((fp32(t), 0, ONE, ONE))
                    operands.append((fp32(t), 0, ONE, 0x0001))
                    operands.append((fp32(t), 0, ONE, 0x0400 | 0x8000))
            operands.append((fp32(sign * (65520 + beside * 2.0**-8)), 0, ONE, ONE))
            operands.append((fp32(sign * (65520 + beside * 2.0**-8) / 4), 0, ONE, 0x4400))
    return operands


def scaler_operands(rng, config):
    s_max = 2 ** (config.sum_bits - 1) - 1
    ds = [0, 1, 0x007FFFFF, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00001]
    scales = [0, 0x0001, 0x03FF, ONE, 0x7BFF, INF, 0x7E00]
    corners = [
        (d | int(rng.integers(0, 2)) << 31, s, a | int(rng.integers(0, 2)) << 15, b)
        for d, s, a, b in product(
            ds, (0, 1, -1, s_max, -s_max - 1), scales, [*scales, 0x8000, 0xFC00]
        )
    ]
    count = 1500
    # moderate: y is mostly finite and not 0
    d = rng.integers(110, 136, count) << 23 | rng.integers(0, 2**23, count)
    d |= rng.integers(0, 2, count) << 31
    widths = rng.integers(0, config.sum_bits, count)
    s = [int(rng.integers(0, 2**62)) * 2**33 % 2 ** int(w) for w in widths]
    s = [-v if rng.integers(0, 2) else v for v in s]
    scale = rng.integers(0, 2, (2, count)) << 15 | rng.integers(8, 22, (2, count)) << 10
    scale |= rng.integers(0, 2**10, (2, count))
    moderate = list(zip(d.tolist(), s, *scale.tolist(), strict=True))
    anything = list(
        zip(
            random_words(rng, count, FP32).tolist(), s[::-1],
            random_words(rng, count, FP16).tolist(), random_words(rng, count, FP16).tolist(),
            strict=True,
        )
    )  # fmt: skip
    ties = [case for case in tie_operands() if -s_max - 1 <= case[1] <= s_max]
    operands = [*ties, *corners, *moderate, *anything]
    return [operands[n] for n in rng.permutation(len(operands))]


def scaler_vectors(config, seed):
    rng = np.random.default_rng([seed, 15])
    operands = scaler_operands(rng, config)
    d, s, s_a, s_b = zip(*operands, strict=True)
    y, overflow = scale_outputs(torch.tensor(d), s, torch.tensor(s_a), torch.tensor(s_b))
    assert overflow.any()
    assert (y & 0x7FFF == INF).sum() > overflow.sum()
    assert ((y & 0x7C00 == 0) & (y & 0x3FF != 0)).any()
    tag = rng.integers(0, 2**config.tag_bits, len(operands))
    return {
        "i": layout_words(config.i_layout, d=d, s=s, s_a=s_a, s_b=s_b, tag=tag),
        "o": layout_words(config.o_layout, y=y, overflow=overflow, tag=tag),
    }
