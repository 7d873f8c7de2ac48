"""The models that KLLM's accelerator runs, for golden.llm.pack and the simulator. Pure Python."""

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
    window = decoder.window
    checks = (
        ("experts", "num_local_experts", "1", decoder.experts, decoder.experts == 1),
        ("a feed-forward network without a gate", "gated", "true", decoder.gated, decoder.gated),
        ("this activation", "hidden_act", "silu", decoder.activation,
         decoder.activation in _SILU),
        ("this norm", "norm", "RMSNorm", decoder.norm, decoder.norm == "RMSNorm"),
        ("norms of q and k", "qk_norm", "false", decoder.qk_norm, not decoder.qk_norm),
        ("biases", "biases", "none", ", ".join(decoder.biases), not decoder.biases),
        ("these positions", "rope_type", " or ".join(_ROPE), decoder.rope or "learned positions",
         decoder.rope in _ROPE),
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
