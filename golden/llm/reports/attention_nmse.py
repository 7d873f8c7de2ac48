"""The measurements of ``python -m golden.llm.reports.attention_error``.

Codes, tables and roundings are measured apart, on K, V and queries of a model. Reference of the
codes is attention in float64 on the FP16 words of q, K and V. Reference of all else is attention in
float64 on the decoded words, so that the two kinds of errors do not mix. All keys are codes.

Widths of a table entry are measured the same way, in fixed point with one power of two for each
query. The scale is the smallest that holds the query's entries, or one that its elements guarantee
before a table is built.
"""

import argparse
import dataclasses
import math
import pydoc_data.topics
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.lloyd import Training
from golden.index.packet import denormalised, normalised
from golden.index.pq import ProductQuantizer, ProductShape, exact_codes
from golden.index.tables import tables
from golden.llm import text
from golden.llm.checkpoint import CheckpointError, check_tokens, load, read_text, tokens
from golden.llm.patch import Patch, Scores
from golden.markers import table
from golden.million.attention import Codebook, Head, attend_head
from golden.million.config import PqShape

WIDTHS = (8, 9, 10, 11, 12, 13, 14, 16)
LAYERS = (0, 14, 29)
SHAPES = ((2, 8), (4, 12))  # elements of a part, bits
_QUERIES = 16  # the last tokens, whose queries are attended


@dataclasses.dataclass(frozen=True)
class Layer:
    """q (T, heads, d) times 1 / sqrt(d), k and v (T, kv_heads, d): FP16 words of one layer."""

    q: Tensor
    k: Tensor
    v: Tensor


def nmse(found: Tensor, reference: Tensor) -> float:
    """Sum of squared errors over the sum of squares."""
    return float(((found - reference) ** 2).sum() / (reference**2).sum())


def captured(model, ids: Tensor, layers: Sequence[int]) -> dict[int, Layer]:
    """Words of the named layers on one sequence (T,)."""
    seen: dict[int, list[Tensor]] = {}

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        if not scores.is_plain:
            raise CheckpointError("this report knows only causal attention of all tokens")
        if layer in layers:
            seen[layer] = [
                bits_from_float(x[0].transpose(0, 1).double()) for x in (q * scores.scaling, k, v)
            ]
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scores.scaling, enable_gqa=True
        )

    check_tokens(model, ids)
    with Patch(model) as patch, torch.no_grad():
        patch.attention(attention)
        getattr(model, "base_model", model)(ids[None], use_cache=False)
    return {layer: Layer(*seen[layer]) for layer in layers}


def _book(vectors: Tensor, pq: PqShape, few: bool) -> Codebook:
    shape = ProductShape(dim=pq.head_dim, subspaces=pq.subspaces, bits=pq.bits)
    training = Training(iterations=10, few=few)
    return Codebook(*normalised(ProductQuantizer.train(vectors, shape, training=training).codebook))


@dataclasses.dataclass(frozen=True)
class _Case:
    """A KV head up to one token: the group's queries, and K and V as words and decoded."""

    q: Tensor  # (g, d) words
    codes: tuple[Tensor, Tensor]
    exact: tuple[Tensor, Tensor]  # float64
    decoded: tuple[Tensor, Tensor]

    @property
    def scores(self) -> Tensor:
        """(g, n) on decoded keys, float64."""
        return float_from_bits(self.q) @ self.decoded[0].T


def _cases(layer: Layer, books: tuple[Codebook, Codebook], bits: int, queries: int) -> list[_Case]:
    group = layer.q.shape[1] // layer.k.shape[1]
    cases = []
    for head in range(layer.k.shape[1]):
        words = (layer.k[:, head], layer.v[:, head])
        codes = tuple(
            exact_codes(x, book.words, book.exponent, bits)
            for x, book in zip(words, books, strict=True)
        )
        decoded = tuple(
            ProductQuantizer(denormalised(book.words, book.exponent).double()).decode(code)
            for code, book in zip(codes, books, strict=True)
        )
        for token in range(len(words[0]) - queries, len(words[0])):
            own = slice(0, token + 1)
            cases.append(
                _Case(
                    layer.q[token, head * group : (head + 1) * group],
                    (codes[0][own], codes[1][own]),
                    (float_from_bits(words[0][own]), float_from_bits(words[1][own])),
                    (decoded[0][own], decoded[1][own]),
                )
            )
    return cases


def _attend(scores: Tensor, v: Tensor) -> Tensor:
    return scores.softmax(-1) @ v


def _looked_up(table_values: Tensor, codes: Tensor) -> Tensor:
    """(g, n) sums of (g, M, E) entries at (n, M) codes."""
    part = torch.arange(codes.shape[1])
    return table_values[:, part, codes].sum(-1)


