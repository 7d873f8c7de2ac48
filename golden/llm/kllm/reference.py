"""The layer in float64, and what a layer of a model sees and gives."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.kllm.layer.weights import LayerWeights
from golden.llm.checkpoint import check_tokens
from golden.llm.patch import Patch

# Of what a layer adds. SmolLM2-135M's layers, which are in float32, are off by 5e-6 at most.
_OFF_MAX = 1e-4


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: (T, heads, size); cos, sin: (T, size / 2)."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def reference(weights: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> dict[str, Tensor]:
    """The layer in float64 on T tokens (T, hidden), causal, with its intermediate values.

    cos, sin: (T, head_size / 2). Names: x, q (scaled by 1 / sqrt(head_size)) and k after ROTARY
    (T, heads, head_size), v, attention, post (after the first residual), gate, up, h, y.
    """
    shape, w = weights.shape, weights.linear
    x, cos, sin = x.double(), cos.double(), sin.double()

    def norm(value: Tensor, gamma: Tensor) -> Tensor:
        mean_square = value.square().mean(dim=-1, keepdim=True)
        return value * torch.rsqrt(mean_square + shape.epsilon) * gamma

    def heads(value: Tensor, count: int) -> Tensor:
        return value.reshape(len(x), count, shape.head_size)

    normed = norm(x, weights.input_norm)
    q = _rotate(heads(normed @ w["q"].t(), shape.heads), cos, sin) * shape.head_size**-0.5
    k = _rotate(heads(normed @ w["k"].t(), shape.kv_heads), cos, sin)
    v = heads(normed @ w["v"].t(), shape.kv_heads)
    of_head = torch.arange(shape.heads) // shape.group
    scores = torch.einsum("thd,shd->hts", q, k[:, of_head])
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    p = scores.masked_fill(~causal, -torch.inf).softmax(dim=-1)
    attention = torch.einsum("hts,shd->thd", p, v[:, of_head]).reshape(len(x), -1)
    post = x + attention @ w["o"].t()
    normed = norm(post, weights.post_norm)
    gate, up = normed @ w["gate"].t(), normed @ w["up"].t()
    h = torch.nn.functional.silu(gate) * up
    return {
        "x": x, "q": q, "k": k, "v": v, "attention": attention, "post": post, "gate": gate,
        "up": up, "h": h, "y": post + h @ w["down"].t(),
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LayerInputs:
    """The input and output of a layer of a model on T tokens: x, y (T, hidden) float32.

    cos, sin: (T, head_size / 2).
    """

    x: Tensor
    y: Tensor
    cos: Tensor
    sin: Tensor


def layer_inputs(model: Any, ids: Tensor, layer: int) -> LayerInputs:
    """Captures layer ``layer`` of a transformers LLaMA model on token ids (T,).

    ValueError: no such layer. CheckpointError: the embedding lacks a token.
    """
    layers = model.model.layers
    if not 0 <= layer < len(layers):
        raise ValueError(f"layer must be 0..{len(layers) - 1}, not {layer}")
    check_tokens(model, ids)
    seen: dict[str, Any] = {}

    def before(args: tuple, keywords: dict[str, Any]) -> None:
        seen["x"] = args[0] if args else keywords["hidden_states"]
        seen["angles"] = keywords["position_embeddings"]

    def after(output: Any) -> None:
        seen["y"] = output[0] if isinstance(output, tuple) else output

    with Patch(model) as patch, torch.no_grad():
        patch.watch(layers[layer], before, after)
        model(ids[None], use_cache=False)
    cos, sin = (angles[0, :, : angles.shape[-1] // 2] for angles in seen["angles"])
    hidden = seen["x"].shape[-1]
    return LayerInputs(seen["x"][0], seen["y"].reshape(-1, hidden), cos, sin)


def check_reference(y: Tensor, inputs: LayerInputs, layer: int) -> None:
    """ConfigError: ``y`` of ``reference`` is not what the model's layer ``layer`` gives.

    The difference is relative to what the layer adds: in some layers x is 70 times as large.
    """
    wanted = inputs.y.double()
    off = float((y - wanted).norm() / (wanted - inputs.x.double()).norm())
    if not off <= _OFF_MAX:
        raise ConfigError(
            f"layer {layer}: the float reference must be within {_OFF_MAX:g} of what the model's "
            f"own layer adds, not {off:.2g}: it is another kind of layer"
        )
