"""Random layers of a few hundred elements, one for each thing that a layer may have.

They fit the small machine with a unit CACHE. Every tensor is random, those of a new model's ones
and zeros too. The norms' addend is large. So nothing can be left out unseen.
"""

import contextlib
import dataclasses
import functools
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from golden.kllm.config import MachineConfig
from golden.kllm.layer.shape import CLAMPED_ALPHA, CLAMPED_LIMIT, LayerOptions
from golden.kllm.layer.weights import LayerWeights, layer_weights
from golden.kllm.model.compiler import ModelImage, compile_model
from golden.llm.checkpoint import Checkpoint
from golden.llm.kllm.reference import LayerInputs, check_reference, layer_inputs, reference
from golden.llm.structure import ClampedProduct, Expert, unify

TOKENS = 64
_SHARP = ("embed", "lm_head", "self_attn")  # matrices of ``hosted_model`` that stay large
_SIZES: dict[str, Any] = {
    "hidden_size": 80, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 50, "max_position_embeddings": 128,
    "pad_token_id": 0, "rms_norm_eps": 0.02,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Kind:
    """model_type of transformers, fields of its configuration, KV heads of ``layer_weights``.

    embedding: deviation of the embedding's elements, so that those of a token are about 1
    sinks: every layer gets random ones, as gpt-oss' have them
    clamped: the networks are as those of gpt-oss's experts
    """

    model_type: str
    fields: Mapping[str, Any]
    kv_heads: int | None = None
    embedding: float = 1.0
    sinks: bool = False
    clamped: bool = False


KINDS = {
    "biases of q, k, v": Kind("qwen2", {}),
    "all biases": Kind("llama", {"attention_bias": True, "mlp_bias": True}),
    "norms of heads": Kind("qwen3", {}),
    "norms of rows, norms after": Kind("olmo2", {}),
    "norms before and after": Kind(
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None,
         "query_pre_attn_scalar": 20},
        embedding=0.11,
    ),
    "a cap of scores": Kind(
        "gemma2",
        {"attn_logit_softcapping": 3.0, "final_logit_softcapping": None,
         "query_pre_attn_scalar": 20, "sliding_window": 7},
        embedding=0.11,
    ),
    "sinks": Kind("qwen3", {}, sinks=True),
    "GELU": Kind("gemma", {}, embedding=0.11),
    "a part of a head rotated": Kind(
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                             "partial_rotary_factor": 0.75}},
    ),
    "a window": Kind("mistral", {"sliding_window": 7}),
    "no RoPE": Kind("smollm3", {"no_rope_layers": [1, 0]}),
    "no gate": Kind("arcee", {"hidden_act": "gelu_pytorch_tanh"}),
    "factors": Kind(
        "granite",
        {"attention_multiplier": 0.3, "residual_multiplier": 0.4, "embedding_multiplier": 3.0,
         "logits_scaling": 2.0},
        embedding=0.33,
    ),
    "experts": Kind("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "experts, norms of heads": Kind(
        "qwen3_moe",
        {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
         "norm_topk_prob": True},
    ),
    "experts by their own weights": Kind(
        "qwen3_moe",
        {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "norm_topk_prob": False},
    ),
    "experts of gpt-oss": Kind(
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48,
         "sliding_window": 7,
         "rope_parameters": {
             "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "truncate": False,
             "original_max_position_embeddings": 32,
         }},
    ),
    "heads of 16": Kind("llama", {"head_dim": 16}),
    "heads of 8, biases": Kind("qwen2", {"head_dim": 8}),
    "heads of 24, a part rotated": Kind(
        "phi3",
        {"head_dim": 24,
         "rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                             "partial_rotary_factor": 0.5}},
    ),
    "one KV head": Kind("llama", {"num_key_value_heads": 1}, kv_heads=2),
    "exact GELU": Kind("llama", {"hidden_act": "gelu"}),
    "quick GELU, no gate": Kind("arcee", {"hidden_act": "quick_gelu"}),
    "clamped SwiGLU": Kind("llama", {"attention_bias": True, "mlp_bias": True}, clamped=True),
    "angles of windowed layers": Kind(
        "gemma3_text",
        {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"],
         "query_pre_attn_scalar": 20,
         "rope_parameters": {
             "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
         }},
        embedding=0.11,
    ),
}  # fmt: skip
# Models whose layers are of these kinds, and whose heads are of another.
MODELS = KINDS | {
    "a cap of logits": Kind(
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": 3.0,
         "query_pre_attn_scalar": 20},
        embedding=0.11,
    ),
    "both caps and windows": Kind(
        "gemma2",
        {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 3.0, "sliding_window": 7,
         "query_pre_attn_scalar": 20},
        embedding=0.11,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Example:
    """A layer of a model, and what it computes of ``TOKENS`` tokens."""

    weights: LayerWeights
    inputs: LayerInputs
    seen: Mapping[str, Tensor]


@functools.cache
def example(name: str, seed: int = 0) -> Example:
    """The second layer of a random model of ``KINDS``.

    ConfigError: its float reference is not what transformers computes.
    """
    kind = KINDS[name]
    model = random_model(kind, seed)
    ids = torch.randint(0, 50, (TOKENS,), generator=torch.Generator().manual_seed(seed))
    with _with_sinks(model) if kind.sinks else contextlib.nullcontext():
        inputs = layer_inputs(model, ids, 1)
    weights = layer_weights(model.model.layers[1], model.config, kind.kv_heads)
    seen = reference(weights, inputs.x, inputs.cos, inputs.sin)
    check_reference(seen["y"], inputs, 1)
    return Example(weights, inputs, seen)


@contextlib.contextmanager
def _with_sinks(model: Any) -> Iterator[None]:
    """The model attends by gpt-oss' function, which takes an attention's ``sinks``."""
    from transformers.models.gpt_oss import modeling_gpt_oss

    module: Any = sys.modules[type(model).__module__]
    own = module.eager_attention_forward
    module.eager_attention_forward = modeling_gpt_oss.eager_attention_forward
    try:
        yield
    finally:
        module.eager_attention_forward = own


def random_model(kind: Kind, seed: int = 0, unified: bool = True) -> Any:
    """A model whose layers do more than pass their input on.

    unified: with the modules that golden.llm.structure gives it; else those that are saved.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(kind.model_type, **{**_SIZES, **kind.fields})
        # Eager attention, which ``_with_sinks`` finds.
        more = {"attn_implementation": "eager"} if kind.sinks else {}
        model = AutoModelForCausalLM.from_config(config, **more).eval()
    if unified:
        unify(model)
    for layer in model.model.layers if kind.sinks else ():
        layer.self_attn.sinks = torch.nn.Parameter(torch.randn(config.num_attention_heads))
    for layer in model.model.layers if kind.clamped else ():
        network = layer.mlp
        linears = network.gate_proj, network.up_proj, network.down_proj
        with torch.no_grad():
            for linear in linears[:2]:  # so that many elements are beyond a limit
                linear.weight *= 6
        layer.mlp = Expert(linears, ClampedProduct(CLAMPED_ALPHA, CLAMPED_LIMIT))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("embed_tokens.weight"):
                parameter.normal_(0, kind.embedding)
            elif name.endswith("sinks"):  # near the largest scores of a token
                parameter.normal_(3, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.5)
            elif parameter.ndim > 1:  # 3: the matrices of all experts
                parameter *= 4
            else:
                parameter.uniform_(0.5, 2)
    return model


def hosted_model(
    config: MachineConfig, layers: int = 2, context: int = 24
) -> tuple[Any, ModelImage]:
    """A random model with heads of 16, and its memories for a machine whose host attends.

    Its networks give little next to its attention.
    """
    from golden.llm.kllm import pack

    fields = {"head_dim": 16, "hidden_size": 48, "num_hidden_layers": layers}
    model = random_model(Kind("llama", fields))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and not any(each in name for each in _SHARP):
                parameter /= 8
    loaded, options = Checkpoint(model, None, "random"), LayerOptions(attention="host", glu="exact")
    ids = torch.randint(0, 50, (96,), generator=torch.Generator().manual_seed(1))
    source = pack.trained(loaded, ids, options, config)
    layout = pack.checked_layout(loaded, options, config, None, context)
    quantized = pack.quantize_model(loaded, source, layout, [ids], lambda text: None)
    return model, compile_model(quantized, layout)
