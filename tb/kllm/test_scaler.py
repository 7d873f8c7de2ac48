"""KllmScaler against golden.kllm.blocks.scale_outputs: three roundings, special operands, overflow.

Shown to fail: with the sparse sum on the grid 2**-24, with ``overflow`` that ignores ``finite``,
and with s_b of a word that comes later.
"""

from itertools import product

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float
from golden.fp16.vectors import random_words
from golden.kllm.blocks import scale_outputs
from hdl.kllm.scaler import KllmScaler, KllmScalerConfig
from tb.run import simulate
from tb.words import layout_words

CONFIGS = {
    "three_stages": KllmScalerConfig(sum_bits=72, tag_bits=10, stages=3),
    "six_stages": KllmScalerConfig(sum_bits=69, tag_bits=1, stages=6),
    "narrow_sum": KllmScalerConfig(sum_bits=2, tag_bits=32, stages=3),
    "widest_sum": KllmScalerConfig(sum_bits=96, tag_bits=3, stages=3),
}
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


@pytest.mark.parametrize("name", CONFIGS)
def test_scaler(name, seed):
    config = CONFIGS[name]
    vectors = scaler_vectors(config, seed)
    simulate(KllmScaler(config), "tb.kllm.tb_scaler", vectors=vectors, seed=seed)


def test_ties_tell_two_roundings_from_one():
    """Some operands give another y if t is not rounded to FP32 first."""
    differ = 0
    for d, s, s_a, s_b in tie_operands():
        if s_a == ONE and s_b == ONE:
            y, _ = scale_outputs(torch.tensor([d]), [s], torch.tensor([s_a]), torch.tensor([s_b]))
            exact = np.uint32(d).view(np.float32).astype(np.float64) + s * 2.0**-48
            differ += int(bits_from_float(torch.tensor(exact))) != int(y[0])
    assert differ >= 8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stages": 4}, "stages must be 3 or 6, not 4"),
        ({"sum_bits": 97}, "sum_bits must be 2..96, not 97"),
        ({"tag_bits": 0}, "tag_bits must be 1..32, not 0"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmScalerConfig(**wrong)
    assert str(error.value) == f"KllmScalerConfig.{message}"
