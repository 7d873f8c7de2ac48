"""The decoder layer of KLLM as a table: linear layers, quantized activations, fusion. Pure Python.

    x -> quantized (RMS) -> q, k, v          K and V are quantized per head, the caches
    softmax(q K^T) * V's scales -> integers -> times V -> attention -> quantized -> o
    post = x + o -> quantized (RMS) -> gate, up -> quantized -> h = SiLU(gate) * up
    h -> quantized -> down

golden.kllm.layer compiles this flow to programs, golden.kllm.attention computes its attention for
many tokens, and golden.eval.methods.kllm measures it on a whole model. All three read this table.

| switch | values | effect |
|---|---|---|
| fuse | yes, no | q, k, v share a matmul and a codebook, and so do gate and up |
| scores | ``direct`` | q stays in FP16 and takes the outlier path |
|  | ``index`` | q is quantized |
| glu | ``index`` | gate and up are quantized and multiplied by their indices |
|  | ``exact`` | gate and up stay in FP16 |
"""

import dataclasses

from golden.kllm.isa import ROW_ELEMENTS

__all__ = ["FUSED", "GLU", "LINEARS", "SCORES", "SITES", "Linear", "Site", "matmuls", "site_of"]

SCORES = ("direct", "index")
GLU = ("index", "exact")


@dataclasses.dataclass(frozen=True)
class Site:
    """An activation that may be quantized.

    outliers: a share of each vector stays in FP16; without, all of it is indices. norm: RMSNorm
    follows, and its statistics are kept with the slot. heads: a vector is a head of a token.
    """

    name: str
    outliers: bool = True
    norm: bool = False
    heads: bool = False


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
    Site("gate"),
    Site("up"),
    Site("h"),
    Site("q", outliers=False, heads=True),
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

# Linear layers that one matmul computes, by the name of that matmul.
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


def matmuls(fuse: bool, intermediate: int) -> dict[str, tuple[str, ...]]:
    """Matmuls of a layer and the linear layers in each, in the order of LINEARS.

    ``up`` must begin with a row of its own: gate and up are fused only where ``intermediate`` is a
    multiple of ROW_ELEMENTS.
    """
    made = {}
    for name in LINEARS:
        found = [matmul for matmul, members in FUSED.items() if name in members]
        whole_rows = "gate_up" not in found or intermediate % ROW_ELEMENTS == 0
        matmul = found[0] if fuse and found and whole_rows else name
        made[matmul] = FUSED.get(matmul, (name,))
    return made


def site_of(matmul: str) -> Site:
    """What a matmul, fused or not, is applied to."""
    return SITES[LINEARS[FUSED.get(matmul, (matmul,))[0]].site]
