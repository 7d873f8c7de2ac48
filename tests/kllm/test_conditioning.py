"""Factors, rotation and offset of an attention leave what it computes.

Shown to fail:

- a factor of its own for each element of a rotary pair;
- q multiplied by the factor, or by that of another KV head;
- o turned by the inverse of V's rotation;
- an offset from the mean before the factor.
"""

import pytest
import torch
from torch import Tensor

from golden.fp16.ops import float_from_bits
from golden.kllm.conditioning import Conditioning, balance, offset
from golden.kllm.layer.reference import reference
from golden.kllm.layer.shape import LayerShape
from golden.kllm.layer.weights import LayerWeights

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
    linear["k"] *= torch.rand(kv, 1, generator=generator) ** 3 * 9
    return LayerWeights(shape, torch.ones(48).double(), torch.ones(48).double(), linear)


def run(weights: LayerWeights) -> dict[str, Tensor]:
    x = torch.randn(TOKENS, 48, generator=torch.Generator().manual_seed(7)).double()
    angle = torch.arange(TOKENS)[:, None] / 9.0 ** torch.arange(weights.shape.head_size // 2)
    return reference(weights, x, angle.cos(), angle.sin())


def changed(weights: LayerWeights, factor: Tensor | None, rotate: bool) -> LayerWeights:
    made = Conditioning(weights.shape.head_size, factor, rotate).weights(weights.linear)
    return LayerWeights(
        weights.shape, weights.input_norm, weights.post_norm, {**weights.linear, **made}
    )


@pytest.mark.parametrize("head_size", [32, 96])
def test_a_layer_computes_the_same(head_size: int) -> None:
    weights = random_weights(head_size)
    before = run(weights)
    factor = balance(before["q"], before["k"])
    after = run(changed(weights, factor, rotate=True))
    torch.testing.assert_close(after["y"], before["y"], rtol=1e-9, atol=1e-9)
    assert (after["k"] - before["k"]).norm() > 0.1 * before["k"].norm()
    assert (after["v"] - before["v"]).norm() > 0.1 * before["v"].norm()


def test_the_energies_of_a_pair_are_balanced() -> None:
    """Of q over the heads of a group, and of K without its mean."""
    weights = random_weights(32)
    before = run(weights)
    factor = balance(before["q"], before["k"])
    assert torch.equal(factor[:, :16], factor[:, 16:])
    after = run(changed(weights, factor, rotate=False))

    def pairs(energy: Tensor) -> Tensor:
        return energy.reshape(2, 2, 16).sum(1)

    k = pairs((after["k"] - after["k"].mean(0)).square().mean(0))
    q = pairs(after["q"].square().mean(0).reshape(2, 3, 32).mean(1))
    torch.testing.assert_close(q, k, rtol=1e-6, atol=0)


def test_the_offset_takes_the_mean_away() -> None:
    weights = random_weights(32)
    before = run(weights)
    factor = balance(before["q"], before["k"])
    keys = run(changed(weights, factor, rotate=False))["k"]
    words = offset(before["k"], factor)
    assert words.shape == (2, 32)
    assert (keys + float_from_bits(words)).mean(0).abs().max() <= 2**-11 * keys.abs().max()


def test_nothing_to_balance() -> None:
    """A pair without energy keeps its factor 1."""
    q, k = torch.randn(5, 4, 32), torch.randn(5, 2, 32)
    k[:, 0, 3], k[:, 0, 19] = 2.0, -1.0  # constant: the offset takes them
    factor = balance(q, k)
    assert factor[0, 3] == factor[0, 19] == 1
    assert bool(torch.isfinite(factor).all())