def layer_errors(cases: Sequence[_Case], books: tuple[Codebook, Codebook]) -> dict[str, float]:
    """NMSE of the outputs, by what is not exact."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for case in cases:
        (k, v), v_code = case.exact, case.decoded[1]
        q = float_from_bits(case.q)
        exact, coded = _attend(q @ k.T, v), _attend(case.scores, v_code)
        words, _ = tables(case.q, books[0].words, books[0].exponent)
        rounded = _looked_up(float_from_bits(words), case.codes[0])
        none = case.q.new_zeros(0, case.q.shape[1])
        head = Head(*case.codes, none, none, 0)
        _, o = attend_head(case.q, case.q.new_zeros(len(case.q)), head, *books)
        whole = float_from_bits(o)
        for name, pair in {
            "codes of K": (_attend(case.scores, v), exact),
            "codes of V": (_attend(q @ k.T, v_code), exact),
            "codes of both": (coded, exact),
            "table entries in FP16": (_attend(rounded, v_code), coded),
            "all roundings": (whole, coded),
            "all": (whole, exact),
        }.items():
            found.setdefault(name, []).append(pair)
    return {
        name: nmse(*(torch.cat(each) for each in zip(*pairs, strict=True)))
        for name, pairs in found.items()
    }


def _fixed(entries: Tensor, limit: Tensor, bits: int) -> Tensor:
    """Entries (g, M, E) rounded to ``bits`` bits; limit (g,): no magnitude is above it."""
    step = torch.exp2(torch.ceil(torch.log2(limit / (2 ** (bits - 1) - 1))))[:, None, None]
    return (entries / step).round() * step


def width_errors(cases: Sequence[_Case], book: Codebook) -> dict[tuple[str, str], float]:
    """(entry, what) -> root mean square error of a score, or NMSE of the outputs."""
    codebook = denormalised(book.words, book.exponent).double()
    quantizer = ProductQuantizer(codebook)
    found: dict[str, list[tuple[Tensor, ...]]] = {}
    for case in cases:
        q = float_from_bits(case.q)
        entries = quantizer.tables(q)
        largest = entries.abs().flatten(1).amax(1)
        parts = q.abs().unflatten(-1, (quantizer.subspaces, -1)).sum(-1).amax(-1)
        words, _ = tables(case.q, book.words, book.exponent)
        kinds = {"FP16": float_from_bits(words)}
        for bits in WIDTHS:
            kinds[f"{bits} bits, scale of the entries"] = _fixed(entries, largest, bits)
            guaranteed = parts * 2.0**book.exponent
            kinds[f"{bits} bits, scale of the query"] = _fixed(entries, guaranteed, bits)
        scores, v = case.scores, case.decoded[1]
        reference = _attend(scores, v)
        for name, values in kinds.items():
            own = _looked_up(values, case.codes[0])
            item = ((own - scores).flatten(), _attend(own, v), reference)
            found.setdefault(name, []).append(item)
    errors = {}
    for name, items in found.items():
        difference, own, reference = (torch.cat(each) for each in zip(*items, strict=True))
        errors[name, "score"] = math.sqrt(float((difference**2).mean()))
        errors[name, "output"] = nmse(own, reference)
    return errors


def sections(
    errors: dict[str, dict[str, float]], widths: dict[tuple[str, str], float]
) -> dict[str, str]:
    """errors: by (shape, layer); widths: means over layers of the first shape."""
    names = list(next(iter(errors.values())))
    rows = [[case, *(f"{each[name]:.2e}" for name in names)] for case, each in errors.items()]
    made = {"million_errors": table(("NMSE of outputs", *names), rows)}
    kinds = list(dict.fromkeys(name for name, _ in widths))
    lines = [
        (name, *(f"{widths[name, what]:.2e}" for what in ("score", "output"))) for name in kinds
    ]
    head = ("table entry", "score, RMS error", "outputs, NMSE")
    return made | {"million_widths": table(head, lines)}


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, str]:
    checkpoint = load(options.model)
    model = checkpoint.model
    training = "\n".join(pydoc_data.topics.topics.values())
    train = tokens(checkpoint, training)[: options.train].unflatten(0, (-1, 512))
    own = read_text(options.text) or text.CALIBRATION + text.EVALUATION
    ids = tokens(checkpoint, own)[: options.tokens]
    layers = [layer for layer in LAYERS if layer < len(Patch(model).attentions)]
    learned = [captured(model, each, layers) for each in train]
    measured = captured(model, ids, layers)
    errors: dict[str, dict[str, float]] = {}
    widths: dict[tuple[str, str], list[float]] = {}
    for sub, bits in SHAPES:
        for layer in layers:
            words = measured[layer]
            head_dim = words.k.shape[-1]
            pq = PqShape(head_dim=head_dim, subspaces=head_dim // sub, bits=bits)
            vectors = [torch.cat([getattr(each[layer], kv) for each in learned]) for kv in "kv"]
            book_k, book_v = (
                _book(float_from_bits(x).flatten(0, 1).float(), pq, options.few) for x in vectors
            )
            cases = _cases(words, (book_k, book_v), bits, _QUERIES)
            name = f"({pq.subspaces}, {bits}), layer {layer}"
            errors[name] = layer_errors(cases, (book_k, book_v))
            say(f"{name}: " + ", ".join(f"{key} {x:.2e}" for key, x in errors[name].items()))
            if (sub, bits) == SHAPES[0]:
                for key, value in width_errors(cases, book_k).items():
                    widths.setdefault(key, []).append(value)
    means = {key: statistics.fmean(values) for key, values in widths.items()}
    return sections(errors, means)
