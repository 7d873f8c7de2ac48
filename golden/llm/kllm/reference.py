"""The layer in float64, and what a layer of a model sees and gives."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.kllm.flow import ROUTER
from golden.kllm.isa import Function
from golden.kllm.layer.shape import CLAMPED_ALPHA, CLAMPED_LIMIT
from golden.kllm.layer.weights import LayerWeights, whole_angles
from golden.llm.checkpoint import check_tokens
from golden.llm.patch import Patch

# Of what a layer adds. SmolLM2-135M's layers, which are in float32, are off by 5e-6 at most.
_OFF_MAX = 1e-4


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: (T, heads, size); cos, sin: (T, size / 2)."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


_FUNCTIONS: dict[Function, Callable[[Tensor], Tensor]] = {
    Function.SILU: torch.nn.functional.silu,
    Function.GELU: functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    Function.RELU: torch.nn.functional.relu,
    Function.GELU_ERF: torch.nn.functional.gelu,
    Function.QUICK_GELU: lambda x: x * torch.sigmoid(CLAMPED_ALPHA * x),
    Function.TANH: torch.tanh,
}


def reference(weights: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> dict[str, Tensor]:
    """The layer in float64 on T tokens (T, hidden), causal, with its intermediate values.

    cos, sin: (T, head_size / 2). Names: x, q and k after ROTARY (T, heads, head_size), v,
    attention, post (after the first residual), gate, up, h, y. q is times the scaling of scores.
    gate and up of a clamped network: after their limits, up with its 1. "q.raw" and so on: what
    the norm after a linear layer takes.
    """
    shape = weights.shape
    x, cos, sin = x.double(), cos.double(), sin.double()
    made: dict[str, Tensor] = {"x": x}

    def norm(value: Tensor, gamma: Tensor) -> Tensor:
        mean_square = value.square().mean(dim=-1, keepdim=True)
        return value * torch.rsqrt(mean_square + shape.epsilon) * gamma

    def normed(value: Tensor, gamma: Tensor) -> Tensor:
        return norm(value, gamma) if shape.normed_before else value

    def linear(name: str, value: Tensor) -> Tensor:
        value = value @ weights.linear[name].t()
        value = value + weights.bias[name] if name in weights.bias else value
        if name not in weights.norm:
            return value
        made[f"{name}.raw"], gamma = value, weights.norm[name]
        return norm(value.unflatten(-1, (-1, len(gamma))), gamma).flatten(-2)

    def heads(value: Tensor, count: int) -> Tensor:
        return value.reshape(len(x), count, shape.head_size)

    def rotated(value: Tensor) -> Tensor:
        return _rotate(value, cos, sin) if shape.rotary else value

    u = normed(x, weights.input_norm)
    q = rotated(heads(linear("q", u), shape.heads)) * weights.scaling
    k = rotated(heads(linear("k", u), shape.kv_heads))
    v = heads(linear("v", u), shape.kv_heads)
    of_head = torch.arange(shape.heads) // shape.group
    scores = torch.einsum("thd,shd->hts", q, k[:, of_head])
    if shape.cap:
        scores = shape.cap * torch.tanh(scores / shape.cap)
    seen = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    if shape.window:
        seen = seen.triu(1 - shape.window)
    scores = scores.masked_fill(~seen, -torch.inf)
    if weights.sinks is not None:  # scores of nothing
        sinks = weights.sinks.double()[:, None, None].expand(-1, len(x), 1)
        scores = torch.cat((scores, sinks), dim=-1)
    p = scores.softmax(dim=-1)[..., : len(x)]
    attention = torch.einsum("hts,shd->thd", p, v[:, of_head]).reshape(len(x), -1)
    post = x + linear("o", attention)
    u, function = normed(post, weights.post_norm), _FUNCTIONS[shape.function]

    def network(value: Tensor, own: str = "") -> tuple[dict[str, Tensor], Tensor]:
        """The network, or that of an expert such as ``.3``: its sites, and what it gives."""
        inner = {"up": linear(f"up{own}", value)}
        if shape.gated:
            inner["gate"] = linear(f"gate{own}", value)
        if shape.clamped:
            inner["gate"] = inner["gate"].clamp(max=CLAMPED_LIMIT)
            inner["up"] = inner["up"].clamp(-CLAMPED_LIMIT, CLAMPED_LIMIT) + 1
        inner["h"] = function(inner["gate"]) * inner["up"] if shape.gated else function(inner["up"])
        return inner, linear(f"down{own}", inner["h"])

    def of_experts() -> tuple[dict[str, Tensor], Tensor]:
        """The same of the experts of each token; their sites one after the other."""
        share, index = linear(ROUTER, u).softmax(-1).topk(shape.active)
        if shape.router_norm:
            share = share / share.sum(-1, keepdim=True)
        total, sites = torch.zeros_like(post), []
        for expert in range(shape.experts):
            token, rank = torch.where(index == expert)
            inner, given = network(u[token], f".{expert}")
            sites.append(inner)
            total = total.index_add(0, token, given * share[token, rank, None])
        return {name: torch.cat([each[name] for each in sites]) for name in sites[0]}, total

    inner, given = of_experts() if shape.experts else network(u)
    return made | inner | {
        "q": q, "k": k, "v": v, "attention": attention, "post": post, "y": post + given,
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LayerInputs:
    """The input and output of a layer of a model on T tokens: x, y (T, hidden) float32.

    cos, sin: (T, head_size / 2): 1 and 0 for elements that the model does not rotate.
    """

    x: Tensor
    y: Tensor
    cos: Tensor
    sin: Tensor


def layer_inputs(model: Any, ids: Tensor, layer: int) -> LayerInputs:
    """Captures layer ``layer`` of a transformers model on token ids (T,).

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
    cos, sin = angles_of_pairs(model, *seen["angles"])
    hidden = seen["x"].shape[-1]
    return LayerInputs(seen["x"][0], seen["y"].reshape(-1, hidden), cos, sin)


def angles_of_pairs(model: Any, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """(T, head_size / 2) of what the model's attention gets, (1, T, n).

    Most models repeat the angles for the second half of a head; those of gpt-oss do not.
    """
    kind = getattr(model.config, "model_type", "")
    pairs = cos.shape[-1] // (1 if kind == "gpt_oss" else 2)
    size = model.model.layers[0].self_attn.head_dim
    return whole_angles(cos[0, :, :pairs], sin[0, :, :pairs], size)


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
