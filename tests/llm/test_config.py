"""Every field of a configuration is read, known to have no effect, neutral, or refused.

Shown to fail:

- with any of the cases of ``REFUSED`` before golden.llm.decoder: the simulator read all of them;
- without the comparison of types: a False among numbers is neutral;
- with the window of Mistral taken as 0 where its field is absent.
"""

import dataclasses
import json

import pytest

from golden.config import ConfigError
from golden.llm.decoder import KINDS, Decoder, check_gguf

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 256,
}  # fmt: skip
# Fields of published checkpoints beside their sizes.
LLAMA_2 = """{"_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"],
 "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
 "model_type": "llama", "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
 "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
 "use_cache": true}"""
LLAMA_31 = """{"architectures": ["LlamaForCausalLM"], "attention_bias": false,
 "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
 "hidden_act": "silu", "initializer_range": 0.02, "mlp_bias": false, "model_type": "llama",
 "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
 "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
 "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false,
 "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true}"""
SMOLLM2 = """{"architectures": ["LlamaForCausalLM"], "attention_bias": false,
 "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
 "initializer_range": 0.041666666666666664, "is_llama_config": true, "mlp_bias": false,
 "model_type": "llama", "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
 "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
 "tie_word_embeddings": true, "torch_dtype": "bfloat16",
 "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
 "transformers_version": "4.42.3", "use_cache": true, "head_dim": 16}"""
SAVED_BY_5 = """{"architectures": ["LlamaForCausalLM"], "attention_bias": false,
 "attention_dropout": 0.0, "bos_token_id": 1, "dtype": "float32", "eos_token_id": 2,
 "head_dim": 16, "hidden_act": "silu", "initializer_range": 0.02, "mlp_bias": false,
 "model_type": "llama", "pad_token_id": null, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
 "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
 "tie_word_embeddings": false, "transformers_version": "5.23.0", "use_cache": true}"""
MISTRAL = """{"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
 "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
 "model_type": "mistral", "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
 "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
 "use_cache": true}"""
QWEN = """{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
 "eos_token_id": 151645, "hidden_act": "silu", "initializer_range": 0.02,
 "max_window_layers": 21, "model_type": "qwen2", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
 "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
 "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false}"""
MIXTRAL = """{"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
 "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "model_type": "mixtral",
 "num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": false,
 "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
 "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
 "transformers_version": "4.36.0.dev0", "use_cache": true}"""
OPT = """{"_name_or_path": "facebook/opt-125m", "_remove_final_layer_norm": false,
 "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
 "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": true, "dropout": 0.1,
 "eos_token_id": 2, "ffn_dim": 96, "init_std": 0.02, "layerdrop": 0.0, "model_type": "opt",
 "num_key_value_heads": null, "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16",
 "transformers_version": "4.21.0.dev0", "use_cache": true, "word_embed_proj_dim": 64}"""
PUBLISHED = {
    "llama-2": (LLAMA_2, {}),
    "llama-3.1": (LLAMA_31, {"rope": "llama3"}),
    "smollm2": (SMOLLM2, {"tied": True}),
    "saved by transformers 5": (SAVED_BY_5, {}),
    "mistral": (MISTRAL, {"window": 4096}),
    "qwen2.5": (QWEN, {"biases": ("q", "k", "v"), "tied": True}),
    "mixtral": (MIXTRAL, {"experts": 8, "active": 2}),
    "opt": (OPT, {"activation": "relu", "norm": "LayerNorm", "gated": False, "tied": True,
                  "rope": "", "biases": ("q", "k", "v", "o", "up", "down"), "kv_heads": 4}),
}  # fmt: skip
PLAIN = {
    "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 16, "intermediate": 96,
    "vocabulary": 100, "positions": 256, "gated": True, "tied": False, "experts": 1, "active": 1,
    "window": 0, "activation": "silu", "norm": "RMSNorm", "qk_norm": "", "biases": (),
    "rope": "default",
}  # fmt: skip


def llama(**fields: object) -> dict[str, object]:
    return {**SIZES, "model_type": "llama", **fields}


