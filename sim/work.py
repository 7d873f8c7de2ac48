"""The work of a model in one pass: matrices, attention, norms, activations. No hardware.

A pass takes some new tokens of each of its sequences. Prefill takes all tokens of a prompt, a step
of decoding takes one token of each sequence.
"""

import dataclasses
from collections.abc import Iterable

from golden.config import Config, Range, declared
from sim.model import Model

LINEAR, ATTENTION, OTHER = "linear", "attention", "other"
_MOST = 1 << 30


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
        """Sum over new tokens of the tokens that each attends, in one layer."""
        return sum(part.count * _attended(model, part.context, part.new) for part in self.parts)

    def cached(self, model: Model) -> int:
        """Tokens before the new ones that a sequence's new tokens attend, over all sequences."""
        total = 0
        for part in self.parts:
            most = model.window - 1 if model.window else part.context
            total += part.count * min(part.context, most)
        return total


def _attended(model: Model, context: int, new: int) -> int:
    """Sum of ``model.attended`` from ``context`` on, for ``new`` tokens."""

    def to(end: int) -> int:
        """Sums the tokens that tokens 0..end - 1 attend."""
        if not model.window or end <= model.window:
            return end * (end + 1) // 2
        full = model.window * (model.window + 1) // 2
        return full + (end - model.window) * model.window

    return to(context + new) - to(context)


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


def attention_work(model: Model, step: Pass) -> Work:
    """The one operation that depends on the contexts, and not only on the number of tokens."""
    query, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    return Work(
        name="attention",
        kind=ATTENTION,
        count=model.layers,
        macs=2 * step.pairs(model) * query,
        kv_read=2 * step.cached(model) * kv,
        kv_written=2 * step.tokens * kv,
        vectors=step.tokens * 2 * query,
    )


def works(model: Model, step: Pass) -> list[Work]:
    """All operations of a pass. Those of a layer have ``count`` = layers.

    The q, k and v matrices are one operation, gate and up are another.
    """
    tokens, layers = step.tokens, model.layers
    query, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    read = _experts_read(model, tokens) if model.experts > 1 else 1
    passed = tokens * model.active
    up = 2 * model.intermediate if model.gated else model.intermediate
    made: Iterable[Work] = (
        Work(name="embed", kind=OTHER, count=1, vectors=2 * tokens * model.hidden),
        Work(name="norm", kind=OTHER, count=2 * layers, vectors=2 * tokens * model.hidden),
        _linear("qkv", layers, tokens, (model.hidden, query + 2 * kv)),
        Work(name="rotary", kind=OTHER, count=layers, vectors=2 * tokens * (query + kv)),
        attention_work(model, step),
        _linear("o", layers, tokens, (query, model.hidden)),
        *(
            [_linear("router", layers, tokens, (model.hidden, model.experts))]
            if model.experts > 1
            else []
        ),
        _linear("gate_up" if model.gated else "up", layers, passed, (model.hidden, up), read),
        Work(
            name="activation", kind=OTHER, count=layers,
            vectors=passed * (up + model.intermediate),
        ),
        _linear("down", layers, passed, (model.intermediate, model.hidden), read),
        Work(name="residual", kind=OTHER, count=2 * layers, vectors=3 * tokens * model.hidden),
        Work(name="final norm", kind=OTHER, count=1, vectors=2 * step.words * model.hidden),
        _linear("head", 1, step.words, (model.hidden, model.vocabulary)),
    )  # fmt: skip
    return list(made)
