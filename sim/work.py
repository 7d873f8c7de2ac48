"""The work of a model in one pass: matrices, attention, norms, activations. No hardware.

A pass takes some new tokens of each of its sequences. Prefill takes all tokens of a prompt, a step
of decoding takes one token of each sequence.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from golden.config import Config, Range, declared
from sim.model import Model, Network

LINEAR, ATTENTION, OTHER = "linear", "attention", "other"
_MOST = 1 << 30

# Sequences, new tokens of each, and tokens that each has in the cache: a Part without its checks.
Shape = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(Config):
    """``count`` sequences with ``new`` tokens each after ``context`` cached ones."""

    count: int = dataclasses.field(metadata=declared(Range(1, _MOST)))
    new: int = dataclasses.field(metadata=declared(Range(1, _MOST)))
    context: int = dataclasses.field(metadata=declared(Range(0, _MOST)))


@dataclasses.dataclass(frozen=True)
class Pass:
    """The sequences of one pass. logits: sequences whose next word is computed, all if None."""

    parts: tuple[Part, ...]
    logits: int | None = None

    @classmethod
    def decode(cls, batch: int, context: int) -> "Pass":
        """One token of each of ``batch`` sequences."""
        return cls((Part(count=batch, new=1, context=context),))

    @classmethod
    def prefill(cls, batch: int, prompt: int) -> "Pass":
        """All tokens of ``batch`` prompts."""
        return cls((Part(count=batch, new=prompt, context=0),))

    @classmethod
    def of(cls, parts: Iterable[Shape], logits: int) -> "Pass":
        return cls(tuple(Part(count=n, new=new, context=at) for n, new, at in parts), logits)

    @property
    def sequences(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def tokens(self) -> int:
        """New tokens."""
        return sum(part.count * part.new for part in self.parts)

    @property
    def words(self) -> int:
        """Sequences whose next word is computed."""
        return self.sequences if self.logits is None else self.logits

    def pairs(self, model: Model) -> int:
        """Sum over new tokens of the tokens that each attends, in a layer; layers are alike."""
        return sum(p.count * attended_tokens(model, p.context, p.new) for p in self.parts)

    def cached(self, model: Model) -> int:
        """Tokens before the new ones that a sequence's new tokens attend, over all sequences.

        Of a layer; layers are alike.
        """
        return sum(part.count * cached_tokens(model, part.context) for part in self.parts)


def cached_tokens(model: Model, context: int) -> int:
    """Tokens of ``context`` before it that the next token attends; layers are alike."""
    return model.attended(context) - 1


def attended_tokens(model: Model, context: int, new: int) -> int:
    """Sum of ``model.attended`` from ``context`` on, for ``new`` tokens; layers are alike."""
    first = model.attended(context)
    if new == 1:
        return first

    def to(end: int) -> int:
        """Sums the tokens that tokens 0..end - 1 attend."""
        if model.chunk:
            chunks, left = divmod(end, model.chunk)
            return chunks * (model.chunk * (model.chunk + 1) // 2) + left * (left + 1) // 2
        if not model.window or end <= model.window:
            return end * (end + 1) // 2
        full = model.window * (model.window + 1) // 2
        return full + (end - model.window) * model.window

    return to(context + new) - to(context)


class Head(NamedTuple):
    """Heads as attention multiplies them.

    sharing : queries of a token that share K and V
    query, value : elements of a query, and of what it gets
    """

    sharing: int
    query: int
    value: int


def heads_of(model: Model, part: Part) -> Head:
    """Latent attention multiplies the latents of cached tokens by queries of their size.

    That is the absorbed form: ``kv_up`` multiplies queries and outputs, and not each cached token.
    A prompt without cached tokens has K and V of all heads, as ``kv_up`` gives them.
    """
    if not model.kv_rank or not part.context:
        return Head(model.group, model.head_size, model.value)
    return Head(model.heads, model.kv_rank + model.rope_head_size, model.kv_rank)


def attention_macs(model: Model, part: Part) -> int:
    """Multiplications of queries by K and of scores by V, in a layer; layers are alike."""
    head = heads_of(model, part)
    pairs = part.count * attended_tokens(model, part.context, part.new)
    return pairs * model.heads * (head.query + head.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """One operation of a layer, or of the model; all numbers are of one execution.

    name : of the operation
    kind : ``linear``, ``attention`` or ``other``
    count : executions in a pass: the layers, or 1
    macs : multiplications that are added up
    inputs, outputs, rows : of a linear operation: its matrix, and the tokens that it multiplies
    weights : elements of matrices that are read, once each
    kv_read, kv_written : elements of the cache
    vectors : elements of activations, read and written
    """

    name: str
    kind: str
    count: int
    macs: int = 0
    inputs: int = 0
    outputs: int = 0
    rows: int = 0
    weights: int = 0
    kv_read: int = 0
    kv_written: int = 0
    vectors: int = 0


def _linear(name: str, count: int, rows: int, size: tuple[int, int], read: int = 1) -> Work:
    """read: how many matrices of this size the rows are spread over."""
    inputs, outputs = size
    return Work(
        name=name,
        kind=LINEAR,
        count=count,
        macs=rows * inputs * outputs,
        inputs=inputs,
        outputs=outputs,
        rows=rows,
        weights=inputs * outputs * read,
        vectors=rows * (inputs + outputs),
    )


def _experts_read(model: Model, tokens: int) -> int:
    """Experts that some token passes: all, unless tokens are few.

    With ``active`` of ``experts`` drawn evenly, an expert is left out with probability
    (1 - active / experts) ** tokens. Rounded to the nearest, ``active`` at least.
    """
    missed = (1 - model.active / model.experts) ** tokens
    return max(model.active, round(model.experts * (1 - missed)))


def scores_of(model: Model, step: Pass) -> int:
    """Elements of scores that the softmax, and a cap before it, take in a layer."""
    return step.pairs(model) * model.heads * (2 if model.attention_cap else 1)


def attention_work(model: Model, step: Pass) -> Work:
    """The one operation that depends on the contexts, and not only on the number of tokens.

    All layers of ``model`` attend alike.
    """
    kv = model.kv_layer
    vectors = 0
    for part in step.parts:
        head = heads_of(model, part)
        vectors += part.count * part.new * model.heads * (head.query + head.value)
    return Work(
        name="attention",
        kind=ATTENTION,
        count=model.layers,
        macs=sum(attention_macs(model, part) for part in step.parts),
        kv_read=step.cached(model) * kv,
        kv_written=step.tokens * kv,
        vectors=vectors,
    )


def attention_works(model: Model, step: Pass) -> list[tuple[Model, Work]]:
    """Attention of the layers that attend alike, each with the model of them alone."""
    made = [(each, attention_work(each, step)) for each in model.alike]
    if len(made) == 1:
        return made
    return [
        (each, dataclasses.replace(work, name=f"{each.reach} attention".strip()))
        for each, work in made
    ]


def _projections(model: Model, tokens: int) -> Iterator[Work]:
    """The operations that give q, k and v of the new tokens."""
    layers = model.layers
    query, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    turned = layers - sum(model.unrotated)
    if not model.kv_rank:
        yield _linear("qkv", layers, tokens, (model.hidden, query + 2 * kv))
    else:
        for name, size in model.projections.items():
            if name not in ("o", "kv_up"):
                yield _linear(name, layers, tokens, size)
    if model.kv_rank or model.qk_norm:
        normed = model.query_rank + model.kv_rank if model.kv_rank else query + kv
        count = turned if model.qk_norm == "after" else layers
        yield Work(name="qk norm", kind=OTHER, count=count, vectors=2 * tokens * normed)
    heads = model.heads + (1 if model.kv_rank else model.kv_heads)
    elements = heads * (model.rotary_size or model.head_size)
    yield Work(name="rotary", kind=OTHER, count=turned, vectors=2 * tokens * elements)
    if model.kv_rank:
        yield _linear("kv_up", layers, tokens, model.projections["kv_up"])


def _network(model: Model, network: Network, tokens: int) -> Iterator[Work]:
    """A kind of feed-forward network, with the router of its experts."""
    place, layers, copies, inside = network
    name = f"{place} " if place else ""
    passed, read = tokens, 1
    if copies > 1:
        passed, read = tokens * model.active, _experts_read(model, tokens)
        yield _linear("router", layers, tokens, model.router_size)
    up = 2 * inside if model.gated else inside
    joined = "gate_up" if model.gated else "up"
    yield _linear(f"{name}{joined}", layers, passed, (model.hidden, up), read)
    yield Work(name=f"{name}activation", kind=OTHER, count=layers, vectors=passed * (up + inside))
    yield _linear(f"{name}down", layers, passed, (inside, model.hidden), read)


def works(model: Model, step: Pass) -> list[Work]:
    """All operations of a pass; ``count`` is the number of layers that have them.

    The q, k and v matrices are one operation, gate and up are another. Operations of the networks
    of ``Model.networks`` have their place before their name, as in ``shared down``.
    """
    tokens, layers = step.tokens, model.layers
    norms = 4 if model.norm_places == "both" else 2
    made: list[Work] = [
        Work(name="embed", kind=OTHER, count=1, vectors=2 * tokens * model.hidden),
        Work(name="norm", kind=OTHER, count=norms * layers, vectors=2 * tokens * model.hidden),
        *_projections(model, tokens),
        *(work for _, work in attention_works(model, step)),
        _linear("o", layers, tokens, model.projections["o"]),
    ]
    for network in model.networks:
        made += _network(model, network, tokens)
    made += [
        Work(name="residual", kind=OTHER, count=2 * layers, vectors=3 * tokens * model.hidden),
        Work(name="final norm", kind=OTHER, count=1, vectors=2 * step.words * model.hidden),
        _linear("head", 1, step.words, (model.hidden, model.vocabulary)),
    ]
    if model.logit_cap:
        vectors = 2 * step.words * model.vocabulary
        made.append(Work(name="logit cap", kind=OTHER, count=1, vectors=vectors))
    return made


def matrices_of(model: Model, work: Work) -> list[tuple[int, int]]:
    """Inputs and outputs of each matrix of a layer that an operation reads, of one expert.

    Empty for the head and for the router.
    """
    place, _, name = work.name.rpartition(" ")
    inside = {each.place: each.inside for each in model.networks}
    sizes = model.projections
    if place in inside:
        sizes = {**sizes, **model.network(inside[place])}
    return [sizes[each] for each in _JOINED.get(name, (name,)) if each in sizes]


# The matrices of a layer that an operation multiplies, where they are separate.
_JOINED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
