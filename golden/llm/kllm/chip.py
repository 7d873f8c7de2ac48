"""The models that KLLM's accelerator runs, for golden.llm.pack and the simulator. Pure Python."""

import dataclasses
from typing import Any

from golden.config import ConfigError
from golden.kllm.config import MachineConfig
from golden.kllm.layer.program import cap_scalar
from golden.kllm.layer.shape import (
    ACTIVATIONS,
    QK_NORMS,
    QUERIES_MAX,
    LayerShape,
    head_room,
    served_heads,
)
from golden.llm.decoder import Decoder

_ROUTERS = ("", "softmax", "topk_softmax")  # "": no experts
# Types whose angles depend on the position alone, so that a table holds them.
_ROPE = ("default", "linear", "llama3", "yarn")


def chip_layer(decoder: Decoder, tokens: int, number: int = 0) -> LayerShape:
    """Layer ``number`` of a decoder whose sequences have ``tokens`` tokens at most.

    ConfigError: KLLM's compiler has no program for it, or it is beyond the lengths of commands.
    """
    window = decoder.window_of(number)
    has_no_room = decoder.head_size == head_room(decoder.head_size)
    checks = (
        ("this router", "router", " or ".join(_ROUTERS[1:]), decoder.router,
         decoder.router in _ROUTERS),
        ("shared experts", "shared_expert_intermediate_size", "0", decoder.shared,
         not decoder.shared),
        ("groups of experts", "n_group", "1", decoder.expert_groups, decoder.expert_groups == 1),
        ("plain networks among experts", "mlp_only_layers or decoder_sparse_step",
         "such that no layer has one", sum(decoder.dense), not any(decoder.dense)),
        ("factors of experts", "routed_scaling_factor", "1", decoder.router_scale,
         decoder.router_scale == 1),
        ("this activation", "hidden_act", " or ".join(ACTIVATIONS), decoder.activation,
         decoder.activation in ACTIVATIONS),
        ("this norm", "norm", "RMSNorm", decoder.norm, decoder.norm == "RMSNorm"),
        ("these norms of q and k", "qk_norm", "none or head or row", decoder.qk_norm,
         decoder.qk_norm in QK_NORMS),
        ("norms of q and k in heads of this size", "head_dim", "a multiple of 32",
         decoder.head_size, has_no_room or not decoder.qk_norm),
        ("these positions", "rope_type", " or ".join(_ROPE), decoder.rope or "learned positions",
         decoder.rope in _ROPE),
        ("RoPE of neighbours", "rope_interleave", "false", decoder.rope_interleaved,
         not decoder.rope_interleaved),
        ("latent attention", "kv_lora_rank", "none", decoder.kv_rank, not decoder.kv_rank),
        ("queries that grow with positions", "attn_temperature_tuning", "false",
         bool(decoder.temper_floor), not decoder.temper_floor),
        ("chunks of attention", "attention_chunk_size",
         f"null or at least the {tokens} tokens of a sequence", decoder.chunk,
         not decoder.chunk or decoder.chunk >= tokens),
    )  # fmt: skip
    for what, field, wanted, value, is_right in checks:
        if not is_right:
            raise ConfigError(
                f"KLLM's compiler has no program for {what}: {field} must be {wanted}, not {value}"
            )
    if decoder.logit_cap:
        cap_scalar(decoder.logit_cap)
    return LayerShape(
        hidden=decoder.hidden,
        heads=decoder.heads,
        kv_heads=_kv_heads(decoder.heads, decoder.kv_heads),
        head_size=head_room(decoder.head_size),
        intermediate=decoder.intermediate,
        epsilon=decoder.norm_eps,
        biases=decoder.biases,
        qk_norm=decoder.qk_norm,
        norm_places=decoder.norm_places,
        rotary=decoder.is_rotated(number),
        window=window if window < tokens else 0,
        cap=decoder.attention_cap,
        sinks=decoder.sinks,
        gated=decoder.gated,
        activation=decoder.activation,
        **_experts(decoder),
    )


def is_local(decoder: Decoder, number: int) -> bool:
    """Whether a layer has angles of another base than the layers without a window."""
    return decoder.rope_local is not None and decoder.window_of(number) > 0


def _experts(decoder: Decoder) -> dict[str, Any]:
    """Fields of LayerShape of a decoder with experts."""
    if decoder.experts == 1:
        return {}
    # Of the best logits alone, softmax gives what it gives of all, scaled to a sum of 1.
    of_best = decoder.router == "topk_softmax"
    return {
        "experts": decoder.experts,
        "active": decoder.active,
        "router_norm": decoder.router_norm or of_best,
    }


def check_no_windows(decoder: Decoder, tokens: int) -> None:
    """ConfigError: in some layer a token does not attend all of its sequence's ``tokens``."""
    for number in range(decoder.layers):
        if 0 < decoder.window_of(number) < tokens:
            raise ConfigError(
                f"no cycles are known of a window: sliding_window must be null or at least the "
                f"{tokens} tokens of a sequence, not {decoder.window}"
            )


def _kv_heads(heads: int, kv_heads: int) -> int:
    """The KV heads, each so many times that a machine has enough query heads for each of them."""
    copies = range(1, heads // kv_heads + 1)
    return next(
        kv_heads * n for n in copies
        if heads % (kv_heads * n) == 0 and heads // (kv_heads * n) <= QUERIES_MAX
    )  # fmt: skip


def fitted(shape: LayerShape, config: MachineConfig) -> LayerShape:
    """The layer with the KV heads of a machine, if these are its own, each several times."""
    heads = served_heads(shape.heads, shape.kv_heads, config.cache.kv.heads)
    return dataclasses.replace(shape, kv_heads=heads)
