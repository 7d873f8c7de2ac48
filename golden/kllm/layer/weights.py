"""Real weights of a decoder layer, in the form that the accelerator computes.

Here is what needs no command. It is done once: the order of a head's elements, the factor of what a
layer adds, KV heads that are there several times.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.kllm.flow import LINEARS, NETWORK, ROUTER, kind_of, members
from golden.kllm.layer.shape import (
    CLAMPED,
    CLAMPED_ALPHA,
    CLAMPED_LIMIT,
    LayerShape,
    head_room,
)

# Of each place of the norms: modules before attention, before the network, and after each of them.
_NORMS: dict[str, tuple[str | None, ...]] = {
    "before": ("input_layernorm", "post_attention_layernorm", None, None),
    "after": (None, None, "post_attention_layernorm", "post_feedforward_layernorm"),
    "both": (
        "input_layernorm",
        "pre_feedforward_layernorm",
        "post_attention_layernorm",
        "post_feedforward_layernorm",
    ),
}
_ROUTERS = ("gate", "router")  # names of the module that chooses experts
_ADDED = ("o", "down")  # linear layers whose outputs a layer adds to its input


@dataclasses.dataclass(frozen=True)
class LayerWeights:
    """Real tensors of a layer.

    input_norm, post_norm : before attention and before the network; ones where there is no norm
    linear : (N, K) of each linear layer, as torch.nn.Linear; of each expert gate.0, up.0 and so on
    scaling : of the scores; 0: head_size**-0.5
    bias : (N,) of those in ``shape.biases``, by the same names
    norm : gamma of q, k, o, down where their outputs are normalised
    sinks : (heads,) scores of nothing, where ``shape.sinks``
    order : the model's outputs of q, k, v in the order of this layer's; none: as they are
    """

    shape: LayerShape
    input_norm: Tensor
    post_norm: Tensor
    linear: Mapping[str, Tensor]
    scaling: float = 0.0
    bias: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    norm: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    order: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.scaling:
            object.__setattr__(self, "scaling", self.shape.head_size**-0.5)


def layer_weights(layer: Any, config: Any, kv_heads: int | None = None) -> LayerWeights:
    """Takes the weights of a transformers decoder layer and its model's configuration.

    Every linear layer is one of its own, and every norm's factor is its weight, as in the structure
    that golden.llm gives a model. kv_heads: that many, so each of the model's several times; None:
    those of the model. A head gets zeros up to ``head_room``.

    ConfigError: the configuration is of no layer that the accelerator has.
    """
    size = _modules(layer)["q"].weight.shape[0] // config.num_attention_heads
    made = _as_they_are(layer, config, size)
    factor = residual_factor(layer)
    if factor != 1:
        made = _multiplied(made, factor)
    return _ordered(made, rotated_elements(config, size), kv_heads)


def residual_factor(layer: Any) -> float:
    """The factor of what a transformers decoder layer adds to its input."""
    return float(getattr(layer, "residual_multiplier", 1.0))


def head_order(size: int, rotary_size: int) -> Tensor:
    """The elements of a head in the order in which ROTARY pairs those that the model rotates.

    ROTARY pairs the halves of a head. A model that rotates the first ``rotary_size`` elements pairs
    the halves of these. ``whole_angles`` leaves the others as they are.
    """
    half, turned = size // 2, rotary_size // 2
    rest = list(range(rotary_size, size))
    first = [*range(turned), *rest[: half - turned]]
    return torch.tensor([*first, *range(turned, rotary_size), *rest[half - turned :]])


def whole_angles(cos: Tensor, sin: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(T, head_room(size) / 2) cosines and sines, of the (T, n) that a model rotates."""
    missing = head_room(size) // 2 - cos.shape[-1]
    if not missing:
        return cos, sin
    ones = torch.ones_like(cos[..., :1]).expand(*cos.shape[:-1], missing)
    return torch.cat((cos, ones), -1), torch.cat((sin, 0 * ones), -1)


def _as_they_are(layer: Any, config: Any, size: int) -> LayerWeights:
    """Heads of ``size`` elements, with room after each."""
    attention, modules = layer.self_attn, _modules(layer)
    bias = {
        name: module.bias.detach().double()
        for name, module in modules.items()
        if getattr(module, "bias", None) is not None
    }
    places = _norm_places(layer)
    *before, after_attention, after_network = (
        None if name is None else _gamma(layer, name) for name in _NORMS[places]
    )
    after = {"o": after_attention, "down": after_network}
    norm = {name: gamma for name, gamma in after.items() if gamma is not None}
    if hasattr(attention, "q_norm"):
        norm |= {name: _gamma(attention, f"{name}_norm") for name in "qk"}
    sinks = getattr(attention, "sinks", None)
    qk_norm = "" if "q" not in norm else "head" if len(norm["q"]) == size else "row"
    if qk_norm and size != head_room(size):
        raise ConfigError(f"head_size must be a multiple of 32 with norms of q and k, not {size}")
    shape = LayerShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=head_room(size),
        intermediate=next(
            module.weight.shape[0] for name, module in modules.items() if kind_of(name) == "up"
        ),
        epsilon=config.rms_norm_eps,
        biases=tuple(dict.fromkeys(kind_of(name) for name in bias)),
        qk_norm=qk_norm,
        norm_places=places,
        rotary=bool(getattr(attention, "use_rope", True)),
        window=_window(attention, config),
        cap=float(getattr(attention, "attn_logit_softcapping", None) or 0),
        sinks=sinks is not None,
        gated="gate" in map(kind_of, modules),
        activation=_activation(layer.mlp, config),
        **_routed(layer, config),
    )
    ones = torch.ones(config.hidden_size, dtype=torch.float64)
    input_norm, post_norm = (ones if gamma is None else gamma for gamma in before)
    return LayerWeights(
        shape=shape,
        input_norm=input_norm,
        post_norm=post_norm,
        linear={
            name: _with_room(name, module.weight.detach().double(), size, int(name == "o"))
            for name, module in modules.items()
        },
        scaling=float(attention.scaling),
        bias={
            name: each if name == "o" else _with_room(name, each, size)
            for name, each in bias.items()
        },
        norm=norm,
        sinks=None if sinks is None else sinks.detach().double(),
    )


