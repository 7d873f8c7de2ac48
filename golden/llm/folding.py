"""Factors of channels that move between neighbouring matrices of a decoder layer.

A layer's result does not change where one matrix gives ``y / s`` and the next has ``W * s``. The
same holds of a norm's weight and the matrices that read the norm. All factors are float32 and
above 0.
"""

from typing import Any

from torch import Tensor

from golden.llm.patch import Patch
from golden.llm.structure import READERS, Block, block_of


def readers(prefix: str, block: Block, place: str) -> list[str]:
    """Lists the linear layers of a place of READERS by their names in the model."""
    return [f"{prefix}.{block.linears[name]}" for name in block.of_kind(*READERS[place])]


def writers(prefix: str, block: Block) -> dict[str, str]:
    """{o: v, down: up} by names in the model, where the first reads factors of the second's rows.

    down is left out where its input is not proportional to up's outputs (gpt-oss).
    """
    found = {"o": "v"}
    if block.up_is_factor:
        found |= dict(zip(block.of_kind("down"), block.of_kind("up"), strict=True))
    return {
        f"{prefix}.{block.linears[after]}": f"{prefix}.{block.linears[before]}"
        for after, before in found.items()
    }


def scale_columns(patch: Patch, name: str, s: Tensor) -> None:
    """W * s of a linear layer; s: (K,)"""
    patch.weight(name, patch.linears[name].weight.detach() * s)


def scale_norm(patch: Patch, layer: Any, block: Block, place: str, s: Tensor) -> None:
    """1 / s into the norm before attention or network, and s into a router that reads it."""
    norm = layer.get_submodule(block.before[place])
    patch.parameter(norm, "weight", norm.weight.detach() / s)
    if place == "network" and block.router is not None:
        router = layer.get_submodule(block.router)
        patch.parameter(router, "weight", router.weight.detach() * s)


def scale_rows(patch: Patch, name: str, s: Tensor) -> None:
    """1 / s into the rows and the bias of a linear layer; s: (N,)"""
    linear = patch.linears[name]
    patch.weight(name, linear.weight.detach() / s[:, None])
    if linear.bias is not None:
        patch.parameter(linear, "bias", linear.bias.detach() / s)


def for_columns(attention: Any, s: Tensor, width: int) -> Tensor:
    """(width,) factors of what o or down reads, from those of v's or up's rows.

    Query heads that share a head of V share its factors. Other widths stay as they are.
    """
    if len(s) == width:
        return s
    size = int(attention.head_dim)
    return s.reshape(-1, size).repeat_interleave(width // len(s), 0).flatten()


def for_rows(attention: Any, values: Tensor, width: int) -> Tensor:
    """(width, shared) values of what o or down reads, next to the row of v or up that gives it.

    shared: the query heads that read one head of V; 1 for other rows.
    """
    if len(values) == width:
        return values[:, None]
    size = int(attention.head_dim)
    return values.reshape(width // size, -1, size).mT.flatten(0, 1)


def fold(patch: Patch, state: dict[str, Tensor]) -> None:
    """Folds all factors of a state into the weights.

    - P.attention and P.network: (hidden,) of the norms in the decoder layer P
    - NAME.rows: (N,) of the rows of v or up that the layer NAME reads
    """
    for prefix, layer in zip(patch.layer_names, patch.layers, strict=True):
        block = block_of(layer)
        for place in READERS:
            s = state.get(f"{prefix}.{place}")
            if s is not None:
                scale_norm(patch, layer, block, place, s)
                for name in readers(prefix, block, place):
                    scale_columns(patch, name, s)
        for after, before in writers(prefix, block).items():
            s = state.get(f"{after}.rows")
            if s is not None:
                width = patch.linears[after].in_features
                scale_columns(patch, after, for_columns(layer.self_attn, s, width))
                scale_rows(patch, before, s)
