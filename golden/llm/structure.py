"""Models of transformers in one structure, and what a decoder layer of it is made of.

``unify`` changes a model's modules, and not what it computes:

| of a family | becomes |
|---|---|
| one matrix for q, k and v, or for gate and up (Phi-3) | a linear layer of each |
| norms that store w of 1 + w (Gemma) | ``RmsNorm`` with 1 + w as its weight |
| the matrices of all experts in one tensor (Mixtral, Qwen3-MoE, gpt-oss) | an ``Expert`` of each |

So a method finds every matrix as a ``torch.nn.Linear``, and every norm's factor in its weight.
``Block`` says where they are.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_FUSED = {
    "self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
}
# Types of models whose decoder layers ``block_of`` describes after ``unify``.
FAMILIES = frozenset(
    """
    gemma gemma2 gemma3_text gpt_oss granite llama mistral mixtral olmo2 phi3 qwen2 qwen3 qwen3_moe
    smollm3
    """.split()
)
# Kinds of linear layers that read what follows the norm before attention, or before the network.
READERS = {"attention": ("q", "k", "v"), "network": ("gate", "up")}
_NETWORK = "mlp"
_ROUTERS = ("gate", "router")


class RmsNorm(nn.Module):
    """``weight * x / sqrt(mean(x**2) + variance_epsilon)``, in float32."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.variance_epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * self.weight.float()).to(x.dtype)


class _Joined(nn.Module):
    """The outputs of linear layers next to each other; the layers are their parent's modules."""

    def __init__(self, parts: tuple[nn.Linear, ...]) -> None:
        super().__init__()
        self._parts = parts  # a tuple, which does not register them a second time

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._parts], -1)


class Expert(nn.Module):
    """A gated network: ``down(activate(gate(x), up(x)))``."""

    def __init__(
        self,
        linears: tuple[nn.Linear, nn.Linear, nn.Linear],
        activate: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linears
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activate(self.gate_proj(x), self.up_proj(x)))


class Experts(nn.ModuleList):
    """forward(x, index, weight): the weighted sum of the experts of each token.

    x: (T, hidden); index, weight: (T, active). An expert that no token has is not called. Its
    linear layers see (1, tokens, K), as all linear layers see a batch.
    """

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for number, expert in enumerate(self):
            token, place = torch.where(index == number)
            if len(token):
                made = expert(x[token][None])[0] * weight[token, place, None]
                total = total.index_add(0, token, made.to(x.dtype))
        return total


@dataclasses.dataclass(frozen=True)
class _Product:
    """``activation(gate) * up``"""

    activation: Callable[[Tensor], Tensor]

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.activation(gate) * up


@dataclasses.dataclass(frozen=True)
class ClampedProduct:
    """gpt-oss: ``(u + 1) g sigmoid(alpha g)``, g = min(gate, limit), u = up within -limit..limit"""

    alpha: float
    limit: float

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A layer with this weight (N, K), as memory of its own."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone().contiguous(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return made


def _split(parent: nn.Module, fused: nn.Linear, sizes: dict[str, int]) -> _Joined:
    weights = fused.weight.split(list(sizes.values()))
    biases = [None] * len(weights) if fused.bias is None else fused.bias.split(list(sizes.values()))
    parts = tuple(map(_linear, weights, biases))
    for name, part in zip(sizes, parts, strict=True):
        setattr(parent, name, part)
    return _Joined(parts)


