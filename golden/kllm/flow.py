"""The decoder layer of KLLM as a table: linear layers, quantized activations, fusion. Pure Python.

    x -> quantized (RMS) -> q, k, v -> attention -> quantized -> o
    post = x + o -> quantized (RMS) -> gate, up -> quantized -> h = SiLU(gate) * up
    h -> quantized -> down

golden.kllm.layer compiles this flow to programs, in which the unit CACHE attends to Oaken's pages.
golden.llm.methods.kllm measures it on a whole model. There K and V may be the paper's indices too,
to which the lanes attend: golden.kllm.attention computes that for many tokens. No program does.

| switch | values | effect |
|---|---|---|
| fuse | yes, no | q, k, v share a matmul and a codebook, and so do gate and up |
| scores | ``direct`` | of lanes that attend: q stays in FP16 and takes the outlier path |
|  | ``index`` | of lanes that attend: q is quantized |
| glu | ``index`` | gate and up are quantized and multiplied by their indices |
|  | ``exact`` | gate and up stay in FP16 |
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from golden.kllm.isa import ROW_ELEMENTS, Opcode

SCORES = ("direct", "index")
GLU = ("index", "exact")


@dataclasses.dataclass(frozen=True)
class Site:
    """An activation that may be quantized.

    outliers: a share of each vector stays in FP16; without, all of it is indices. norm: RMSNorm
    follows, and its statistics are kept with the slot. heads: a vector is a head of a token.
    switch: the site is quantized only where this switch is ``index``.
    """

    name: str
    outliers: bool = True
    norm: bool = False
    heads: bool = False
    switch: str | None = None


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear layer: the site that it reads, its module and the norm before it, in the model."""

    name: str
    site: str
    module: str
    norm: str | None = None


_ALL_SITES = (
    Site("x", norm=True),
    Site("attention"),
    Site("post", norm=True),
    Site("gate", switch="glu"),
    Site("up", switch="glu"),
    Site("h"),
    Site("q", outliers=False, heads=True, switch="scores"),
    Site("k", outliers=False, heads=True),
    Site("v", outliers=False, heads=True),
)
SITES = {site.name: site for site in _ALL_SITES}

_ALL_LINEARS = (
    Linear("q", "x", "self_attn.q_proj", "input_layernorm"),
    Linear("k", "x", "self_attn.k_proj", "input_layernorm"),
    Linear("v", "x", "self_attn.v_proj", "input_layernorm"),
    Linear("o", "attention", "self_attn.o_proj"),
    Linear("gate", "post", "mlp.gate_proj", "post_attention_layernorm"),
    Linear("up", "post", "mlp.up_proj", "post_attention_layernorm"),
    Linear("down", "h", "mlp.down_proj"),
)
LINEARS = {linear.name: linear for linear in _ALL_LINEARS}

NETWORK = ("gate", "up", "down")  # linear layers of the feed-forward network
# With experts the network is there once for each: gate.3 is that of expert 3. The router chooses.
ROUTER = "router"

# Linear layers that one matmul computes, by the name of that matmul.
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the lanes' attention of the query heads that share a KV head.

    command: what the accelerator executes. lanes: the codebook that the lanes hold during the step.
    scores: values of the switch with which the step is taken.
    """

    name: str
    command: Opcode
    lanes: str = "scores"
    scores: tuple[str, ...] = SCORES


# Each step takes the value that the step before made; the first takes q, scaled and rotated.
ATTENTION = (
    Step("query", Opcode.QUANTIZE, scores=("index",)),
    Step("scores", Opcode.MATMUL),  # times K
    Step("mask", Opcode.BINARY),  # plus -infinity for later tokens
    Step("softmax", Opcode.SOFTMAX),
    Step("weight", Opcode.BINARY),  # times V's scales
    Step("integers", Opcode.QUANTIZE_INTEGER),
    Step("values", Opcode.MATMUL, lanes="cached_v"),  # times V
)


def attention_steps(scores: str) -> dict[str, tuple[str, ...]]:
    """Names of the steps, in order, by the codebook that the lanes hold during them."""
    made: dict[str, tuple[str, ...]] = {}
    for step in ATTENTION:
        if scores in step.scores:
            made[step.lanes] = (*made.get(step.lanes, ()), step.name)
    return made


def follow(steps: Iterable[str], commands: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    """``value`` after ``steps``; ``commands`` says how each step is done. KeyError: one is not."""
    for name in steps:
        value = commands[name](value)
    return value


def sites(**switches: str) -> tuple[str, ...]:
    """Names of the quantized activations under these values of the switches."""
    return tuple(
        name
        for name, site in SITES.items()
        if site.switch is None or switches[site.switch] == "index"
    )


def readers(site: str) -> tuple[str, ...]:
    """The linear layers that read an activation."""
    return tuple(name for name, linear in LINEARS.items() if linear.site == site)


def members(gated: bool) -> tuple[str, ...]:
    """The linear layers of a layer, of which a network without a gate lacks one."""
    return tuple(name for name in LINEARS if gated or name != "gate")


def matmuls(fuse: bool, intermediate: int, gated: bool = True) -> dict[str, tuple[str, ...]]:
    """Matmuls of a layer and the linear layers in each, in the order of LINEARS.

    ``up`` must begin with a row of its own: gate and up are fused only where ``intermediate`` is a
    multiple of ROW_ELEMENTS. Without a gate nothing is fused with ``up``.
    """
    made = {}
    for name in members(gated):
        found = [matmul for matmul, joined in FUSED.items() if name in joined]
        whole_rows = "gate_up" not in found or (gated and intermediate % ROW_ELEMENTS == 0)
        matmul = found[0] if fuse and found and whole_rows else name
        made[matmul] = FUSED.get(matmul, (name,))
    return made


def kind_of(name: str) -> str:
    """``gate`` of ``gate.3``"""
    return name.partition(".")[0]


def norm_of(linear: str) -> str | None:
    """The norm before a linear layer, of an expert or not."""
    kind = kind_of(linear)
    return LINEARS["up" if kind == ROUTER else kind].norm


def site_of(matmul: str) -> Site:
    """Returns the site that a matmul, fused or not, of an expert or not, is applied to."""
    matmul = kind_of(matmul)
    if matmul == ROUTER:
        return SITES["post"]
    return SITES[LINEARS[FUSED.get(matmul, (matmul,))[0]].site]
