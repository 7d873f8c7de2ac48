"""The readers of configurations: one function for each ``model_type``. Pure Python."""

import math
from collections.abc import Callable
from typing import Any

from golden.config import ConfigError
from golden.llm.decoder.reading import Read
from golden.llm.decoder.rope import PHI3, partial_rope, rope, rope_by_layer

_ATTENTION = ("q", "k", "v", "o")
_NETWORK = ("gate", "up", "down")
_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
Made = dict[str, Any]


def _sizes(read: Read, kv_heads: int | None = None, head_size: int | None = None) -> Made:
    """Sizes that all kinds state. kv_heads, head_size: where the configuration has no such field.

    A null means one KV head per query head, and heads that share ``hidden_size``.
    """
    heads = read.whole("num_attention_heads")
    hidden = read.whole("hidden_size")
    shared = max(hidden // heads, 1)
    if (read.get("head_dim", head_size) is None) and hidden % heads:
        raise ConfigError(
            f"{read.name}: {read.place}num_attention_heads must divide hidden_size {hidden}, "
            f"not {heads}"
        )
    groups = read.whole("num_key_value_heads", absent=kv_heads or heads, null=heads)
    if heads % groups:
        read.refuse("num_key_value_heads", f"a divisor of {heads} heads", groups)
    return {
        "hidden": hidden,
        "layers": read.whole("num_hidden_layers"),
        "heads": heads,
        "kv_heads": groups,
        "head_size": read.whole("head_dim", absent=head_size or shared, null=shared),
        "vocabulary": read.whole("vocab_size"),
        "positions": read.whole("max_position_embeddings", absent=0, null=0),
    }


def _network(read: Read, tied: bool = False) -> Made:
    """Fields that every kind of LLaMA has: RMSNorm and a gated network."""
    return {
        "intermediate": read.whole("intermediate_size"),
        "activation": read.text("hidden_act", "silu"),
        "norm_eps": read.number("rms_norm_eps", absent=_EPS.get(read.kind, 1e-6)),
        "tied": read.truth("tie_word_embeddings", tied),
    }


# Where transformers has another default.
_EPS = dict.fromkeys(("phi3", "olmo2", "gpt_oss", "llama4_text", "mixtral"), 1e-5)


def _attention_biases(read: Read, absent: bool = False) -> tuple[str, ...]:
    return _ATTENTION if read.truth("attention_bias", absent) else ()


def _rotated(made: Made, read: Read) -> Made:
    """``made`` with RoPE of whole heads."""
    if made["head_size"] % 2:
        read.refuse("head_dim", "even, as RoPE turns pairs", made["head_size"])
    return made


# Layers


def _types(read: Read, layers: int, known: tuple[str, ...]) -> list[str] | None:
    """``layer_types``; ConfigError: not one of ``known`` for each layer."""
    types = read.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != layers or not set(map(str, types)) <= {*known}:
        wanted = known[0] if len(known) == 1 else f"one of {', '.join(known)}"
        read.refuse("layer_types", f"{wanted} in all {layers} layers", types)
    return types


def _some(layers: list[bool]) -> tuple[bool, ...]:
    """Layers of which something holds, as Decoder has them; empty: it holds of all, or of none."""
    return () if len(set(layers)) == 1 else tuple(layers)


def _one_type(read: Read, window: int, layers: int) -> Made:
    """ConfigError: the layers attend otherwise than all in the window, or all without one."""
    _types(read, layers, (_SLIDING if window else _FULL,))
    return {"window": window}


def _windows(read: Read, window: int, layers: int, absent: list[bool]) -> Made:
    """Window and the layers that attend in it. absent: these layers without ``layer_types``."""
    types = _types(read, layers, (_FULL, _SLIDING) if window else (_FULL,))
    inside = absent if types is None else [each == _SLIDING for each in types]
    if not window or not any(inside):
        return {"window": 0}
    return {"window": window, "sliding": _some(inside)}


def _window_of_some(read: Read, absent: int) -> int:
    """The window of kinds whose ``layer_types`` say which layers attend in it."""
    return read.whole("sliding_window", absent=absent, null=0)


def _rotations(read: Read, layers: int) -> list[bool]:
    """Layers with RoPE: ``no_rope_layers``, or all but each ``no_rope_layer_interval``-th."""
    interval = read.whole("no_rope_layer_interval", absent=4)
    stated = read.numbers("no_rope_layers")
    if stated is None or (not stated and read.kind == "llama4_text"):
        return [bool((layer + 1) % interval) for layer in range(layers)]
    if len(stated) != layers or not set(stated) <= {0, 1}:
        read.refuse("no_rope_layers", f"0 or 1 for each of {layers} layers", stated)
    return [each == 1 for each in stated]


# Kinds without experts


def _llama(read: Read) -> Made:
    sizes = _rotated(_sizes(read), read)
    biases = _attention_biases(read)
    return {
        **sizes,
        **_network(read),
        **rope(read),
        **_one_type(read, 0, sizes["layers"]),
        "biases": biases + (_NETWORK if read.truth("mlp_bias") else ()),
    }


def _windowed(read: Read, window: int, base: float) -> Made:
    """A decoder of Mistral's kind; window: where the configuration has no such field."""
    sizes = _rotated(_sizes(read, kv_heads=8), read)
    own = read.whole("sliding_window", absent=window, null=0)
    return {
        **sizes,
        **_network(read),
        **rope(read, base),
        **_one_type(read, own, sizes["layers"]),
    }


def _mistral(read: Read) -> Made:
    return _windowed(read, 4096, 10_000.0)


def _phi3(read: Read) -> Made:
    """Phi-3: q, k and v are one matrix, gate and up another; some elements of a head turn."""
    sizes = _sizes(read)
    return {
        **sizes,
        **_network(read),
        **partial_rope(read, sizes["head_size"], PHI3),
        **_one_type(read, _window_of_some(read, 0), sizes["layers"]),
    }


def _qwen(read: Read, head_size: int | None) -> Made:
    """Qwen's first ``max_window_layers`` attend all tokens, unless ``layer_types`` says which."""
    sizes = _rotated(_sizes(read, kv_heads=32, head_size=head_size), read)
    layers = sizes["layers"]
    window = _window_of_some(read, 4096)
    window = window if read.truth("use_sliding_window") else 0
    full = read.whole("max_window_layers", absent=28, least=0)
    absent = [layer >= full for layer in range(layers)]
    return {
        **sizes,
        **_network(read),
        **rope(read),
        **_windows(read, window, layers, absent),
    }


def _qwen2(read: Read) -> Made:
    return _qwen(read, None) | {"biases": _ATTENTION[:3]}


def _qwen3(read: Read) -> Made:
    return _qwen(read, 128) | {"biases": _attention_biases(read), "qk_norm": "head"}


def _gemma(read: Read) -> Made:
    """Gemma: weights of norms are 1 + w, embeddings are scaled, GELU is the one of tanh."""
    sizes = _rotated(_sizes(read, kv_heads=16, head_size=256), read)
    made = {**sizes, **_network(read, tied=True), **rope(read)}
    activation = read.text("hidden_act", "gelu_pytorch_tanh")
    made["activation"] = "gelu_pytorch_tanh" if activation == "gelu" else activation
    read.fixed("hidden_activation", made["activation"])
    return {
        **made,
        **_one_type(read, 0, sizes["layers"]),
        "biases": _attention_biases(read),
        "norm_offset": True,
        "embedding_scale": sizes["hidden"] ** 0.5,
    }


def _gemma_of_windows(read: Read, absent: Callable[[int], list[bool]]) -> Made:
    """Fields of Gemma 2 and 3. absent: layers with a window, where ``layer_types`` is absent."""
    sizes = _rotated(_sizes(read, kv_heads=4, head_size=256), read)
    activation = read.text("hidden_activation", "gelu_pytorch_tanh")
    read.fixed("hidden_act", activation)
    window = _window_of_some(read, 4096)
    read.fixed("sliding_window_size", window)
    inside = absent(sizes["layers"])
    if not window and read.get("layer_types") is None and any(inside):
        read.refuse("sliding_window", "a whole number of 1 or more", None)
    return {
        **sizes,
        "intermediate": read.whole("intermediate_size"),
        "activation": activation,
        "norm_eps": read.number("rms_norm_eps", absent=1e-6),
        "tied": read.truth("tie_word_embeddings", True),
        **_windows(read, window, sizes["layers"], inside),
        "biases": _attention_biases(read),
        "norm_offset": True,
        "norm_places": "both",
        "embedding_scale": sizes["hidden"] ** 0.5,
        "attention_scale": read.number("query_pre_attn_scalar", absent=256) ** -0.5,
    }


def _cap(read: Read, field: str, absent: float) -> float:
    """A soft cap; a null is none."""
    if field not in read.fields:
        read.get(field)
        return absent
    return 0.0 if read.get(field) is None else read.number(field)


def _gemma2(read: Read) -> Made:
    made = _gemma_of_windows(read, lambda layers: [not layer % 2 for layer in range(layers)])
    return {
        **made,
        **rope(read),
        "attention_cap": _cap(read, "attn_logit_softcapping", 50.0),
        "logit_cap": _cap(read, "final_logit_softcapping", 30.0),
    }


def _gemma3(read: Read) -> Made:
    period = read.whole("sliding_window_pattern", absent=6)
    read.unread("_sliding_window_pattern")  # transformers writes it beside layer_types
    made = _gemma_of_windows(
        read, lambda layers: [bool((layer + 1) % period) for layer in range(layers)]
    )
    read.fixed("attn_logit_softcapping", None)  # transformers does not compute with it
    return {
        **made,
        **rope_by_layer(read),
        "logit_cap": _cap(read, "final_logit_softcapping", 0.0),
        "qk_norm": "head",
    }


def _olmo2(read: Read) -> Made:
    sizes = _rotated(_sizes(read), read)
    return {
        **sizes,
        **_network(read),
        **rope(read),
        **_one_type(read, 0, sizes["layers"]),
        "biases": _attention_biases(read),
        "qk_norm": "row",
        "norm_places": "after",
    }


def _granite(read: Read) -> Made:
    return {
        **_llama(read),
        "embedding_scale": read.number("embedding_multiplier", absent=1.0),
        "residual_scale": read.number("residual_multiplier", absent=1.0),
        "attention_scale": read.number("attention_multiplier", absent=1.0),
        "logit_scale": 1.0 / read.number("logits_scaling", absent=1.0),
    }


def _smollm3(read: Read) -> Made:
    sizes = _rotated(_sizes(read, kv_heads=4), read)
    layers = sizes["layers"]
    turned = _rotations(read, layers)
    window = read.whole("sliding_window", absent=0, null=0)
    window = window if read.truth("use_sliding_window") else 0
    read.unread("max_window_layers")
    biases = _attention_biases(read)
    return {
        **sizes,
        **_network(read, tied=True),
        **rope(read, 2_000_000.0),
        **_windows(read, window, layers, [not each for each in turned]),
        "unrotated": () if all(turned) else tuple(not each for each in turned),
        "biases": biases + (_NETWORK if read.truth("mlp_bias") else ()),
    }


def _starcoder2(read: Read) -> Made:
    """StarCoder2: LayerNorm with bias, one matrix before the activation."""
    sizes = _rotated(_sizes(read, kv_heads=2), read)
    biases = (*_ATTENTION, "up", "down")
    return {
        **sizes,
        "intermediate": read.whole("intermediate_size"),
        "activation": read.text("hidden_act", "gelu_pytorch_tanh"),
        "gated": False,
        "norm": "LayerNorm",
        "norm_eps": read.number("norm_epsilon", absent=1e-5),
        "tied": read.truth("tie_word_embeddings", True),
        **rope(read),
        **_one_type(read, _window_of_some(read, 0), sizes["layers"]),
        "biases": biases if read.truth("use_bias", True) else (),
    }


def _opt(read: Read) -> Made:
    """OPT: LayerNorm, learned positions, one matrix before the activation."""
    sizes = _sizes(read)
    if sizes["head_size"] * sizes["heads"] != sizes["hidden"]:
        read.refuse("head_dim", "hidden_size / num_attention_heads", sizes["head_size"])
    if sizes["kv_heads"] != sizes["heads"]:
        read.refuse("num_key_value_heads", f"null or {sizes['heads']}", sizes["kv_heads"])
    for field, value in (
        ("word_embed_proj_dim", sizes["hidden"]), ("do_layer_norm_before", True),
        ("_remove_final_layer_norm", False), ("layer_norm_elementwise_affine", True),
    ):  # fmt: skip
        read.fixed(field, value)
    return {
        **sizes,
        "intermediate": read.whole("ffn_dim"),
        "activation": read.text("activation_function", "relu"),
        "gated": False,
        "tied": read.truth("tie_word_embeddings", True),
        "norm": "LayerNorm",
        "norm_eps": 1e-5,
        "biases": (*_ATTENTION, "up", "down") if read.truth("enable_bias", True) else (),
        "rope": "",
    }


# Kinds with experts


def _experts(read: Read, field: str = "num_local_experts", active: int | None = None) -> Made:
    """The number of experts, and of those that a token passes, ``active`` if absent."""
    experts = read.whole(field)
    passed = read.whole("num_experts_per_tok", absent=active)
    if passed > experts:
        read.refuse("num_experts_per_tok", f"1..{experts}, the experts", passed)
    return {"experts": experts, "active": passed}


def _count_field(read: Read) -> str:
    """The field of the number of experts; its two names are one to transformers."""
    both = [name for name in ("num_experts", "num_local_experts") if name in read.fields]
    if len(both) == 2:
        read.fixed("num_experts", read.get("num_local_experts"))
    return both[0] if both else "num_local_experts"


def _plain_layers(read: Read, field: str, layers: list[bool]) -> tuple[bool, ...]:
    """Layers of one plain network, as Decoder has them. ConfigError: all are; by ``field``."""
    if all(layers):
        read.refuse(field, "such that a layer has experts", read.get(field))
    return tuple(layers) if any(layers) else ()


def _mixtral(read: Read) -> Made:
    made = _windowed(read, 0, 1_000_000.0)
    return {
        **made,
        **_experts(read, _count_field(read), 2),
        "router": "softmax",
        "router_norm": True,
    }


def _gpt_oss(read: Read) -> Made:
    """gpt-oss: sinks, a clamped SwiGLU, biases also of experts and of the router."""
    sizes = _rotated(_sizes(read, kv_heads=8, head_size=64), read)
    layers = sizes["layers"]
    read.fixed("hidden_act", "silu")
    read.fixed("swiglu_alpha", 1.702)
    read.fixed("swiglu_limit", 7.0)
    read.unread("initial_context_length")
    yarn = {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 4096,
    }  # fmt: skip
    experts = _experts(read, _count_field(read), 4)
    read.fixed("experts_per_token", experts["active"])
    window = _window_of_some(read, 128)
    inside = [not layer % 2 for layer in range(layers)]
    if not window and read.get("layer_types") is None:
        read.refuse("sliding_window", "a whole number of 1 or more", None)
    return {
        **sizes,
        **_network(read),
        "activation": "gpt_oss",
        **rope(read, 150_000.0, yarn),
        **_windows(read, window, layers, inside),
        "sinks": True,
        "biases": (*_attention_biases(read, True), *_NETWORK, "router"),
        **experts,
        "router": "topk_softmax",
        "router_norm": True,
    }


def _qwen_experts(read: Read, layers: int, active: int) -> Made:
    """Experts of Qwen, and the layers that have one network in their place."""
    step = read.whole("decoder_sparse_step", absent=1)
    stated = read.numbers("mlp_only_layers") or []
    if any(each >= layers for each in stated):
        read.refuse("mlp_only_layers", f"of 0..{layers - 1}", stated)
    dense = [layer in stated or bool((layer + 1) % step) for layer in range(layers)]
    return {
        "intermediate": read.whole("moe_intermediate_size"),
        **_experts(read, _count_field(read), active),
        "dense": _plain_layers(read, "decoder_sparse_step", dense),
        "dense_intermediate": read.whole("intermediate_size"),
        "router": "softmax",
        "router_norm": read.truth("norm_topk_prob"),
    }


def _qwen3_moe(read: Read) -> Made:
    sizes = _rotated(_sizes(read, kv_heads=4), read)
    layers = sizes["layers"]
    window = _window_of_some(read, 4096)
    window = window if read.truth("use_sliding_window") else 0
    read.unread("max_window_layers")
    return {
        **sizes,
        **_network(read),
        **rope(read),
        **_one_type(read, window, layers),
        "biases": _attention_biases(read),
        "qk_norm": "head",
        **_qwen_experts(read, layers, 8),
    }


def _qwen2_moe(read: Read) -> Made:
    """Qwen1.5 and 2 with experts: one shared expert, whose output a gate of its own scales."""
    sizes = _rotated(_sizes(read, kv_heads=16), read)
    layers = sizes["layers"]
    is_windowed = read.truth("use_sliding_window")
    window = read.whole("sliding_window", absent=4096, null=0, least=1 if is_windowed else 0)
    full = read.whole("max_window_layers", absent=28, least=0)
    inside = [not layer % 2 and layer < full for layer in range(layers)]
    return {
        **sizes,
        **_network(read),
        **rope(read),
        **_windows(read, window if is_windowed else 0, layers, inside),
        "biases": _ATTENTION[:3] if read.truth("qkv_bias", True) else (),
        **_qwen_experts(read, layers, 4),
        "shared": read.whole("shared_expert_intermediate_size", absent=5632),
        "shared_gate": True,
    }


def _deepseek_v3(read: Read) -> Made:
    """DeepSeek-V3: latent attention, groups of experts, plain networks in the first layers."""
    rotary = read.whole("qk_rope_head_dim", absent=64)
    plain = read.whole("qk_nope_head_dim", absent=128)
    read.fixed("head_dim", rotary)
    read.fixed("qk_head_dim", rotary + plain)
    for field, value in (
        ("moe_layer_freq", 1), ("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"),
    ):  # fmt: skip
        read.fixed(field, value)
    # Further modules predict more tokens at a time; the decoder is one without them.
    read.unread(
        "num_nextn_predict_layers", "num_mtp_layers", "aux_loss_alpha", "seq_aux", "ep_size"
    )
    heads, layers = read.whole("num_attention_heads"), read.whole("num_hidden_layers")
    groups = read.whole("num_key_value_heads", absent=128, null=heads)
    if groups != heads:
        read.refuse("num_key_value_heads", f"{heads}, as each head has K and V", groups)
    if rotary % 2:
        read.refuse("qk_rope_head_dim", "even, as RoPE turns pairs", rotary)
    rank = read.whole("q_lora_rank", absent=1536, null=0)
    first = read.whole("first_k_dense_replace", absent=3, least=0)
    moe = read.whole("moe_intermediate_size")
    shared = read.whole("n_shared_experts", absent=1)
    names = [name for name in ("n_routed_experts", "num_local_experts") if name in read.fields]
    if len(names) == 2:
        read.fixed("num_local_experts", read.get("n_routed_experts"))
    biases = (("q_down",) if rank else ()) + ("kv_down", "o")
    turned = rope(read)
    return {
        "hidden": read.whole("hidden_size"),
        "layers": layers,
        "heads": heads,
        "kv_heads": heads,
        "head_size": rotary + plain,
        "rotary_size": rotary,
        "rope_head_size": rotary,
        "value_size": read.whole("v_head_dim", absent=128),
        "query_rank": rank,
        "kv_rank": read.whole("kv_lora_rank", absent=512),
        "vocabulary": read.whole("vocab_size"),
        "positions": read.whole("max_position_embeddings", absent=0, null=0),
        **_network(read),
        **turned,
        **_one_type(read, 0, layers),
        "rope_interleaved": read.truth("rope_interleave", True, null=False),
        "attention_scale": (rotary + plain) ** -0.5 * _mscale(turned),
        "biases": biases if read.truth("attention_bias") else (),
        "intermediate": moe,
        **_experts(read, names[0] if names else "n_routed_experts", 8),
        **_groups(read, read.whole(names[0]) if names else 256),
        "shared": moe * shared,
        "dense": _plain_layers(read, "first_k_dense_replace", [n < first for n in range(layers)]),
        "dense_intermediate": read.whole("intermediate_size"),
        "router": "sigmoid",
        "router_norm": read.truth("norm_topk_prob", True, null=False),
        "router_scale": read.number("routed_scaling_factor", absent=2.5),
    }


def _mscale(turned: Made) -> float:
    """The factor of the scores by which YaRN makes up for longer contexts."""
    stated = dict(turned["rope_scaling"])
    scale, factor = stated.get("mscale_all_dim"), stated.get("factor", 1.0)
    if not scale or factor <= 1:
        return 1.0
    return float((0.1 * scale * math.log(factor) + 1.0) ** 2)


def _groups(read: Read, experts: int) -> Made:
    groups = read.whole("n_group", absent=8)
    chosen = read.whole("topk_group", absent=4)
    active = read.whole("num_experts_per_tok", absent=8)
    # A group's score is the sum of its two best.
    if experts % groups or experts // groups < 2:
        read.refuse("n_group", f"a divisor of {experts} experts, with 2 or more in each", groups)
    if chosen > groups:
        read.refuse("topk_group", f"1..{groups}, the groups", chosen)
    if active > chosen * (experts // groups):
        read.refuse("num_experts_per_tok", f"at most the experts of {chosen} groups", active)
    return {"expert_groups": groups, "active_groups": chosen}


def _llama4(read: Read) -> Made:
    """Llama 4: chunks, norms after RoPE, one shared expert, the router scales what it chose."""
    sizes = _rotated(_sizes(read, kv_heads=8, head_size=128), read)
    layers = sizes["layers"]
    turned = _rotations(read, layers)
    types = _types(read, layers, (_FULL, _CHUNKED))
    inside = turned if types is None else [each == _CHUNKED for each in types]
    chunk = read.whole("attention_chunk_size", absent=8192, null=0)
    if any(inside) and not chunk:
        read.refuse("attention_chunk_size", "a whole number of 1 or more", None)
    step = read.whole("interleave_moe_layer_step", absent=1)
    stated = read.numbers("moe_layers")
    if stated is None:
        stated = list(range(step - 1, layers, step))
    if any(each >= layers for each in stated):
        read.refuse("moe_layers", f"of 0..{layers - 1}", stated)
    tempered = read.truth("attn_temperature_tuning", True)
    floor = read.whole("floor_scale", absent=8192)
    temper = read.number("attn_scale", absent=0.1)
    made = {**sizes, **_network(read), **rope(read, 500_000.0)}
    return {
        **made,
        "chunk": chunk if any(inside) else 0,
        "sliding": _some(inside),
        "unrotated": () if all(turned) else tuple(not each for each in turned),
        "rope_interleaved": True,
        "qk_norm": "after" if read.truth("use_qk_norm", True) else "",
        "temper_floor": floor if tempered else 0,
        "temper_scale": temper if tempered else 0.0,
        "biases": _attention_biases(read),
        **_experts(read, _count_field(read), 1),
        "shared": made["intermediate"],
        "dense": _plain_layers(read, "moe_layers", [n not in stated for n in range(layers)]),
        "dense_intermediate": read.whole("intermediate_size_mlp", absent=16384),
        "router": "sigmoid_input",
    }


# model_type to how its fields are read.
KINDS: dict[str, Callable[[Read], Made]] = {
    "deepseek_v3": _deepseek_v3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
    "granite": _granite,
    "llama": _llama,
    "llama4_text": _llama4,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "opt": _opt,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
    "starcoder2": _starcoder2,
}
# Of a model that sees and reads: the model_type of the decoder inside, and fields of its
# text_config that transformers has defaults for. Its other fields are about pictures.
INSIDE: dict[str, tuple[str, Made]] = {
    "gemma3": ("gemma3_text", {"num_attention_heads": 8, "vocab_size": 262_208}),
    "llama4": ("llama4_text", {}),
}
PICTURES = frozenset(
    """
    boi_token_id boi_token_index eoi_token_id eoi_token_index image_token_id image_token_index
    mm_tokens_per_image vision_config
    """.split()
)
