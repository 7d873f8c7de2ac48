"""The values of a model on a text, by golden.llm.patch: inputs of linear layers, K, V, gradients.

Each function runs one sequence of token ids (T,) and leaves the model as it was. CheckpointError:
the embedding lacks one of them.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from golden.llm.checkpoint import check_tokens, next_token_loss
from golden.llm.patch import K, Patch, V


@dataclasses.dataclass(frozen=True)
class Captured:
    """One linear layer on T tokens.

    Of an expert's layer T counts the tokens that it has.

    x: (T, K) float32 inputs; weight: (N, K) float32; gradient: (T, K) float32, the derivative of
    the summed next-token loss with respect to x, or None; its square is the Fisher weight of x.
    """

    x: Tensor
    weight: Tensor
    gradient: Tensor | None = None

    @property
    def fisher(self) -> Tensor | None:
        return None if self.gradient is None else self.gradient**2


def _keep(seen: dict[str, Tensor], name: str, args: tuple[Any, ...], _: dict[str, Any]) -> None:
    seen[name] = args[0]


def body(model: nn.Module) -> Any:
    """The decoder layers of a language model, without its head."""
    return getattr(model, "base_model", model)


def capture_inputs(
    model: nn.Module, ids: Tensor, layers: Iterable[str], gradients: bool = False
) -> dict[str, Captured]:
    """Inputs of the named linear layers; gradients on request.

    Names as in ``model.named_modules()``, for example "model.layers.0.self_attn.q_proj".
    ValueError: a name that is not a linear layer of the model.
    """
    modules = dict(model.named_modules())
    names = list(layers)
    for name in names:
        if not isinstance(modules.get(name), nn.Linear):
            raise ValueError(f"{name} is not a linear layer of the model")
    check_tokens(model, ids)
    seen: dict[str, Tensor] = {}
    with Patch(model) as patch, torch.set_grad_enabled(gradients):
        for name in names:
            patch.watch(modules[name], before=functools.partial(_keep, seen, name))
        logits = model(ids[None], use_cache=False).logits[0]
    derivative: dict[str, Tensor] = {}
    if gradients:
        loss = next_token_loss(logits, ids)
        found = torch.autograd.grad(loss, list(seen.values()))
        derivative = dict(zip(seen, (g[0] for g in found), strict=True))
    for name in names:
        if name not in seen:  # of an expert that no token has
            seen[name] = torch.zeros(1, 0, modules[name].in_features)  # type: ignore[union-attr,arg-type,call-overload]
    return {
        name: Captured(
            x=seen[name][0].detach(),
            weight=modules[name].weight.detach(),  # type: ignore[union-attr,operator]
            gradient=derivative.get(name),
        )
        for name in names
    }


def capture_kv(
    model: nn.Module, ids: Tensor, pre_rope: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """(K, V) of every layer: (T, kv_heads * head_dim) float32 each."""
    return [(k[0], v[0]) for k, v in _kv(model, ids, pre_rope, False)]


def capture_kv_gradients(
    model: nn.Module, ids: Tensor, pre_rope: bool = False
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(K, V, gradient of K, gradient of V) of every layer, of the summed next-token loss."""
    return [(k[0], v[0], k[1], v[1]) for k, v in _kv(model, ids, pre_rope, True)]


def _kv(
    model: nn.Module, ids: Tensor, pre_rope: bool, gradients: bool
) -> list[list[tuple[Tensor, ...]]]:
    """[layer][kv] of (value, gradient if wanted)."""
    seen: dict[tuple[int, int], Tensor] = {}

    def tap(layer: int, kv: int, x: Tensor) -> Tensor:
        if gradients and not x.requires_grad:
            x = x.requires_grad_()
        seen[layer, kv] = x
        return x

    with Patch(model) as patch, torch.set_grad_enabled(gradients):
        check_tokens(model, ids)
        patch.kv(tap, pre_rope)
        if gradients:
            logits = model(ids[None], use_cache=False).logits[0]
            slopes = torch.autograd.grad(next_token_loss(logits, ids), list(seen.values()))
        else:
            body(model)(ids[None], use_cache=False)
        layers = len(patch.attentions)
    parts = {key: (value.detach()[0].cpu().clone(),) for key, value in seen.items()}
    if gradients:
        for key, slope in zip(seen, slopes, strict=True):
            parts[key] = (*parts[key], slope[0].cpu())  # type: ignore[assignment]
    return [[parts[layer, kv] for kv in (K, V)] for layer in range(layers)]