def of_kind(kind: str, **fields: object) -> dict[str, object]:
    return {**SIZES, "model_type": kind, **fields}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(name):
    text, wanted = PUBLISHED[name]
    fields = {**SIZES, **json.loads(text)}
    if fields["model_type"] == "opt":
        del fields["intermediate_size"]
    made = Decoder.of("x", fields)
    found = {field: getattr(made, field) for field in PLAIN}
    assert found == PLAIN | wanted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (of_kind("mistral"), {"window": 4096}),
        (of_kind("mistral", sliding_window=None), {"window": 0}),
        (of_kind("mistral", sliding_window=9, layer_types=["sliding_attention"] * 2),
         {"window": 9}),
        (of_kind("mixtral", num_local_experts=4, num_experts_per_tok=1), {"window": 0}),
        (of_kind("qwen2", use_sliding_window=True, max_window_layers=0), {"window": 4096}),
        (of_kind("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=9),
         {"window": 0}),
        (of_kind("qwen2", use_sliding_window=True, sliding_window=8,
                 layer_types=["sliding_attention"] * 2), {"window": 8}),
        (of_kind("qwen2", use_sliding_window=True, sliding_window=8,
                 layer_types=["full_attention"] * 2), {"window": 0}),
        (of_kind("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
         {"window": 8, "sliding": (False, True)}),
        (of_kind("qwen3", num_key_value_heads=4), {"head_size": 128, "qk_norm": "head"}),
        (llama(attention_bias=True), {"biases": ("q", "k", "v", "o")}),
        (llama(mlp_bias=True), {"biases": ("gate", "up", "down")}),
        (llama(hidden_act="gelu", layer_types=["full_attention"] * 2), {"activation": "gelu"}),
        (llama(sliding_window=None, use_sliding_window=False, num_local_experts=1,
               partial_rotary_factor=1.0, attn_logit_softcapping=None, made_up=None), {}),
        (of_kind("qwen2", use_mrope=False, max_sequence_length=4096, num_key_value_heads=2),
         {"biases": ("q", "k", "v")}),
    ],
)  # fmt: skip
def test_fields_of_a_kind(fields, wanted):
    made = Decoder.of("x", fields)
    assert {field: getattr(made, field) for field in wanted} == wanted


