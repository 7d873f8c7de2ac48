"""A decoder as the ``config.json`` of transformers states it. Pure Python.

golden and the simulator read configurations here alone, and every field is of one of four kinds:

- read: it gives a field of ``Decoder``, or transformers computes with it
- without effect on what a model computes: ``_NO_EFFECT``
- accepted at the value that changes nothing: null, and those of ``_NEUTRAL``
- refused: all others. A field that nobody reads may be what makes the model another one.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Self

from golden.config import Config, ConfigError, Range, bounded, declared, flag

_MOST = 1 << 30
_LINEARS = ("q", "k", "v", "o", "gate", "up", "down")
Fields = Mapping[str, Any]

# Bookkeeping, training, generation, and how a computation is cut without another result.
_NO_EFFECT = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation _experts_implementation_internal _flash_attn_2_enabled
    _model_name_or_path _name_or_path architectures dtype is_decoder is_llama_config model_name
    model_type name_or_path tokenizer_class torch_dtype torchscript transformers.js_config
    transformers_version unsloth_fixed unsloth_version use_bfloat16 use_cache
    chunk_size_feed_forward pretraining_tp
    activation_dropout attention_dropout classifier_dropout dropout embd_pdrop
    gradient_checkpointing hidden_dropout init_std initializer_range layerdrop neftune_noise_alpha
    output_router_logits resid_pdrop router_aux_loss_coef router_jitter_noise
    use_reentrant_checkpointing
    finetuning_task id2label label2id num_labels problem_type task_specific_params tf_legacy_loss
    begin_suppress_tokens bad_words_ids bos_token_id decoder_start_token_id diversity_penalty
    do_sample early_stopping encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty
    max_length max_sequence_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences
    output_attentions output_hidden_states output_scores pad_token_id prefix
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens temperature tokenizer_model_max_length top_k top_p typical_p unk_token_id
    use_return_dict
    """.split()
)
# Of kinds that do not read them: the values that change nothing. Null changes nothing either.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "alibi": (False,),
    "attention_bias": (False,),
    "attention_out_bias": (False,),
    "auto_map": (),  # code of its own, which nobody runs here
    "embedding_multiplier": (1,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "lm_head_bias": (False,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "output_projection": (True,),
    "partial_rotary_factor": (1,),
    "pruned_heads": ({},),
    "qk_layer_norms": (False,),
    "qk_layernorm": (False,),
    "qkv_bias": (False,),
    "quantization_config": (),  # weights that are stored as something else than numbers
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "tie_encoder_decoder": (False,),
    "use_bias": (False,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_qkv_bias": (False,),
    "use_sliding_window": (False,),
}
# Of each type of RoPE: what transformers reads beside its base.
_YARN = ("attention_factor", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim",
         "original_max_position_embeddings", "truncate")  # fmt: skip
_ROPE: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "original_max_position_embeddings"),
    "yarn": _YARN,
    "longrope": ("attention_factor", "factor", "long_factor", "original_max_position_embeddings",
                 "short_factor"),
    "llama3": ("factor", "high_freq_factor", "low_freq_factor",
               "original_max_position_embeddings"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder(Config):
    """A decoder-only model. All sizes are elements, none is rounded."""

    name: str  # of its file or folder
    architecture: str  # model_type of its configuration
    hidden: int = dataclasses.field(metadata=declared(Range(1, _MOST), "elements of a token"))
    layers: int = dataclasses.field(metadata=declared(Range(1, _MOST), "decoder layers"))
    heads: int = dataclasses.field(metadata=declared(Range(1, _MOST), "query heads"))
    kv_heads: int  # key and value heads, a divisor of heads
    head_size: int = dataclasses.field(metadata=declared(Range(1, _MOST), "elements of a head"))
    intermediate: int = dataclasses.field(
        metadata=declared(
            Range(1, _MOST), "elements inside the feed-forward network, of one expert"
        )
    )
    vocabulary: int = dataclasses.field(
        metadata=declared(Range(1, _MOST), "words of the vocabulary")
    )
    gated: bool = flag(True, "gate and up, or one matrix in their place")
    tied: bool = flag(False, "the head is the table of embeddings")
    experts: int = bounded(1, 1, _MOST, "feed-forward networks of a layer")
    active: int = 1  # experts that a token passes
    window: int = bounded(0, 0, _MOST, "tokens that a token attends, itself included; 0: all")
    positions: int = bounded(0, 0, _MOST, "longest context that the configuration states; 0: none")
    activation: str = "silu"  # in the feed-forward network, as transformers spells it
    norm: str = "RMSNorm"  # before attention and before the feed-forward network
    qk_norm: bool = False  # q and k are normalised before RoPE
    biases: tuple[str, ...] = ()  # linear layers that add a bias, of q, k, v, o, gate, up, down
    rope: str = "default"  # type of RoPE; empty: positions are learned

    def __post_init__(self) -> None:
        self._check_range("kv_heads", 1, self.heads)
        if self.heads % self.kv_heads:
            self._refuse("kv_heads", f"a divisor of {self.heads} heads")
        self._check_range("active", 1, self.experts)

    @classmethod
    def of(cls, name: str, fields: Any) -> Self:
        """The decoder of a configuration as JSON gives it.

        ConfigError, one line: a field that is missing, odd, or not known to be without effect.
        """
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{name}: must be an object of fields")
        kind = fields.get("model_type")
        if kind is None:
            raise ConfigError(f"{name}: lacks model_type")
        if not isinstance(kind, str) or kind not in KINDS:
            known = ", ".join(sorted(KINDS))
            raise ConfigError(f"{name}: model_type must be one of {known}, not {kind!r}")
        try:
            read = _Read(name, fields)
            made = KINDS[kind](read)
            read.check_rest(kind)
            return cls(name=name, architecture=kind, **made)
        except ConfigError as error:
            text = str(error)
            raise ConfigError(text if text.startswith(f"{name}:") else f"{name}: {text}") from None


class _Read:
    """Reads fields of a configuration, and knows which of them nobody has read."""

    def __init__(self, name: str, fields: Fields):
        self.name, self.fields = name, fields
        self.known: set[str] = set()

    def get(self, field: str, default: Any = None) -> Any:
        """``default``: where the field is absent, as transformers has it; a null stays one."""
        self.known.add(field)
        return self.fields.get(field, default)

    def refuse(self, field: str, wanted: str, value: Any) -> NoReturn:
        raise ConfigError(f"{self.name}: {field} must be {wanted}, not {_shown(value)}")

    def whole(self, field: str, default: int | None = None) -> int:
        value = self.get(field)
        if value is None:
            if default is None:
                raise ConfigError(f"{self.name}: lacks {field}")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(field, "a whole number of 1 or more", value)
        return value

    def truth(self, field: str, default: bool = False) -> bool:
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(field, "true or false", value)
        return value

    def text(self, field: str, default: str) -> str:
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, str):
            self.refuse(field, "a text", value)
        return value

    def fixed(self, field: str, value: Any) -> None:
        """Refuse another value than what transformers computes with, or null."""
        if self.get(field) not in (None, value):
            self.refuse(field, f"{_shown(value)} or null", self.fields[field])

    def check_rest(self, kind: str) -> None:
        """ConfigError: a field that this kind of model does not read, unless it is neutral."""
        for field in sorted(self.fields.keys() - self.known - _NO_EFFECT):
            value, neutral = self.fields[field], _NEUTRAL.get(field)
            if value is None:
                continue
            if neutral is None:
                raise ConfigError(
                    f"{self.name}: {field} must not be in a configuration of {kind}, which is not "
                    f"known to read it: remove {_shown(value)} if it has no effect"
                )
            # 1 == True: a bool is neutral among bools, a number among numbers.
            if not any(isinstance(value, bool) == isinstance(n, bool) and value == n
                       for n in neutral):  # fmt: skip
                wanted = "".join(f"{_shown(n)} or " for n in neutral[:1])
                self.refuse(field, f"{wanted}null in a model of {kind}", value)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:56]} ..."


