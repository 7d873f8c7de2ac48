"""The models that KLLM's accelerator runs, for golden.llm.pack and the simulator. Pure Python."""

import math

from golden.config import ConfigError
from golden.kllm.layer.shape import LayerShape
from golden.llm.decoder import Decoder

_SILU = ("silu", "swish")  # two names of one function
# Types whose angles depend on the position alone, so that a table holds them.
_ROPE = ("default", "linear", "llama3", "yarn")


def chip_layer(decoder: Decoder, tokens: int) -> LayerShape:
    """The layer of a decoder whose sequences have ``tokens`` tokens at most.

    ConfigError: KLLM's compiler has no program for it, or it is beyond the lengths of commands.
    """
    window, size = decoder.window, decoder.head_size
    checks = (
        ("experts", "num_local_experts", "1", decoder.experts, decoder.experts == 1),
        ("a feed-forward network without a gate", "gated", "true", decoder.gated, decoder.gated),
        ("this activation", "hidden_act", "silu", decoder.activation,
         decoder.activation in _SILU),
        ("this norm", "norm", "RMSNorm", decoder.norm, decoder.norm == "RMSNorm"),
        ("norms of weights 1 + w", "norm_offset", "false", decoder.norm_offset,
         not decoder.norm_offset),
        ("norms of what attention and network give", "norm_places", "before",
         decoder.norm_places, decoder.norm_places == "before"),
        ("norms of q and k", "qk_norm", "none", decoder.qk_norm, not decoder.qk_norm),
        ("biases", "biases", "none", ", ".join(decoder.biases), not decoder.biases),
        ("these positions", "rope_type", " or ".join(_ROPE), decoder.rope or "learned positions",
         decoder.rope in _ROPE),
        ("RoPE of a part of a head", "partial_rotary_factor", "1", decoder.rotary_size / size,
         decoder.rotary_size in (0, size)),
        ("RoPE of neighbours", "rope_interleave", "false", decoder.rope_interleaved,
         not decoder.rope_interleaved),
        ("layers without RoPE", "no_rope_layers", "1 in all layers", "0 in some",
         not decoder.unrotated),
        ("latent attention", "kv_lora_rank", "none", decoder.kv_rank, not decoder.kv_rank),
        ("sinks", "sinks", "none", decoder.sinks, not decoder.sinks),
        ("a scale of scores", "attention_scale", f"{size ** -0.5:g}", decoder.attention_scale,
         math.isclose(decoder.attention_scale, size**-0.5)),
        ("a cap of scores", "attn_logit_softcapping", "null", decoder.attention_cap,
         not decoder.attention_cap),
        ("a cap of logits", "final_logit_softcapping", "null", decoder.logit_cap,
         not decoder.logit_cap),
        ("a scale of embeddings", "embedding_scale", "1", decoder.embedding_scale,
         decoder.embedding_scale == 1),
        ("a scale of what is added", "residual_multiplier", "1", decoder.residual_scale,
         decoder.residual_scale == 1),
        ("a scale of logits", "logits_scaling", "1", decoder.logit_scale,
         decoder.logit_scale == 1),
        ("queries that grow with positions", "attn_temperature_tuning", "false",
         bool(decoder.temper_floor), not decoder.temper_floor),
        ("chunks of attention", "attention_chunk_size",
         f"null or at least the {tokens} tokens of a sequence", decoder.chunk,
         not decoder.chunk or decoder.chunk >= tokens),
        ("a window", "sliding_window", f"null or at least the {tokens} tokens of a sequence",
         window, not window or window >= tokens),
    )  # fmt: skip
    for what, field, wanted, value, is_right in checks:
        if not is_right:
            raise ConfigError(
                f"KLLM's compiler has no program for {what}: {field} must be {wanted}, not {value}"
            )
    return LayerShape(
        hidden=decoder.hidden,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_size=decoder.head_size,
        intermediate=decoder.intermediate,
    )
