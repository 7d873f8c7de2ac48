"""Reads fields of a configuration, and knows which of them nobody has read. Pure Python."""

from collections.abc import Mapping
from typing import Any, NoReturn

from golden.config import ConfigError

Fields = Mapping[str, Any]

# Bookkeeping, training, generation, and how a computation is cut without another result.
NO_EFFECT = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation _experts_implementation_internal _flash_attn_2_enabled
    _model_name_or_path _name_or_path architectures dtype is_decoder is_llama_config model_name
    model_type name_or_path tokenizer_class torch_dtype torchscript transformers.js_config
    transformers_version unsloth_fixed unsloth_version use_bfloat16 use_cache
    cache_implementation chunk_size_feed_forward pretraining_tp
    activation_dropout attention_dropout classifier_dropout dropout embd_pdrop embedding_dropout
    gradient_checkpointing hidden_dropout init_std initializer_range layerdrop neftune_noise_alpha
    output_router_logits resid_pdrop residual_dropout router_aux_loss_coef router_jitter_noise
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
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "alibi": (False,),
    "attention_bias": (False,),
    "attention_out_bias": (False,),
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


class Read:
    """The fields of a configuration.

    ``absent`` is what transformers takes where there is no such field, ``null`` what it takes for
    a null. Without them there must be a field, and it must not be null.
    """

    def __init__(self, name: str, fields: Fields, kind: str, place: str = ""):
        """place: where the fields are inside a configuration, as ``text_config.``."""
        self.name, self.fields, self.kind, self.place = name, fields, kind, place
        self.known: set[str] = set()

    def get(self, field: str, absent: Any = None) -> Any:
        self.known.add(field)
        return self.fields.get(field, absent)

    def refuse(self, field: str, wanted: str, value: Any) -> NoReturn:
        raise ConfigError(f"{self.name}: {self.place}{field} must be {wanted}, not {shown(value)}")

    def lacks(self, field: str) -> NoReturn:
        raise ConfigError(f"{self.name}: lacks {self.place}{field}")

    def _value(self, field: str, absent: Any, null: Any) -> tuple[Any, bool]:
        """The value, and whether it is a default."""
        self.known.add(field)
        value = self.fields.get(field)
        if value is not None:
            return value, False
        if field in self.fields and null is not None:
            return null, True
        if field in self.fields and absent is not None:
            self.refuse(field, "absent or a value", None)
        if absent is None:
            self.lacks(field)
        return absent, True

    def whole(
        self, field: str, absent: int | None = None, null: int | None = None, least: int = 1
    ) -> int:
        value, is_default = self._value(field, absent, null)
        if not is_default and (not is_whole(value) or value < least):
            self.refuse(field, f"a whole number of {least} or more", value)
        return int(value)

    def number(self, field: str, absent: float | None = None, null: float | None = None) -> float:
        """A number above 0."""
        value, is_default = self._value(field, absent, null)
        if not is_default and (not is_number(value) or value <= 0):
            self.refuse(field, "a number above 0", value)
        return float(value)

    def truth(self, field: str, absent: bool = False, null: bool | None = None) -> bool:
        """null: ``absent`` if None."""
        value, _ = self._value(field, absent, absent if null is None else null)
        if not isinstance(value, bool):
            self.refuse(field, "true or false", value)
        return value

    def text(self, field: str, absent: str) -> str:
        value, _ = self._value(field, absent, absent)
        if not isinstance(value, str):
            self.refuse(field, "a text", value)
        return value

    def numbers(self, field: str) -> list[int] | None:
        """A list of whole numbers of 0 or more; None: absent or null."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or not all(is_whole(each) and each >= 0 for each in value):
            self.refuse(field, "a list of whole numbers", value)
        return value

    def fixed(self, field: str, value: Any) -> None:
        """Refuse another value than what transformers computes with, or null."""
        found = self.get(field)
        if found is not None and not same(found, value):
            self.refuse(field, "null" if value is None else f"{shown(value)} or null", found)

    def unread(self, *fields: str) -> None:
        """Accept fields that transformers does not read in this kind of model, at any value."""
        self.known.update(fields)

    def check_rest(self) -> None:
        """ConfigError: a field that this kind of model does not read, unless it is neutral."""
        for field in sorted(self.fields.keys() - self.known - NO_EFFECT):
            value, neutral = self.fields[field], NEUTRAL.get(field)
            if value is None:
                continue
            if field == "auto_map":
                self._check_code(value)
                continue
            if neutral is None:
                raise ConfigError(
                    f"{self.name}: {self.place}{field} must not be in a configuration of "
                    f"{self.kind}, which is not known to read it: remove {shown(value)} if it has "
                    "no effect"
                )
            if not any(same(value, each) for each in neutral):
                wanted = "".join(f"{shown(each)} or " for each in neutral[:1])
                self.refuse(field, f"{wanted}null in a model of {self.kind}", value)

    def _check_code(self, classes: Any) -> None:
        """ConfigError: code of the checkpoint's own, which nobody runs here.

        Classes with the names of transformers' own are older copies of these.
        """
        own = self.kind.removesuffix("_text").replace("_", "")
        texts = classes.values() if isinstance(classes, Mapping) else [classes]
        for each in texts:
            if not (isinstance(each, str) and each.rpartition(".")[2].lower().startswith(own)):
                self.refuse("auto_map", f"null in a model of {self.kind}", classes)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a number that is not infinite."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and abs(value) < float("inf")


def same(value: Any, other: Any) -> bool:
    """Whether two values are equal; 1 == True, but a bool is neutral among bools only."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:56]} ..."