def _sizes(read: _Read, kv_heads: int | None = None, head_size: int | None = None) -> Fields:
    """Sizes that all kinds state. kv_heads, head_size: where the configuration has no such field.

    A null means one KV head per query head, and heads that share ``hidden_size``.
    """
    heads = read.whole("num_attention_heads")
    hidden = read.whole("hidden_size")
    if "num_key_value_heads" in read.fields or kv_heads is None:
        kv_heads = heads
    if "head_dim" in read.fields or head_size is None:
        head_size = max(hidden // heads, 1)
        if read.get("head_dim") is None and hidden % heads:
            raise ConfigError(
                f"{read.name}: num_attention_heads must divide hidden_size {hidden}, not {heads}"
            )
    return {
        "hidden": hidden,
        "layers": read.whole("num_hidden_layers"),
        "heads": heads,
        "kv_heads": read.whole("num_key_value_heads", kv_heads),
        "head_size": read.whole("head_dim", head_size),
        "vocabulary": read.whole("vocab_size"),
        "positions": read.whole("max_position_embeddings", 0),
    }


def _rope(read: _Read) -> str:
    """The type of RoPE. ConfigError: it has a field that its type does not read."""
    read.get("rope_theta")
    both = {name: read.get(name) for name in ("rope_scaling", "rope_parameters")}
    given = {name: value for name, value in both.items() if value is not None}
    if len(given) == 2:
        read.refuse("rope_scaling", "null beside rope_parameters", given["rope_scaling"])
    for name, value in given.items():
        if not isinstance(value, Mapping):
            read.refuse(name, "an object", value)
        kind = value.get("rope_type", value.get("type", "default"))
        if not isinstance(kind, str) or kind not in _ROPE:
            read.refuse(f"{name}.rope_type", f"one of {', '.join(_ROPE)}", kind)
        known = {"rope_type", "type", "rope_theta", *_ROPE[kind]}
        for field in sorted(value.keys() - known):
            if value[field] is None or (field == "partial_rotary_factor" and value[field] == 1):
                continue
            read.refuse(f"{name}.{field}", f"null with rope_type {kind}", value[field])
        return kind
    return "default"


def _layer_types(read: _Read, window: int, layers: int) -> None:
    """ConfigError: the layers attend otherwise than all in the window, or all without one."""
    types = read.get("layer_types")
    wanted = "sliding_attention" if window else "full_attention"
    if types is not None and types != [wanted] * layers:
        read.refuse("layer_types", f"{wanted} in all {layers} layers", types)


def _base(read: _Read, sizes: Fields) -> dict[str, Any]:
    """Reads the fields that every kind of LLaMA has: RMSNorm, RoPE, a gated network."""
    read.get("rms_norm_eps")
    return {
        **sizes,
        "intermediate": read.whole("intermediate_size"),
        "activation": read.text("hidden_act", "silu"),
        "rope": _rope(read),
        "tied": read.truth("tie_word_embeddings", False),
    }


def _llama(read: _Read) -> dict[str, Any]:
    made = _base(read, _sizes(read))
    _layer_types(read, 0, made["layers"])
    biases = _LINEARS[:4] if read.truth("attention_bias") else ()
    return made | {"biases": biases + (_LINEARS[4:] if read.truth("mlp_bias") else ())}


def _windowed(read: _Read, window: int | None) -> dict[str, Any]:
    """Reads a decoder of Mistral's kind; window: where the configuration has no such field."""
    made = _base(read, _sizes(read, kv_heads=8))
    own = read.get("sliding_window", window)
    if own is not None and "sliding_window" in read.fields:
        own = read.whole("sliding_window")
    _layer_types(read, own or 0, made["layers"])
    return made | {"window": own or 0}


def _mistral(read: _Read) -> dict[str, Any]:
    return _windowed(read, 4096)


def _mixtral(read: _Read) -> dict[str, Any]:
    return _windowed(read, None) | {
        "experts": read.whole("num_local_experts"),
        "active": read.whole("num_experts_per_tok"),
    }


def _qwen_window(read: _Read, layers: int) -> int:
    """Qwen's first layers attend all tokens, unless ``layer_types`` says which do."""
    types, full = read.get("layer_types"), read.get("max_window_layers", 28)
    is_windowed = read.truth("use_sliding_window")
    is_windowed = is_windowed and read.get("sliding_window", 4096) is not None
    if types is not None:
        _layer_types(read, int(is_windowed and types != ["full_attention"] * layers), layers)
        is_windowed = is_windowed and types[0] == "sliding_attention"
    elif is_windowed and full != 0:
        if not isinstance(full, int) or full < layers:
            raise ConfigError(
                f"{read.name}: max_window_layers must be 0 or {layers}, not {full!r}: "
                "a window of some layers is not supported"
            )
        is_windowed = False
    read.known.add("sliding_window")
    return read.whole("sliding_window", 4096) if is_windowed else 0


def _qwen2(read: _Read) -> dict[str, Any]:
    made = _base(read, _sizes(read, kv_heads=32))
    return made | {"window": _qwen_window(read, made["layers"]), "biases": _LINEARS[:3]}


def _qwen3(read: _Read) -> dict[str, Any]:
    made = _base(read, _sizes(read, kv_heads=32, head_size=128))
    biases = _LINEARS[:4] if read.truth("attention_bias") else ()
    window = _qwen_window(read, made["layers"])
    return made | {"window": window, "biases": biases, "qk_norm": True}


def _opt(read: _Read) -> dict[str, Any]:
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
        "biases": ("q", "k", "v", "o", "up", "down") if read.truth("enable_bias", True) else (),
        "rope": "",
    }