REFUSED = [
    (llama(sliding_window=4096), "sliding_window must not be in a configuration of llama"),
    (llama(num_local_experts=8), "num_local_experts must be 0 or null in a model of llama, not 8"),
    (llama(layer_types=["sliding_attention", "full_attention"]),
     "layer_types must be full_attention in all 2 layers, not ["),
    (llama(layer_types=["full_attention"]), "layer_types must be full_attention in all 2 layers"),
    (of_kind("mistral", layer_types=["full_attention", "sliding_attention"]),
     "layer_types must be sliding_attention in all 2 layers"),
    (of_kind("mistral", sliding_window=None, layer_types=["sliding_attention"] * 2),
     "layer_types must be full_attention in all 2 layers"),
    (of_kind("mistral", attention_bias=True), "attention_bias must be False or null in a model of"),
    (of_kind("qwen2", layer_types=["full_attention", "sliding_attention"]),
     "layer_types must be full_attention in all 2 layers"),
    (llama(partial_rotary_factor=0.5), "partial_rotary_factor must be 1 or null"),
    (llama(partial_rotary_factor=True), "partial_rotary_factor must be 1 or null"),
    (llama(attn_logit_softcapping=50.0),
     "attn_logit_softcapping must not be in a configuration of llama"),
    (llama(final_logit_softcapping=30.0), "remove 30.0 if it has no effect"),
    (llama(use_qk_norm=True), "use_qk_norm must be False or null in a model of llama, not True"),
    (llama(use_parallel_residual=True), "use_parallel_residual must be False or null"),
    (llama(residual_multiplier=0.22), "residual_multiplier must be 1 or null"),
    (llama(rope_interleaved=True), "rope_interleaved must be False or null"),
    (llama(rope_scaling={"rope_type": "su", "factor": 2}), "rope_scaling.rope_type must be one of"),
    (llama(rope_scaling={"type": "linear", "factor": 2, "alpha": 1}),
     "rope_scaling.alpha must be null with rope_type linear, not 1"),
    (llama(rope_parameters={"rope_type": "default", "factor": 2}),
     "rope_parameters.factor must be null with rope_type default, not 2"),
    (llama(rope_parameters={"full_attention": {}}), "rope_parameters.full_attention must be null"),
    (llama(rope_parameters={"partial_rotary_factor": 0.5}),
     "rope_parameters.partial_rotary_factor must be null with rope_type default, not 0.5"),
    (llama(rope_parameters={}, rope_scaling={}),
     "rope_scaling must be null beside rope_parameters, not {}"),
    (llama(rope_scaling=2), "rope_scaling must be an object, not 2"),
    (llama(quantization_config={"quant_method": "gptq", "bits": 4}),
     "quantization_config must be null in a model of llama, not {"),
    (llama(auto_map={"AutoModel": "own.Model"}), "auto_map must be null in a model of llama"),
    (llama(attention_bias="yes"), "attention_bias must be true or false, not 'yes'"),
    (llama(hidden_act=3), "hidden_act must be a text, not 3"),
    (llama(made_up=False), "made_up must not be in a configuration of llama"),
    (of_kind("mamba"), "model_type must be one of deepseek_v3, gemma, gemma2, gemma3, gemma3_text"),
    (of_kind("opt", ffn_dim=96, num_key_value_heads=None, do_layer_norm_before=False),
     "do_layer_norm_before must be True or null, not False"),
    (of_kind("opt", ffn_dim=96, num_key_value_heads=None, rope_theta=1e4),
     "must not be in a configuration of opt"),
    (of_kind("opt", ffn_dim=96, num_key_value_heads=None, head_dim=32),
     "head_dim must be hidden_size / num_attention_heads, not 32"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "line"), REFUSED)
def test_what_nobody_reads_is_refused(fields, line):
    with pytest.raises(ConfigError) as error:
        Decoder.of("x", fields)
    text = str(error.value)
    assert text.startswith("x: ")
    assert line in text
    assert "\n" not in text


WINDOWS = {"mistral": 4096, "gemma2": 4096, "gemma3_text": 4096, "gpt_oss": 128}


def test_each_field_of_transformers_is_known():
    """The configuration of each kind that transformers itself writes is read.

    Its fields are those of the release that is installed.
    """
    from transformers import AutoConfig

    for kind in KINDS:
        fields = AutoConfig.for_model(kind).to_dict()
        made = Decoder.of("x", json.loads(json.dumps(fields)))
        assert made.architecture == kind
        assert made.hidden == fields["hidden_size"]
        assert made.window == WINDOWS.get(kind, 0)


GGUF = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64,
    "llama.attention.head_count": 4, "llama.rope.dimension_count": 16, "llama.vocab_size": 100,
    "tokenizer.ggml.model": "gpt2",
}  # fmt: skip


def test_gguf_headers():
    check_gguf("x", GGUF, ["output.weight"])
    neutral = {"attention.key_length": 16, "expert_count": 0, "rope.scaling.type": "none"}
    check_gguf("x", GGUF | {f"llama.{key}": value for key, value in neutral.items()}, [])


@pytest.mark.parametrize(
    ("more", "tensor", "line"),
    [
        ({"llama.expert_count": 8}, "a", "x: llama.expert_count must be 0, as transformers"),
        ({"llama.rope.scaling.type": "yarn"}, "a", "rope.scaling.type must be 'none', as"),
        ({"llama.rope.scaling.factor": 4.0}, "a", "rope.scaling.factor must be absent, as"),
        ({"llama.attention.sliding_window": 9}, "a", "sliding_window must be 0, as transformers"),
        ({"llama.attention.key_length": 32}, "a", "key_length must be 16, as transformers"),
        ({"llama.made_up": 1}, "a", "llama.made_up must be absent, as transformers does not"),
        ({}, "rope_freqs.weight", "has the tensor rope_freqs.weight, which scales RoPE"),
    ],
)
def test_gguf_headers_that_are_refused(more, tensor, line):
    with pytest.raises(ConfigError) as error:
        check_gguf("x", GGUF | more, [tensor])
    assert line in str(error.value)
    assert "\n" not in str(error.value)


