"""Rotation and offset of an attention leave what it computes.

Shown to fail:

- o turned by the inverse of V's rotation;
- V turned across its heads;
- an offset with the sign of the mean.
"""

import pytest
import torch
from torch import Tensor

from golden.fp16.ops import float_from_bits
from golden.kllm.conditioning import offset, rotated
from golden.kllm.layer.shape import LayerShape
from golden.kllm.layer.weights import LayerWeights
from golden.llm.kllm.reference import reference

TOKENS = 40


def random_weights(head_size: int) -> LayerWeights:
    shape = LayerShape(hidden=48, heads=6, kv_heads=2, head_size=head_size, intermediate=64)
    q, kv = shape.heads * head_size, shape.kv_heads * head_size
    sizes = {
        "q": (q, 48), "k": (kv, 48), "v": (kv, 48), "o": (48, q), "gate": (64, 48), "up": (64, 48),
        "down": (48, 64),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(head_size)
    linear = {
        name: torch.randn(size, generator=generator, dtype=torch.float64) * 0.1
        for name, size in sizes.items()
    }
    return LayerWeights(shape, torch.ones(48).double(), torch.ones(48).double(), linear)


def run(weights: LayerWeights) -> dict[str, Tensor]:
    x = torch.randn(TOKENS, 48, generator=torch.Generator().manual_seed(7)).double()
    angle = torch.arange(TOKENS)[:, None] / 9.0 ** torch.arange(weights.shape.head_size // 2)
    return reference(weights, x, angle.cos(), angle.sin())


def changed(weights: LayerWeights) -> LayerWeights:
    v, o = rotated(weights.linear["v"], weights.linear["o"], weights.shape.head_size)
    linear = {**weights.linear, "v": v, "o": o}
    return LayerWeights(weights.shape, weights.input_norm, weights.post_norm, linear)


@pytest.mark.parametrize("head_size", [32, 96])
def test_a_layer_computes_the_same(head_size: int) -> None:
    weights = random_weights(head_size)
    before = run(weights)
    after = run(changed(weights))
    torch.testing.assert_close(after["y"], before["y"], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after["v"].norm(dim=-1), before["v"].norm(dim=-1))
    assert (after["v"] - before["v"]).norm() > 0.1 * before["v"].norm()


def test_the_offset_takes_the_mean_away() -> None:
    keys = run(random_weights(32))["k"]
    words = offset(keys)
    assert words.shape == (2, 32)
    assert (keys + float_from_bits(words)).mean(0).abs().max() <= 2**-11 * keys.abs().max()