# model_type to how its fields are read.
KINDS: dict[str, Callable[[_Read], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "opt": _opt,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}

# Of a GGUF file's model: what transformers reads, and what changes nothing at a value.
_GGUF_READ = frozenset(
    """
    attention.head_count attention.head_count_kv attention.layer_norm_rms_epsilon block_count
    context_length embedding_length feed_forward_length rope.freq_base tensor_data_layout vocab_size
    """.split()
)
_GGUF_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0, 1),
    "expert_used_count": (0, 1),
    "rope.scaling.finetuned": (False,),
    "rope.scaling.type": ("none",),
    "use_parallel_residual": (False,),
}


def check_gguf(name: str, header: Mapping[str, Any], tensors: Iterable[str]) -> None:
    """ConfigError: a GGUF file states what transformers leaves out when it reads the file.

    header: its keys with their values; tensors: names
    """
    kind = str(header.get("general.architecture"))
    own = {
        key.removeprefix(f"{kind}."): value
        for key, value in header.items()
        if key.startswith(f"{kind}.")
    }
    heads = own.get("attention.head_count")
    width = own.get("embedding_length")
    size = width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
    if kind in ("llama", "mistral"):
        size = own.get("rope.dimension_count", size)
    sizes = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    for key, value in sorted(own.items()):
        neutral = (size,) if key in sizes else _GGUF_NEUTRAL.get(key)
        if key in _GGUF_READ or (neutral is not None and value in neutral):
            continue
        wanted = "absent" if neutral is None else _shown(neutral[0])
        raise ConfigError(
            f"{name}: {kind}.{key} must be {wanted}, as transformers does not read it, "
            f"not {_shown(value)}"
        )
    for each in tensors:
        if each.startswith("rope_"):
            raise ConfigError(
                f"{name}: has the tensor {each}, which scales RoPE and which transformers leaves "
                "out: take the checkpoint's folder"
            )
