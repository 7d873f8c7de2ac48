"""The places of KLLM's flow in a decoder layer of a model."""

from typing import Any

import torch
from torch import nn

from golden.kllm.flow import LINEARS, SITES, readers
from golden.llm.eval.method import State

OFF = 16  # bits that leave a tensor as it is
CACHED = ("k", "v")
CONDITIONS = ("center", "rotate")  # switches of golden.kllm.conditioning
# Sites before a norm, and the first linear layer after that norm.
NORMED = {name: readers(name)[0] for name, site in SITES.items() if site.norm}
# Sites of whole tokens without a norm: a linear layer's input, or the output of that name's.
PLAIN = [name for name, site in SITES.items() if not site.norm and not site.heads]


def modules(layer: nn.Module) -> dict[str, Any]:
    """The linear layers of a decoder layer by their short names."""
    return {name: layer.get_submodule(each.module) for name, each in LINEARS.items()}


def norm_of(layer: nn.Module, name: str) -> Any:
    """The norm that precedes a linear layer."""
    return layer.get_submodule(str(LINEARS[name].norm))


def on_device(device: torch.device, state: State) -> State:
    return {name: each.to(device) for name, each in state.items()}
