"""Real weights of a decoder layer, in the form that the accelerator computes.

All that needs no command is done here, once: the order of a head's elements, the factor of what a
layer adds, 1 + w of a norm, KV heads that are there several times.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.kllm.flow import LINEARS, members
from golden.kllm.layer.shape import LayerShape

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
_ADDED = ("o", "down")  # linear layers whose outputs a layer adds to its input


@dataclasses.dataclass(frozen=True)
class LayerWeights:
    """Real tensors of a layer.

    input_norm, post_norm : before attention and before the network; ones where there is no norm
    linear : (N, K) of each linear layer, as torch.nn.Linear
    scaling : of the scores
    bias : (N,) of those in ``shape.biases``
    norm : gamma of q, k, o, down where their outputs are normalised
    """

    shape: LayerShape
    input_norm: Tensor
    post_norm: Tensor
    linear: Mapping[str, Tensor]
    scaling: float
    bias: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    norm: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def changed(self, name: str, change: Callable[[Tensor], Tensor]) -> "LayerWeights":
        """``change`` of the weight and the bias of a linear layer, along its outputs."""
        bias = {name: change(self.bias[name])} if name in self.bias else {}
        linear = {**self.linear, name: change(self.linear[name])}
        return dataclasses.replace(self, linear=linear, bias={**self.bias, **bias})

    def normed(self, name: str, change: Callable[[Tensor], Tensor]) -> "LayerWeights":
        """``change`` of the gamma that follows a linear layer, if one does."""
        if name not in self.norm:
            return self
        return dataclasses.replace(self, norm={**self.norm, name: change(self.norm[name])})


def layer_weights(
    layer: Any,
    config: Any,
    rotary_size: int | None = None,
    norm_offset: bool = False,
    kv_heads: int | None = None,
) -> LayerWeights:
    """Takes the weights of a transformers decoder layer and its model's configuration.

    rotary_size: the elements of a head that the model rotates, its first ones; None: all
    norm_offset: the model's norms multiply by 1 + w
    kv_heads: that many, so each of the model's several times; None: those of the model
    """
    made = _as_they_are(layer, config, norm_offset)
    factor = float(getattr(layer, "residual_multiplier", 1.0))
    for name in _ADDED if factor != 1 else ():
        change = made.normed if name in made.norm else made.changed
        made = change(name, lambda x: x * factor)
    if rotary_size not in (None, made.shape.head_size):
        made = _reordered(made, rotary_size)
    if kv_heads not in (None, made.shape.kv_heads):
        made = _repeated(made, kv_heads)
    return made


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
    """(T, size / 2) cosines and sines for heads of ``size``, of the (T, n) that a model rotates."""
    missing = size // 2 - cos.shape[-1]
    if not missing:
        return cos, sin
    ones = torch.ones_like(cos[..., :1]).expand(*cos.shape[:-1], missing)
    return torch.cat((cos, ones), -1), torch.cat((sin, 0 * ones), -1)


def _as_they_are(layer: Any, config: Any, norm_offset: bool) -> LayerWeights:
    attention, gated = layer.self_attn, hasattr(layer.mlp, "gate_proj")
    modules = {name: layer.get_submodule(LINEARS[name].module) for name in members(gated)}
    bias = {
        name: module.bias.detach().double()
        for name, module in modules.items()
        if module.bias is not None
    }
    places = _norm_places(layer)
    *before, after_attention, after_network = (
        None if name is None else _gamma(layer, name, norm_offset) for name in _NORMS[places]
    )
    after = {"o": after_attention, "down": after_network}
    norm = {name: gamma for name, gamma in after.items() if gamma is not None}
    if hasattr(attention, "q_norm"):
        norm |= {name: _gamma(attention, f"{name}_norm", norm_offset) for name in "qk"}
    size = modules["q"].weight.shape[0] // config.num_attention_heads
    shape = LayerShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=size,
        intermediate=config.intermediate_size,
        epsilon=config.rms_norm_eps,
        biases=tuple(bias),
        qk_norm="" if "q" not in norm else "head" if len(norm["q"]) == size else "row",
        norm_places=places,
        rotary=bool(getattr(attention, "use_rope", True)),
        gated=gated,
        activation=_activation(config),
    )
    ones = torch.ones(config.hidden_size, dtype=torch.float64)
    input_norm, post_norm = (ones if gamma is None else gamma for gamma in before)
    return LayerWeights(
        shape=shape,
        input_norm=input_norm,
        post_norm=post_norm,
        linear={name: module.weight.detach().double() for name, module in modules.items()},
        scaling=float(attention.scaling),
        bias=bias,
        norm=norm,
    )


def _activation(config: Any) -> str:
    """Gemma's first configurations have two names, of which this one counts."""
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _norm_places(layer: Any) -> str:
    if not hasattr(layer, "post_feedforward_layernorm"):
        return "before"
    return "both" if hasattr(layer, "input_layernorm") else "after"


def _gamma(module: Any, name: str, offset: bool) -> Tensor:
    weight = getattr(module, name).weight.detach().double()
    return 1 + weight if offset else weight


def _reordered(weights: LayerWeights, rotary_size: int) -> LayerWeights:
    """Elements of q's and k's heads in ``head_order``: no score depends on their order."""
    size = weights.shape.head_size
    order = head_order(size, rotary_size)

    def change(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, size))[:, order].flatten(0, 1)

    for name in "qk":
        weights = weights.changed(name, change).normed(name, change)
    return weights


def _repeated(weights: LayerWeights, kv_heads: int) -> LayerWeights:
    """Each KV head several times, for fewer query heads to each. ConfigError: it is no multiple."""
    shape = weights.shape
    many = dataclasses.replace(shape, kv_heads=kv_heads)
    if kv_heads % shape.kv_heads:
        raise ConfigError(f"kv_heads must be a multiple of {shape.kv_heads}, not {kv_heads}")

    def change(x: Tensor) -> Tensor:
        heads = x.unflatten(0, (shape.kv_heads, -1))
        return heads.repeat_interleave(kv_heads // shape.kv_heads, 0).flatten(0, 1)

    for name in "kv":
        weights = weights.changed(name, change)
    if shape.qk_norm == "row":
        weights = weights.normed("k", change)
    return dataclasses.replace(weights, shape=many)