MOE = {"num_local_experts": 8, "num_experts_per_tok": 2}
LATENT = {
    "moe_intermediate_size": 32, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
    "num_experts_per_tok": 2, "num_key_value_heads": 4, "first_k_dense_replace": 1,
}  # fmt: skip
CONTRADICTIONS = [
    (llama(num_attention_heads=3), "num_attention_heads must divide hidden_size 64, not 3"),
    (llama(num_key_value_heads=3), "num_key_value_heads must be a divisor of 4 heads, not 3"),
    (llama(num_key_value_heads=8), "num_key_value_heads must be a divisor of 4 heads, not 8"),
    (llama(head_dim=15), "head_dim must be even, as RoPE turns pairs, not 15"),
    (of_kind("mixtral", **MOE | {"num_experts_per_tok": 9}),
     "num_experts_per_tok must be 1..8, the experts, not 9"),
    (of_kind("mixtral", **MOE, num_experts=4), "num_experts must be 8 or null, not 4"),
    (of_kind("qwen3", layer_types=["full_attention"]),
     "layer_types must be full_attention in all 2 layers"),
    (of_kind("gemma2", layer_types=["full_attention", "chunked_attention"]),
     "layer_types must be one of full_attention, sliding_attention in all 2 layers"),
    (of_kind("gemma2", sliding_window=None), "sliding_window must be a whole number of 1 or more"),
    (of_kind("gemma2", sliding_window=None, layer_types=["sliding_attention"] * 2),
     "layer_types must be full_attention in all 2 layers"),
    (of_kind("gemma2", hidden_act="gelu", hidden_activation="gelu_pytorch_tanh"),
     "hidden_act must be 'gelu_pytorch_tanh' or null, not 'gelu'"),
    (of_kind("gemma3_text", attn_logit_softcapping=50.0),
     "attn_logit_softcapping must be null, not 50.0"),
    (of_kind("gemma3_text", rope_parameters={"rope_type": "default"}),
     "rope_parameters.rope_type must be absent: there is an object for each type of layer"),
    (of_kind("smollm3", no_rope_layers=[1]), "no_rope_layers must be 0 or 1 for each of 2 layers"),
    (of_kind("smollm3", no_rope_layers=[1, 2]), "no_rope_layers must be 0 or 1 for each of 2"),
    (of_kind("smollm3", layer_types=["sliding_attention", "full_attention"]),
     "layer_types must be full_attention in all 2 layers"),
    (of_kind("gpt_oss", **MOE, swiglu_limit=5.0), "swiglu_limit must be 7.0 or null, not 5.0"),
    (of_kind("gpt_oss", **MOE, experts_per_token=4), "experts_per_token must be 2 or null, not 4"),
    (of_kind("qwen3_moe", **MOE, moe_intermediate_size=32, mlp_only_layers=[2]),
     "mlp_only_layers must be of 0..1, not [2]"),
    (of_kind("qwen3_moe", **MOE, moe_intermediate_size=32, decoder_sparse_step=9),
     "decoder_sparse_step must be such that a layer has experts, not 9"),
    (of_kind("deepseek_v3", **LATENT | {"n_group": 3}),
     "n_group must be a divisor of 8 experts, with 2 or more in each, not 3"),
    (of_kind("deepseek_v3", **LATENT | {"topk_group": 5}), "topk_group must be 1..4, the groups"),
    (of_kind("deepseek_v3", **LATENT | {"num_experts_per_tok": 5}),
     "num_experts_per_tok must be at most the experts of 2 groups, not 5"),
    (of_kind("deepseek_v3", **LATENT | {"num_key_value_heads": 2}),
     "num_key_value_heads must be 4, as each head has K and V, not 2"),
    (of_kind("deepseek_v3", **LATENT, qk_head_dim=100), "qk_head_dim must be 192 or null, not 100"),
    (of_kind("deepseek_v3", **LATENT, topk_method="greedy"),
     "topk_method must be 'noaux_tc' or null, not 'greedy'"),
    (of_kind("deepseek_v3", **LATENT | {"first_k_dense_replace": 2}),
     "first_k_dense_replace must be such that a layer has experts, not 2"),
    (of_kind("llama4_text", **MOE, moe_layers=[5]), "moe_layers must be of 0..1, not [5]"),
    (of_kind("llama4_text", **MOE, attention_chunk_size=None),
     "attention_chunk_size must be a whole number of 1 or more, not None"),
    (of_kind("phi3", partial_rotary_factor=0.2),
     "partial_rotary_factor must be such that an even number of elements turn, not 0.2"),
    (of_kind("phi3", rope_scaling={"type": "su", "short_factor": [1.0], "long_factor": [1.0]}),
     "rope_scaling.long_factor must be a list of 8 numbers, not [1.0]"),
    (of_kind("phi3", rope_scaling={"type": "linear", "factor": 2.0}),
     "rope_scaling.rope_type must be default or longrope, not 'linear'"),
    (llama(rope_scaling={"rope_type": "yarn", "factor": 2.0}, max_position_embeddings=None),
     "lacks rope_scaling.original_max_position_embeddings"),
    (llama(rope_scaling={"rope_type": "llama3", "factor": 8.0}),
     "lacks rope_scaling.high_freq_factor"),
    (llama(rope_scaling={"rope_type": "linear", "factor": "8"}),
     "rope_scaling.factor must be a number above 0, not '8'"),
    (llama(auto_map={"AutoConfig": "configuration_phi3.Phi3Config"}), "auto_map must be null in a"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "line"), CONTRADICTIONS)