def _split_fused(layer: nn.Module) -> None:
    for place, names in _FUSED.items():
        owner, _, own = place.partition(".")
        parent: Any = getattr(layer, owner)
        fused = getattr(parent, own, None)
        if not isinstance(fused, nn.Linear):
            continue
        if len(names) == 2:
            sizes = [fused.out_features // 2] * 2
        else:
            config, size = parent.config, int(parent.head_dim)
            sizes = [config.num_attention_heads * size] + [config.num_key_value_heads * size] * 2
        setattr(parent, own, _split(parent, fused, dict(zip(names, sizes, strict=True))))


def _split_experts(network: Any) -> None:
    """Puts ``Experts`` in the place of the tensors of all experts."""
    old = getattr(network, "experts", None)
    if old is None or isinstance(old, nn.ModuleList):
        return
    wide, down = old.gate_up_proj.detach(), old.down_proj.detach()
    made = []
    for number in range(len(wide)):
        if hasattr(old, "gate_up_proj_bias"):  # gpt-oss: (K, N), gate and up in turn
            pair, bias = wide[number].t(), old.gate_up_proj_bias.detach()[number]
            made.append((
                _linear(pair[::2], bias[::2]), _linear(pair[1::2], bias[1::2]),
                _linear(down[number].t(), old.down_proj_bias.detach()[number]),
            ))  # fmt: skip
        else:
            gate, up = wide[number].chunk(2)
            made.append((_linear(gate), _linear(up), _linear(down[number])))
    activate: Callable[[Tensor, Tensor], Tensor]
    if hasattr(old, "alpha"):
        activate = ClampedProduct(float(old.alpha), float(old.limit))
    else:
        activate = _Product(old.act_fn)
    network.experts = Experts([Expert(linears, activate) for linears in made])


def _is_offset(module: nn.Module) -> bool:
    """A norm of Gemma's: it gives 0 for a weight of -1."""
    return type(module).__name__.startswith("Gemma") and type(module).__name__.endswith("RMSNorm")


def may_shift_keys(attention: nn.Module) -> bool:
    """Whether a constant vector in all keys leaves attention as it is: no soft cap and no sinks."""
    return not (
        getattr(attention, "attn_logit_softcapping", None) or hasattr(attention, "sinks")
    )


def keeps_heads_first(norm: nn.Module) -> bool:
    """Whether a norm of K's heads reads (B, heads, T, size): Gemma's, not (B, T, heads, size)."""
    return isinstance(norm, RmsNorm)


def unify(model: nn.Module) -> None:
    """The structure of this file for a model of transformers. Again: nothing happens."""
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if _is_offset(module):
                made = RmsNorm(1 + module.weight.detach().float(), float(module.eps))  # type: ignore[operator,arg-type]
                setattr(parent, name, made)
    for layer in decoder_layers(model):
        _split_fused(layer)
        _split_experts(getattr(layer, _NETWORK))


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The modules that hold a self_attn and an mlp, in order."""
    return [
        layer for layer in model.modules()
        if hasattr(layer, "self_attn") and isinstance(getattr(layer, _NETWORK, None), nn.Module)
    ]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Block:
    """Names the modules that a decoder layer is made of.

    linears: by short name: q, k, v, o, and gate, up, down of the network; those of each expert are
        gate.0, up.0, down.0, gate.1 and so on
    before: the norm in front of "attention" and of "network", where there is one
    after: norms of what attention and network give
    network: the module that reads what follows the norm before it
    router: the module whose ``weight`` (experts, hidden) reads the same, or None
    up_is_factor: what down reads is proportional to each output of up
    """

    linears: dict[str, str]
    before: dict[str, str]
    after: tuple[str, ...]
    network: str
    router: str | None
    up_is_factor: bool

    def of_kind(self, *kinds: str) -> list[str]:
        """Short names of these kinds, such as "gate", in the order of the layer."""
        return [name for name in self.linears if kind_of(name) in kinds]


def kind_of(name: str) -> str:
    """``gate`` of ``gate.3``"""
    return name.partition(".")[0]


def block_of(layer: nn.Module) -> Block:
    """Looks into a decoder layer of a unified model."""
    linears = {name: f"self_attn.{name}_proj" for name in "qkvo"}
    network: Any = getattr(layer, _NETWORK)
    experts = getattr(network, "experts", None)
    places = {"": _NETWORK}
    if experts is not None:
        places = {f".{number}": f"{_NETWORK}.experts.{number}" for number in range(len(experts))}
    for number, place in places.items():
        for name in ("gate", "up", "down"):
            linears[f"{name}{number}"] = f"{place}.{name}_proj"
    routers = [name for name in _ROUTERS if experts is not None and hasattr(network, name)]
    before, after = _norms(layer)
    return Block(
        linears=linears,
        before=before,
        after=after,
        network=_NETWORK,
        router=f"{_NETWORK}.{routers[0]}" if routers else None,
        up_is_factor=experts is None or isinstance(experts[0].activate, _Product),
    )


def _norms(layer: nn.Module) -> tuple[dict[str, str], tuple[str, ...]]:
    """``before`` and ``after`` of a layer.

    post_attention_layernorm comes before the network in LLaMA, where nothing else does, and after
    attention in Gemma and OLMo 2.
    """
    first, second = "input_layernorm", "post_attention_layernorm"
    if hasattr(layer, "post_feedforward_layernorm"):
        before = {"attention": first, "network": "pre_feedforward_layernorm"}
        own = {where: name for where, name in before.items() if hasattr(layer, name)}
        return own, (second, "post_feedforward_layernorm")
    return {"attention": first, "network": second}, ()


def logits(model: nn.Module, hidden: Tensor) -> Tensor:
    """Makes logits of the hidden states after the last norm: head, scale, soft cap."""
    config: Any = model.config
    made: Tensor = model.get_output_embeddings()(hidden)  # type: ignore[operator]
    if scale := getattr(config, "logits_scaling", None):
        made = made / scale
    if cap := getattr(config, "final_logit_softcapping", None):
        made = torch.tanh(made / cap) * cap
    return made
