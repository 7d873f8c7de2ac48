"""The description of a decoder: sizes, and what each of its layers computes."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from golden.config import Config, ConfigError, Range, RealRange, bounded, choice, declared, flag
from golden.llm.decoder.kinds import INSIDE, KINDS, PICTURES
from golden.llm.decoder.reading import Read

_MOST = 1 << 30
_REAL = 1e30


def _size(meaning: str) -> Any:
    return dataclasses.field(metadata=declared(Range(1, _MOST), meaning))


def _number(default: float, meaning: str) -> Any:
    return dataclasses.field(default=default, metadata=declared(RealRange(0.0, _REAL), meaning))


class _Whole(int):
    """A ``rotary_size`` that follows ``head_size``: ``dataclasses.replace`` makes it anew."""


class _Scale(float):
    """An ``attention_scale`` that follows ``head_size`` in the same way."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder(Config):
    """A decoder-only model. All sizes are elements, none is rounded.

    A tuple of layers has a truth for each layer. An empty one: all layers do what its field says
    (``sliding``), or none is what its field says (``unrotated``, ``dense``). Numbers that are 0
    by default and have another default are filled in: ``rotary_size``, ``attention_scale``.
    """

    # Sizes
    name: str  # of its file or folder
    architecture: str  # model_type of its configuration; of the decoder inside, where one is
    hidden: int = _size("elements of a token")
    layers: int = _size("decoder layers")
    heads: int = _size("query heads")
    kv_heads: int  # key and value heads, a divisor of heads
    head_size: int = _size("elements of a head of q and k")
    intermediate: int = _size("elements inside the feed-forward network, of one expert")
    vocabulary: int = _size("words of the vocabulary")
    positions: int = bounded(0, 0, _MOST, "longest context that the configuration states; 0: none")

    # Linear layers and norms
    tied: bool = flag(False, "the head is the table of embeddings")
    # Linear layers that add a bias: q, k, v, o, gate, up, down, router; with latent attention
    # q_down, kv_down, o.
    biases: tuple[str, ...] = ()
    norm: str = "RMSNorm"  # or LayerNorm, with weight and bias
    norm_eps: float = _number(1e-6, "what a norm adds to the mean of squares")
    norm_offset: bool = flag(False, "weights of norms are stored as w of 1 + w")
    norm_places: str = choice(
        "before", ("before", "after", "both"), "where norms are, of attention and of the network"
    )
    embedding_scale: float = _number(1.0, "what embeddings are multiplied by")
    residual_scale: float = _number(1.0, "what attention and network are, before they are added")
    logit_scale: float = _number(1.0, "what logits are multiplied by, before their cap")
    logit_cap: float = _number(0.0, "c of c * tanh(logit / c); 0: none")

    # Which tokens a layer attends
    window: int = bounded(0, 0, _MOST, "tokens that a token attends, itself included; 0: all")
    chunk: int = bounded(0, 0, _MOST, "tokens of a chunk, in which alone a token attends; 0: all")
    sliding: tuple[bool, ...] = ()  # layers that attend in the window or in chunks

    # Attention
    # Norms of q and k: head (of each head), row (of all heads of a token together), both with
    # weights and before RoPE; after (of each head, without weights, after RoPE, in its layers).
    qk_norm: str = choice("", ("", "head", "row", "after"), "norms of q and k")
    attention_scale: float = _number(0.0, "what scores are multiplied by; head_size**-0.5")
    attention_cap: float = _number(0.0, "c of c * tanh(score / c); 0: none")
    sinks: bool = flag(False, "softmax has a learned score more for each head, without a value")
    # In layers without RoPE the query at position p is multiplied by
    # 1 + temper_scale * log(1 + floor((p + 1) / temper_floor)).
    temper_floor: int = bounded(0, 0, _MOST, "tokens without a change; 0: none")
    temper_scale: float = _number(0.0, "how fast queries grow")

    # Positions
    rope: str = "default"  # type of RoPE; empty: positions are learned
    rope_base: float = _number(10_000.0, "base of the angles")
    rope_local: float | None = None  # base in layers with a window, which are not scaled
    rope_scaling: tuple[tuple[str, Any], ...] = ()  # what the type reads, by name; lists as tuples
    rope_interleaved: bool = flag(False, "pairs are neighbours, and not halves of a head")
    rotary_size: int = bounded(0, 0, _MOST, "elements of a head that RoPE turns; head_size")
    unrotated: tuple[bool, ...] = ()  # layers without RoPE

    # Latent attention. The norms of both latents add 1e-6, whatever norm_eps is.
    query_rank: int = bounded(0, 0, _MOST, "elements of a token's latent query; 0: none")
    kv_rank: int = bounded(
        0, 0, _MOST, "those of its latent K and V, which the cache holds; 0: none"
    )
    rope_head_size: int = bounded(0, 0, _MOST, "elements of k that RoPE turns, one for all heads")
    value_size: int = bounded(0, 0, _MOST, "elements of a head of v; 0: head_size")

    # The feed-forward network
    gated: bool = flag(True, "gate and up, or one matrix in their place")
    activation: str = "silu"  # as transformers spells it, and gpt_oss: clamped SwiGLU
    experts: int = bounded(1, 1, _MOST, "feed-forward networks of a layer")
    active: int = 1  # experts that a token passes
    # How experts are chosen, and the weights of what they give: softmax (over all, then the
    # best), topk_softmax (over the best), sigmoid (the best by sigmoid and a learned bias, which
    # weights lack), sigmoid_input (the best by logits, whose inputs sigmoid scales).
    router: str = choice(
        "", ("", "softmax", "topk_softmax", "sigmoid", "sigmoid_input"), "empty: no experts"
    )
    router_norm: bool = flag(False, "weights of the chosen experts are scaled to a sum of 1")
    router_scale: float = _number(1.0, "what these weights are multiplied by then")
    expert_groups: int = bounded(1, 1, _MOST, "groups, by whose two best experts they are chosen")
    active_groups: int = 1  # groups whose experts a token may pass
    shared: int = bounded(0, 0, _MOST, "elements inside the network that all tokens pass; 0: none")
    shared_gate: bool = flag(False, "a sigmoid of a weight's own scales what that network gives")
    dense: tuple[bool, ...] = ()  # layers with one plain network in the place of experts
    dense_intermediate: int = bounded(0, 0, _MOST, "elements inside a network of these layers")

    def __post_init__(self) -> None:
        if self.rope and (not self.rotary_size or isinstance(self.rotary_size, _Whole)):
            object.__setattr__(self, "rotary_size", _Whole(self.head_size))
        if not self.attention_scale or isinstance(self.attention_scale, _Scale):
            object.__setattr__(self, "attention_scale", _Scale(self.head_size**-0.5))
        self._check_range("kv_heads", 1, self.heads)
        if self.heads % self.kv_heads:
            self._refuse("kv_heads", f"a divisor of {self.heads} heads")
        self._check_range("active", 1, self.experts)
        self._check_range("active_groups", 1, self.expert_groups)
        self._check_range("rotary_size", 0, self.head_size)
        for field in ("sliding", "unrotated", "dense"):
            if len(getattr(self, field)) not in (0, self.layers):
                self._refuse(field, f"empty, or a truth for each of {self.layers} layers")
        if self.dense and not self.dense_intermediate:
            self._refuse("dense_intermediate", "above 0 where a layer has a plain network")

    @classmethod
    def of(cls, name: str, fields: Any, stored: bool = True) -> Self:
        """The decoder of a configuration as JSON gives it.

        stored: the caller reads weights as they are stored; else how they are stored has no effect.
        ConfigError, one line: a field that is missing, odd, or not known to be without effect.
        """
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{name}: must be an object of fields")
        kind = fields.get("model_type")
        if kind is None:
            raise ConfigError(f"{name}: lacks model_type")
        if not isinstance(kind, str) or kind not in {**KINDS, **INSIDE}:
            known = ", ".join(sorted({**KINDS, **INSIDE}))
            raise ConfigError(f"{name}: model_type must be one of {known}, not {kind!r}")
        try:
            is_inside = kind in INSIDE
            read = _inside(name, fields, kind, stored) if is_inside else Read(name, fields, kind)
            if not stored:
                read.unread("quantization_config")
            made = KINDS[read.kind](read)
            read.check_rest()
            if is_inside:
                # The model's own field rules, and that of the text has to agree.
                Read(name, fields, kind).fixed("tie_word_embeddings", made["tied"])
            return cls(name=name, architecture=read.kind, **made)
        except ConfigError as error:
            text = str(error)
            raise ConfigError(text if text.startswith(f"{name}:") else f"{name}: {text}") from None

    def window_of(self, layer: int) -> int:
        """Tokens that a token attends in a layer, itself included; 0: all."""
        return self.window if self._slides(layer) else 0

    def chunk_of(self, layer: int) -> int:
        """Tokens of a layer's chunks; 0: none."""
        return self.chunk if self._slides(layer) else 0

    def _slides(self, layer: int) -> bool:
        return self.sliding[layer] if self.sliding else True

    def is_rotated(self, layer: int) -> bool:
        """Whether RoPE turns q and k of a layer."""
        return bool(self.rope) and not (self.unrotated and self.unrotated[layer])

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has one plain network."""
        return self.experts == 1 or bool(self.dense and self.dense[layer])


def _inside(name: str, fields: Mapping[str, Any], kind: str, stored: bool) -> Read:
    """The fields of the decoder inside a model that also sees pictures."""
    inner, absent = INSIDE[kind]
    outer = Read(name, fields, kind)
    outer.unread(*PICTURES, "text_config", "tie_word_embeddings")
    if not stored:
        outer.unread("quantization_config")
    outer.check_rest()
    text = fields.get("text_config")
    if not isinstance(text, Mapping):
        outer.refuse("text_config", "an object", text)
    if text.get("model_type", inner) != inner:
        outer.refuse("text_config.model_type", inner, text["model_type"])
    return Read(name, {**absent, **text}, inner, "text_config.")