def test_fields_that_contradict_each_other(fields, line):
    with pytest.raises(ConfigError) as error:
        Decoder.of("some/config.json", fields)
    text = str(error.value)
    assert text.startswith("some/config.json: ")
    assert line in text
    assert "\n" not in text


def test_half_a_configuration():
    """Seen to fail with a size that has a default of its own."""
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    more = {**MOE, **LATENT, "ffn_dim": 96}
    for kind in KINDS:
        for size in sizes:
            own = of_kind(kind, **more) if "moe" in kind or kind == "deepseek_v3" else of_kind(kind)
            with pytest.raises(ConfigError, match=f"x: lacks {size}$"):
                Decoder.of("x", {name: own[name] for name in own if name != size})
    for odd in (None, 3, [], "llama"):
        with pytest.raises(ConfigError, match="x: must be an object of fields"):
            Decoder.of("x", odd)
    with pytest.raises(ConfigError, match="x: lacks model_type"):
        Decoder.of("x", {})


def test_code_of_transformers_own_names():
    """Classes that transformers has by these names run in the place of the checkpoint's copies."""
    own = {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    assert Decoder.of("x", of_kind("phi3", auto_map=own)) == Decoder.of("x", of_kind("phi3"))
    assert Decoder.of("x", of_kind("deepseek_v3", **LATENT, auto_map={
        "AutoConfig": "configuration_deepseek.DeepseekV3Config"})).experts == 8  # fmt: skip


def test_how_weights_are_stored():
    fields = llama(quantization_config={"quant_method": "fp8"})
    assert Decoder.of("x", fields, stored=False) == Decoder.of("x", llama())
    with pytest.raises(ConfigError, match="quantization_config must be null in a model of llama"):
        Decoder.of("x", fields)


def test_sizes_that_follow_the_head():
    made = Decoder.of("x", llama())
    assert (made.rotary_size, made.attention_scale) == (16, 0.25)
    wider = dataclasses.replace(made, head_size=64)
    assert (wider.rotary_size, wider.attention_scale) == (64, 0.125)
    granite = Decoder.of("x", of_kind("granite", attention_multiplier=0.5))
    assert dataclasses.replace(granite, head_size=64).attention_scale == 0.5
