"""Fields of published configurations, and figures of these models by hand.

Each arithmetic is written out from the model's sizes, and calls nothing of sim.
"""

from typing import Any, NamedTuple


class Public(NamedTuple):
    """A published model.

    fields : of its config.json that its sizes follow from
    parameters : as its hub states them
    others : parameters that are no matrices: norms, biases, sinks
    kv : bytes of FP16 K and V that a cache of 100 tokens has for each of them
    macs : multiplications of one token after 1,000 others, embedding apart, head included
    """

    fields: dict[str, Any]
    parameters: int
    others: int
    kv: int
    macs: int


def _plain(hidden: int, query: int, kv: int, inside: int) -> int:
    """Multiplications of q, k, v, o, gate, up and down for a token."""
    return hidden * (2 * query + 2 * kv) + 3 * hidden * inside


_GPT_OSS_TYPES = ["sliding_attention", "full_attention"] * 12
_SMOLLM3_ROPE = [1, 1, 1, 0] * 9

MODELS = {
    "Llama-3.1-8B": Public(
        {
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0,
            "rope_scaling": {
                "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
        },
        parameters=8_030_261_248,
        others=(2 * 32 + 1) * 4096,
        kv=2 * 32 * 2 * 8 * 128,
        macs=32 * (_plain(4096, 4096, 1024, 14336) + 2 * 1001 * 4096) + 4096 * 128256,
    ),
    "Mistral-7B-v0.1": Public(
        {
            "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096,
        },
        parameters=7_241_732_096,
        others=(2 * 32 + 1) * 4096,
        kv=2 * 32 * 2 * 8 * 128,
        macs=32 * (_plain(4096, 4096, 1024, 14336) + 2 * 1001 * 4096) + 4096 * 32000,
    ),
    "Mixtral-8x7B-v0.1": Public(
        {
            "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": None,
            "num_local_experts": 8, "num_experts_per_tok": 2,
        },
        parameters=46_702_792_704,
        others=(2 * 32 + 1) * 4096,
        kv=2 * 32 * 2 * 8 * 128,
        # Two experts of eight, and the router.
        macs=32 * (_plain(4096, 4096, 1024, 2 * 14336) + 8 * 4096 + 2 * 1001 * 4096)
        + 4096 * 32000,
    ),
    "Qwen2.5-7B": Public(
        {
            "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
            "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "vocab_size": 152064, "max_position_embeddings": 131072, "max_window_layers": 28,
            "sliding_window": 131072, "use_sliding_window": False, "rope_theta": 1000000.0,
        },
        parameters=7_615_616_512,
        others=(2 * 28 + 1) * 3584 + 28 * (3584 + 2 * 512),  # biases of q, k and v
        kv=2 * 28 * 2 * 4 * 128,
        macs=28 * (_plain(3584, 3584, 512, 18944) + 2 * 1001 * 3584) + 3584 * 152064,
    ),
    "Qwen3-8B": Public(
        {
            "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
            "attention_bias": False, "rope_theta": 1000000, "rope_scaling": None,
            "max_window_layers": 36, "sliding_window": None, "use_sliding_window": False,
        },
        parameters=8_190_735_360,
        others=(2 * 36 + 1) * 4096 + 36 * 2 * 128,  # norms of q and k
        kv=2 * 36 * 2 * 8 * 128,
        macs=36 * (_plain(4096, 4096, 1024, 12288) + 2 * 1001 * 4096) + 4096 * 151936,
    ),
    "Qwen3-30B-A3B": Public(
        {
            "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
            "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
            "max_position_embeddings": 40960, "num_experts": 128, "num_experts_per_tok": 8,
            "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "attention_bias": False, "rope_theta": 1000000.0, "max_window_layers": 48,
            "sliding_window": None, "use_sliding_window": False, "output_router_logits": False,
        },
        parameters=30_532_122_624,
        others=(2 * 48 + 1) * 2048 + 48 * 2 * 128,
        kv=2 * 48 * 2 * 4 * 128,
        # Eight experts of 128; heads of 128 elements are more than the hidden size.
        macs=48 * (_plain(2048, 4096, 512, 8 * 768) + 128 * 2048 + 2 * 1001 * 4096)
        + 2048 * 151936,
    ),
    "Phi-3-mini-4k-instruct": Public(
        {
            "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
            "vocab_size": 32064, "max_position_embeddings": 4096, "sliding_window": 2047,
            "original_max_position_embeddings": 4096, "rope_scaling": None,
            "attention_bias": False,
            "auto_map": {
                "AutoConfig": "configuration_phi3.Phi3Config",
                "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
            },
        },
        parameters=3_821_079_552,
        others=(2 * 32 + 1) * 3072,
        kv=2 * 32 * 2 * 32 * 96,
        macs=32 * (_plain(3072, 3072, 3072, 8192) + 2 * 1001 * 3072) + 3072 * 32064,
    ),
    "gemma-2-9b": Public(
        {
            "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
            "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_size": 4096,
            "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
            "cache_implementation": "hybrid", "rope_theta": 10000.0,
        },
        parameters=9_241_705_984,
        others=(4 * 42 + 1) * 3584,  # norms before and after, of both
        kv=2 * 42 * 2 * 8 * 256,
        macs=42 * (_plain(3584, 4096, 2048, 14336) + 2 * 1001 * 4096) + 3584 * 256000,
    ),
    "gemma-3-1b": Public(
        {
            "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
            "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
            "head_dim": 256, "vocab_size": 262144, "max_position_embeddings": 32768,
            "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6,
            "rope_local_base_freq": 10000, "rope_theta": 1000000, "rope_scaling": None,
            "attn_logit_softcapping": None, "final_logit_softcapping": None,
            "hidden_activation": "gelu_pytorch_tanh", "cache_implementation": "hybrid",
        },
        parameters=999_885_952,
        others=(4 * 26 + 1) * 1152 + 26 * 2 * 256,
        kv=2 * 26 * 2 * 1 * 256,
        # 22 layers attend 512 tokens, each sixth attends all.
        macs=26 * _plain(1152, 1024, 256, 6912) + 2 * 1024 * (22 * 512 + 4 * 1001)
        + 1152 * 262144,
    ),
    "OLMo-2-1124-7B": Public(
        {
            "model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
            "vocab_size": 100352, "max_position_embeddings": 4096, "rope_theta": 500000,
            "attention_bias": False, "rope_scaling": None,
        },
        parameters=7_298_617_344,
        others=(4 * 32 + 1) * 4096,  # norms after both, and of all heads of q and of k
        kv=2 * 32 * 2 * 32 * 128,
        macs=32 * (_plain(4096, 4096, 4096, 11008) + 2 * 1001 * 4096) + 4096 * 100352,
    ),
    "granite-3.0-8b-base": Public(
        {
            "model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800,
            "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 49155, "max_position_embeddings": 4096, "tie_word_embeddings": True,
            "attention_multiplier": 0.0078125, "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22, "logits_scaling": 16.0, "rope_theta": 10000,
            "attention_bias": False, "mlp_bias": False, "rope_scaling": None,
        },
        parameters=8_170_848_256,
        others=(2 * 40 + 1) * 4096,
        kv=2 * 40 * 2 * 8 * 128,
        macs=40 * (_plain(4096, 4096, 1024, 12800) + 2 * 1001 * 4096) + 4096 * 49155,
    ),
    "SmolLM3-3B": Public(
        {
            "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008,
            "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
            "vocab_size": 128256, "max_position_embeddings": 65536, "rope_theta": 5000000.0,
            "no_rope_layers": _SMOLLM3_ROPE, "no_rope_layer_interval": 4, "rope_scaling": None,
            "layer_types": ["full_attention"] * 36, "max_window_layers": 28,
            "sliding_window": None, "use_sliding_window": False, "attention_bias": False,
            "mlp_bias": False, "pretraining_tp": 2,
        },
        parameters=3_075_098_624,
        others=(2 * 36 + 1) * 2048,
        kv=2 * 36 * 2 * 4 * 128,
        macs=36 * (_plain(2048, 2048, 512, 11008) + 2 * 1001 * 2048) + 2048 * 128256,
    ),
    "gpt-oss-20b": Public(
        {
            "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
            "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
            "head_dim": 64, "vocab_size": 201088, "max_position_embeddings": 131072,
            "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
            "sliding_window": 128, "layer_types": _GPT_OSS_TYPES, "attention_bias": True,
            "initial_context_length": 4096, "swiglu_limit": 7.0, "hidden_act": "silu",
            "rope_theta": 150000, "rope_scaling": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "truncate": False,
                "original_max_position_embeddings": 4096, "rope_type": "yarn",
            },
            "quantization_config": {"quant_method": "mxfp4"},
        },
        parameters=20_914_757_184,
        # Norms; biases of q, k, v and o; sinks; biases of the router and of 32 experts.
        others=(2 * 24 + 1) * 2880 + 24 * (4096 + 2 * 512 + 2880 + 64 + 32 + 32 * 3 * 2880),
        kv=2 * 24 * 2 * 8 * 64,
        # Twelve layers attend 128 tokens.
        macs=24 * (_plain(2880, 4096, 512, 4 * 2880) + 32 * 2880)
        + 2 * 4096 * (12 * 128 + 12 * 1001) + 2880 * 201088,
    ),
    "DeepSeek-V3": Public(
        {
            "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
            "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "moe_layer_freq": 1,
            "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "num_nextn_predict_layers": 1, "ep_size": 1, "attention_bias": False,
            "rope_theta": 10000, "rope_scaling": {
                "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn",
            },
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
            "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
        },
        # The hub's number without the module that predicts further tokens.
        parameters=671_026_419_200,
        # Norms, those of both latents, and what the router adds to choose.
        others=(2 * 61 + 1) * 7168 + 61 * (1536 + 512) + 58 * 256,
        kv=2 * 61 * (512 + 64),
        macs=61 * (
            7168 * 1536 + 1536 * 128 * 192  # the query
            + 7168 * (512 + 64)  # the latent of K and V
            + 512 * 128 * (128 + 128)  # queries to the size of latents, and outputs from it
            + 1001 * 128 * (512 + 64 + 512)  # scores by latents, and latents by scores
            + 128 * 128 * 7168
        )
        + 3 * 3 * 7168 * 18432
        + 58 * (7168 * 256 + 9 * 3 * 7168 * 2048)  # router, eight experts and the shared one
        + 7168 * 129280,
    ),
    "Llama-4-Scout-17B-16E": Public(
        {
            "model_type": "llama4",
            "vision_config": {"model_type": "llama4_vision_model"},
            "boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092,
            "text_config": {
                "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192,
                "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
                "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
                "vocab_size": 202048, "max_position_embeddings": 10485760,
                "num_local_experts": 16, "num_experts_per_tok": 1,
                "interleave_moe_layer_step": 1, "moe_layers": list(range(48)),
                "no_rope_layers": [1, 1, 1, 0] * 12, "attention_chunk_size": 8192,
                "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1,
                "use_qk_norm": True, "attention_bias": False, "rope_theta": 500000.0,
                "rope_scaling": {
                    "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192, "rope_type": "llama3",
                },
            },
        },
        # Of the decoder: the hub counts the tower of pictures too.
        parameters=48 * (5120 * (2 * 5120 + 2 * 1024) + 5120 * 16 + 17 * 3 * 5120 * 8192)
        + 2 * 5120 * 202048 + (2 * 48 + 1) * 5120,
        others=(2 * 48 + 1) * 5120,
        kv=2 * 48 * 2 * 8 * 128,
        macs=48 * (_plain(5120, 5120, 1024, 2 * 8192) + 16 * 5120 + 2 * 1001 * 5120)
        + 5120 * 202048,
    ),
    "gemma-7b": Public(
        {
            "model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
            "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192,
            "hidden_act": "gelu", "hidden_activation": None, "rope_theta": 10000.0,
        },
        parameters=8_537_680_896,
        others=(2 * 28 + 1) * 3072,
        kv=2 * 28 * 2 * 16 * 256,
        macs=28 * (_plain(3072, 4096, 4096, 24576) + 2 * 1001 * 4096) + 3072 * 256000,
    ),
    "Qwen1.5-MoE-A2.7B": Public(
        {
            "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
            "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
            "vocab_size": 151936, "max_position_embeddings": 8192, "num_experts": 60,
            "num_experts_per_tok": 4, "norm_topk_prob": False, "decoder_sparse_step": 1,
            "max_window_layers": 21, "sliding_window": 32768, "use_sliding_window": False,
            "rope_theta": 1000000.0,
        },
        parameters=14_315_784_192,
        others=(2 * 24 + 1) * 2048 + 24 * 3 * 2048,
        kv=2 * 24 * 2 * 16 * 128,
        # Four experts, the shared one, the router and the gate of the shared one.
        macs=24 * (_plain(2048, 2048, 2048, 4 * 1408 + 5632) + 61 * 2048 + 2 * 1001 * 2048)
        + 2048 * 151936,
    ),
    "starcoder2-3b": Public(
        {
            "model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288,
            "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
            "vocab_size": 49152, "max_position_embeddings": 16384, "sliding_window": 4096,
            "use_bias": True, "norm_epsilon": 1e-05, "hidden_act": "gelu_pytorch_tanh",
            "rope_theta": 999999.4420358813,
        },
        parameters=3_030_371_328,
        # Weights and biases of norms; biases of q, k, v, o, and of both of the network.
        others=(2 * 30 + 1) * 2 * 3072 + 30 * (3072 + 2 * 256 + 3072 + 12288 + 3072),
        kv=2 * 30 * 2 * 2 * 128,
        macs=30 * (3072 * (2 * 3072 + 2 * 256) + 2 * 3072 * 12288 + 2 * 1001 * 3072)
        + 3072 * 49152,
    ),
}  # fmt: skip