def _with_room(name: str, value: Tensor, size: int, axis: int = 0) -> Tensor:
    """Outputs of q, k and v, or inputs of o, with zeros after each head."""
    if kind_of(name) not in ("q", "k", "v", "o") or size == head_room(size):
        return value
    heads = value.unflatten(axis, (-1, size))
    padding = [0, 0] * (heads.ndim - 2 - axis) + [0, head_room(size) - size]
    return torch.nn.functional.pad(heads, padding).flatten(axis, axis + 1)


def _modules(layer: Any) -> dict[str, Any]:
    """The linear layers by name; with experts gate.0 and so on, and the router after all."""
    network: Any = layer.mlp
    experts = getattr(network, "experts", None)
    first = network if experts is None else experts[0]
    made = {}
    for name in members(hasattr(first, "gate_proj")):
        place = LINEARS[name].module
        if experts is None or name not in NETWORK:
            made[name] = layer.get_submodule(place)
            continue
        for number, expert in enumerate(experts):
            made[f"{name}.{number}"] = expert.get_submodule(place.partition(".")[2])
    if experts is not None:
        made[ROUTER] = next(
            getattr(network, name) for name in _ROUTERS if hasattr(network, name)
        )
    return made


def _routed(layer: Any, config: Any) -> dict[str, Any]:
    """Fields of LayerShape that say how experts are chosen."""
    experts = getattr(layer.mlp, "experts", None)
    if experts is None:
        return {}
    return {
        "experts": len(experts),
        "active": int(config.num_experts_per_tok),
        "router_norm": bool(getattr(config, "norm_topk_prob", True)),
    }


def _activation(network: Any, config: Any) -> str:
    """Gemma's first configurations have two names, of which this one counts.

    A network of gpt-oss says its numbers itself. ConfigError: they are others.
    """
    experts = getattr(network, "experts", None)
    activate = getattr(network if experts is None else experts[0], "activate", None)
    if hasattr(activate, "limit"):
        for name, wanted in (("alpha", CLAMPED_ALPHA), ("limit", CLAMPED_LIMIT)):
            found = getattr(activate, name)
            if found != wanted:
                raise ConfigError(f"swiglu_{name} must be {wanted:g}, not {found:g}")
        return CLAMPED
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _window(attention: Any, config: Any) -> int:
    """Tokens that a token attends; where all layers have the same, the configuration has it."""
    found = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))
    return int(found or 0)


def _norm_places(layer: Any) -> str:
    if not hasattr(layer, "post_feedforward_layernorm"):
        return "before"
    return "both" if hasattr(layer, "input_layernorm") else "after"


def _gamma(module: Any, name: str) -> Tensor:
    gamma: Tensor = getattr(module, name).weight.detach().double()
    return gamma


def rotated_elements(config: Any, size: int) -> int:
    """The elements of a head that the model rotates, its first ones."""
    rope = getattr(config, "rope_parameters", None) or {}
    return int(size * rope.get("partial_rotary_factor", 1.0))


def _multiplied(weights: LayerWeights, factor: float) -> LayerWeights:
    """Multiplies what the layer adds to its input: gamma, or weight and bias."""
    linear, bias, norm = dict(weights.linear), dict(weights.bias), dict(weights.norm)
    for kind in _ADDED:
        for each in (norm,) if kind in norm else (linear, bias):
            for name in each:
                if kind_of(name) == kind:
                    each[name] = each[name] * factor
    return dataclasses.replace(weights, linear=linear, bias=bias, norm=norm)


def _ordered(weights: LayerWeights, rotary_size: int, kv_heads: int | None) -> LayerWeights:
    """Elements of heads in ``head_order``, and each KV head several times.

    No score depends on the order of elements. Query heads, and so their sinks, keep their order.
    ConfigError: ``kv_heads`` is no multiple.
    """
    shape, size = weights.shape, weights.shape.head_size
    many = dataclasses.replace(shape, kv_heads=kv_heads or shape.kv_heads)
    if many.kv_heads % shape.kv_heads:
        raise ConfigError(f"kv_heads must be a multiple of {shape.kv_heads}, not {kv_heads}")
    if rotary_size == size and many == shape:
        return weights
    copies = many.kv_heads // shape.kv_heads
    own, turned = torch.arange(size), head_order(size, rotary_size)
    kv = torch.arange(shape.kv_heads).repeat_interleave(copies)
    parts = {"q": (torch.arange(shape.heads), turned), "k": (kv, turned), "v": (kv, own)}
    order = {name: (heads[:, None] * size + of).flatten() for name, (heads, of) in parts.items()}
    # A head's own gamma is of all heads.
    norms = dict.fromkeys("qk", turned) if shape.qk_norm == "head" else order
    return dataclasses.replace(
        weights,
        shape=many,
        linear=_taken(weights.linear, order),
        bias=_taken(weights.bias, order),
        norm=_taken(weights.norm, norms),
        order=order,
    )


def _taken(tensors: Mapping[str, Tensor], order: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: each[order[name]] if name in order else each for name, each in tensors.items()}
