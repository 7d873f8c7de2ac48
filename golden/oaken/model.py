"""K and V of a transformers model of the LLaMA kind, one sequence at a time: read or replace them.

A tap is called with (layer, kv, x): kv is 0 for K and 1 for V. x is (T, heads * head_dim) float32,
all KV heads of T tokens. K is taken after RoPE, or before it on request. What the tap returns
replaces x in the attention of that layer, for the newest token too. None leaves x as it is.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from golden.eval.perplexity import loss
from golden.patch import K, Patch, V

__all__ = ["Tap", "capture_kv", "perplexity", "tapped"]

Tap = Callable[[int, int, Tensor], Tensor | None]


@contextlib.contextmanager
def tapped(model: nn.Module, tap: Tap, pre_rope: bool = False) -> Iterator[None]:
    """Every forward pass of one sequence calls the tap, layer by layer."""

    def of_one(layer: int, kv: int, x: Tensor) -> Tensor | None:
        if len(x) != 1:
            raise ValueError(f"one sequence at a time, not {len(x)}")
        y = tap(layer, kv, x[0])
        return None if y is None else y[None]

    with Patch(model) as patch:
        patch.kv(of_one, pre_rope)
        yield


def capture_kv(
    model: nn.Module, ids: Tensor, pre_rope: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """(K, V) of every layer on token ids (T,): (T, heads * head_dim) float32 each."""
    seen: dict[tuple[int, int], Tensor] = {}

    def tap(layer: int, kv: int, x: Tensor) -> None:
        seen[layer, kv] = x.detach().clone()

    body = getattr(model, "base_model", model)  # no logits
    with torch.no_grad(), tapped(model, tap, pre_rope):
        body(ids[None], use_cache=False)
    return [(seen[layer, K], seen[layer, V]) for layer in range(len(seen) // 2)]


def perplexity(
    model: nn.Module, sequences: list[Tensor], tap: Tap | None = None, pre_rope: bool = False
) -> float:
    """exp of the mean next-token loss over sequences of token ids, each on its own."""
    with tapped(model, tap or (lambda *_: None), pre_rope):
        return loss(model, (ids[None] for ids in sequences)).perplexity
