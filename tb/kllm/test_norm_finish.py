"""KllmNormFinish against golden.kllm.norms.finish_statistics.

Shown to fail with:

- a variance that is not clamped
- the mean not negated
- OVERFLOW of the wrong operator
- the grid of a taken for q
- a token taken before the word of o before it has left
- a subnormal s with an odd number of leading zeros shifted by one place less
- one bit of the number of leading zeros of s stuck at 0
"""

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16, FP32
from golden.fp16.ops import LIMB_BITS, from_int
from golden.kllm.format import Status
from golden.kllm.norms import ExactSums, finish_statistics
from hdl.kllm.function.norm_finish import KllmNormFinish, KllmNormFinishConfig, norm_result_layout
from hdl.kllm.function.norm_sums import NORM_SUMS, KllmNormSumsConfig, norm_token_layout
from tb.simulate.run import simulate

SHAPES = {"longest": KllmNormSumsConfig(), "short": KllmNormSumsConfig(k_max=31)}
CONFIGS = {
    "longest": KllmNormFinishConfig(value_bits=SHAPES["longest"].x2_bits + 1),
    "short": KllmNormFinishConfig(
        value_bits=SHAPES["short"].x2_bits + 1, convert_stages=1, fma_stages=1, divide_stages=1,
        rsqrt_stages=1,
    ),
}  # fmt: skip
TOKENS = 120


def random_integer(rng, bits: int) -> int:
    """Draws 0 to ``bits`` bits, each number of bits as likely; the largest integer at times."""
    size = int(rng.integers(0, bits + 1))
    draw = int.from_bytes(rng.bytes(16), "little") & ((1 << size) - 1)
    return (1 << bits) - 1 if rng.random() < 0.05 else draw


def random_token(rng, shape) -> tuple[dict, dict]:
    """(fields of ``token``, sums by name)."""
    sums = {
        "q": random_integer(rng, shape.q_bits),
        "x2": random_integer(rng, shape.x2_bits),
        "a": random_integer(rng, shape.a_bits - 1) * int(rng.choice([-1, 1])),
        "x1": random_integer(rng, shape.x1_bits - 1) * int(rng.choice([-1, 1])),
        "length": int(rng.integers(1, shape.k_max + 1)),
    }
    if rng.random() < 0.25:  # a constant token: the variance is 0, but for roundings
        length, c = sums["length"], int(rng.integers(1, 1 << 24))
        sums |= {"q": length * c * c, "x2": 0, "a": length * c, "x1": 0}
    elif rng.random() < 0.1:
        sums |= dict.fromkeys(("q", "x2", "a", "x1"), 0)
    epsilon = rng.choice([0, 1, 0x3727C5AC, 0x3727C5AC, 0x80000000, 0xB727C5AC, 0x7F7FFFFF])
    status = int(rng.choice([0, 0, 0, 0, 0, 0, int(Status.NONFINITE), 0x31]))
    subnormal = rng.integers(1, 2 ** rng.integers(1, FP16.frac_bits + 1))
    return {
        "s": int(rng.choice([0, 0x8000, 1, 0x7BFF, rng.integers(0x3000, 0x4800), subnormal])),
        "epsilon": int(epsilon),
        "layer_norm": int(rng.integers(0, 2)),
        "status": status,
    }, sums


def small_scale_token(rng, shape, bit: int) -> tuple[dict, dict]:
    """A token of which the square of a subnormal s, with this leading bit, decides the result."""
    s = int(rng.integers(1 << bit, 2 << bit))
    q = int(rng.integers(1 << shape.q_bits - 2, 1 << shape.q_bits - 1))
    token = {"s": s, "epsilon": 0, "layer_norm": 0, "status": 0}
    return token, {"q": q, "x2": 0, "a": 0, "x1": 0, "length": shape.k_max}


def golden(token: dict, sums: dict) -> dict:
    """Fields of ``o``."""
    nan = FP32.canonical_nan
    if token["status"]:
        return {"mean": nan, "rms_reciprocal": nan, "status": token["status"]}
    limb = (1 << LIMB_BITS) - 1
    exact = {name: torch.tensor([sums[name]]) for name in ("q", "a", "x1")}
    exact["x2"] = torch.tensor([sums["x2"] & limb])
    exact["x2_high"] = torch.tensor([sums["x2"] >> LIMB_BITS])
    mean, reciprocal = finish_statistics(
        ExactSums(**exact).round(),
        torch.tensor([token["s"]]),
        from_int(torch.tensor([sums["length"]]), FP32),
        token["epsilon"],
        bool(token["layer_norm"]),
    )
    special = int(reciprocal) & FP32.infinity == FP32.infinity
    return {
        "mean": int(mean),
        "rms_reciprocal": int(reciprocal),
        "status": int(Status.OVERFLOW) if special else 0,
    }


def bench_params(config, shape, seed) -> dict:
    rng = np.random.default_rng([seed, 89])
    tokens, seen = [], set()
    given = [random_token(rng, shape) for _ in range(TOKENS)]
    given += [small_scale_token(rng, shape, bit) for bit in range(FP16.frac_bits)]
    for n in rng.permutation(len(given)):
        token, sums = given[n]
        result = golden(token, sums)
        seen.add(result["status"])
        values = [
            config.value_layout.const({"value": sums[name], "sum": k}).as_bits()
            for k, name in enumerate(NORM_SUMS)
        ]
        tokens.append(
            {
                "token": norm_token_layout.const(token).as_bits(),
                "value": [] if token["status"] else values,
                "o": norm_result_layout.const(result).as_bits(),
                "layer_norm": bool(token["layer_norm"]),
            }
        )
    assert seen == {0, int(Status.OVERFLOW), int(Status.NONFINITE), 0x31}
    return {"tokens": tokens}


@pytest.mark.parametrize("name", CONFIGS)
def test_norm_finish(name, seed):
    config = CONFIGS[name]
    simulate(
        KllmNormFinish(config),
        "tb.kllm.tb_norm_finish",
        params=bench_params(config, SHAPES[name], seed),
        seed=seed,
    )
