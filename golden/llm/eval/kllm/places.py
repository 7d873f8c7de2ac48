"""The places of KLLM's flow in a decoder layer of a model.

A layer with experts has the network's linear layers once for each: gate.3 is that of expert 3. All
experts of a layer share a site, such as h.
"""

from typing import Any

import torch
from torch import nn

from golden.kllm.flow import LINEARS, SITES, readers
from golden.kllm.layer.shape import PARTED, network_parts
from golden.llm.eval.method import State
from golden.llm.structure import block_of, kind_of

OFF = 16  # bits that leave a tensor as it is
CACHED = ("k", "v")
CONDITIONS = ("center", "rotate")  # switches of golden.kllm.conditioning
# Sites in front of attention and of the network, where a norm may be.
NORMED = {"x": "attention", "post": "network"}
# Sites of whole tokens without a norm: a linear layer's input, or the output of that name's.
PLAIN = [name for name, site in SITES.items() if not site.norm and not site.heads]


def modules(layer: nn.Module) -> dict[str, Any]:
    """The linear layers of a decoder layer by their short names."""
    return {name: layer.get_submodule(place) for name, place in block_of(layer).linears.items()}


def expert_of(name: str) -> str:
    """``.3`` of ``gate.3``, and nothing of ``gate``"""
    return name[len(kind_of(name)) :]


def site_of(name: str) -> str:
    """The site that a linear layer reads."""
    return LINEARS[kind_of(name)].site


def readers_of(layer: nn.Module, site: str) -> list[str]:
    """The linear layers of a decoder layer that read a site."""
    return block_of(layer).of_kind(*readers(site))


def norm_before(layer: nn.Module, site: str) -> Any:
    """The norm that follows a site, or None."""
    place = block_of(layer).before.get(NORMED.get(site, ""))
    return None if place is None else layer.get_submodule(place)


def norm_of(layer: nn.Module, name: str) -> Any:
    """The norm that precedes a linear layer, or None."""
    return norm_before(layer, site_of(name))


def entry_of(layer: nn.Module, site: str) -> nn.Module:
    """The first module that reads a site of ``NORMED``: its norm, else what follows it."""
    norm: nn.Module | None = norm_before(layer, site)
    if norm is not None:
        return norm
    return layer.get_submodule("self_attn" if site == "x" else block_of(layer).network)


def router_of(layer: nn.Module) -> Any:
    """The module that chooses experts, or None."""
    place = block_of(layer).router
    return None if place is None else layer.get_submodule(place)


def vectors_of(site: str, length: int) -> int:
    """The vectors that a site's elements are quantized in: the parts of a wide network."""
    return network_parts(length) if site in PARTED else 1


def on_device(device: torch.device, state: State) -> State:
    return {name: each.to(device) for name, each in state.items()}
