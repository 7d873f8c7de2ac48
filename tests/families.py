"""Tiny random models of each family of golden.llm.structure, as transformers makes them."""

from typing import Any

import torch

from golden.llm.structure import FAMILIES, unify
from tests.tiny import Letters

LAYERS = 2
_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS, "head_dim": 16,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 64, "pad_token_id": 0,
    "max_position_embeddings": 256, "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
# Every family's own features, so that no two layers of a model are alike where they may differ.
_OWN: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 8},
    "mixtral": _EXPERTS,
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
                  "mlp_only_layers": [1], "norm_topk_prob": True},
    "phi3": {"partial_rotary_factor": 0.5, "num_attention_heads": 4, "num_key_value_heads": 2},
    "gemma": {},
    "gemma2": {**_WINDOW, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0,
               "final_logit_softcapping": 3.0},
    "gemma3_text": {**_WINDOW, "query_pre_attn_scalar": 24},
    "olmo2": {},
    "granite": {"embedding_multiplier": 2.0, "logits_scaling": 3.0, "residual_multiplier": 0.5,
                "attention_multiplier": 0.2},
    "smollm3": {"no_rope_layer_interval": 2},
    "gpt_oss": {**_EXPERTS, **_WINDOW},
}  # fmt: skip
# These have no head_dim of their own.
_SHARED = ("qwen2", "phi3", "olmo2", "granite", "smollm3", "mixtral")
assert frozenset(_OWN) == FAMILIES


def family(name: str, unified: bool = True) -> Any:
    """A model in float32, eval mode; norms and biases are nowhere 1 or 0."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {**_SIZES, **_OWN[name]}
    if name in _SHARED:
        del fields["head_dim"]
    torch.manual_seed(11)
    config = AutoConfig.for_model(name, **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(12)
    for key, value in model.named_parameters():
        if "norm" in key:
            value.data += 0.3 * torch.randn(value.shape, generator=generator)
        elif key.endswith("bias") or "sinks" in key:
            value.data = 0.3 * torch.randn(value.shape, generator=generator)
    if unified:
        unify(model)
    return model


def token_ids(windows: int, tokens: int, seed: int = 13) -> torch.Tensor:
    """(windows, tokens) of the vocabulary of ``family``, whose word 0 is padding."""
    return torch.randint(1, 64, (windows, tokens), generator=torch.Generator().manual_seed(seed))


__all__ = ["FAMILIES", "LAYERS", "Letters", "family", "token_ids"]
