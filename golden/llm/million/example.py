"""A model's K, V and queries as requests of the cache: a restored prompt, then decoding steps.

Per layer, all of one sequence: the sinks by PREFILL, the other tokens of the prompt by RESTORE.
Then per step and layer LOAD, APPEND and ATTEND, as a decoder would ask. K, V and queries are those
of one pass of the model over prompt and further tokens. Its own attention is exact, and causal. So
a token sees the same as in a step of its own.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.lloyd import Training
from golden.index.packet import normalised
from golden.index.pq import ProductQuantizer, ProductShape, exact_codes
from golden.llm.capture import body
from golden.llm.checkpoint import check_tokens
from golden.llm.patch import K, Patch, V
from golden.million.attention import Codebook
from golden.million.cache import Codebooks
from golden.million.config import MillionConfig
from golden.million.script import Script

TRAINING = Training(iterations=10)


@dataclasses.dataclass(frozen=True)
class Seen:
    """FP16 words of one layer over T tokens: k, v (T, heads, d); q (T, heads, group, d).

    K and queries after RoPE, queries times 1/sqrt(d).
    """

    k: Tensor
    v: Tensor
    q: Tensor


def capture(model: Any, ids: Tensor, layers: Iterable[int], config: MillionConfig) -> list[Seen]:
    """Captures what ``layers`` of a model see of the tokens ids (T,). ConfigError: other heads."""
    wanted, shape = list(layers), config.head
    q: dict[int, Tensor] = {}
    kv: dict[tuple[int, int], Tensor] = {}

    def tap_query(layer: int, x: Tensor) -> Tensor:
        if layer in wanted:
            q[layer] = x.detach()[0]
        return x

    def tap_kv(layer: int, which: int, x: Tensor) -> None:
        if layer in wanted:
            kv[layer, which] = x.detach()[0].clone()

    check_tokens(model, ids)
    with Patch(model) as patch, torch.no_grad():
        patch.kv(tap_kv)
        patch.query(tap_query)
        body(model)(ids[None], use_cache=False)
        scaling: dict[int, float] = {n: patch.attentions[n].scaling for n in wanted}  # type: ignore
    found = []
    for layer in wanted:
        heads, _, d = q[layer].shape
        width = kv[layer, K].shape[1]
        check_heads(config, heads, width // d, d)
        words = bits_from_float(q[layer] * scaling[layer])
        k, v = (bits_from_float(kv[layer, each]).unflatten(1, (shape.heads, d)) for each in (K, V))
        found.append(Seen(k, v, words.transpose(0, 1).unflatten(1, (shape.heads, shape.group))))
    return found


def trained(seen: Seen, config: MillionConfig, training: Training = TRAINING) -> Codebooks:
    """Codebooks of K and V of the layer, by k-means; of each head, or of all, as configured."""
    shape = ProductShape(dim=config.pq.head_dim, subspaces=config.pq.subspaces, bits=config.pq.bits)
    sides = []
    for words in (seen.k, seen.v):
        vectors = float_from_bits(words, FP16).float()
        parts = vectors.unbind(1) if config.scope_heads else (vectors.flatten(0, 1),)
        real = [ProductQuantizer.train(each, shape, training=training).codebook for each in parts]
        rows, exponent = normalised(torch.cat(real, 1))  # of all heads: one exponent
        sides.append(tuple(Codebook(each, exponent) for each in rows.split(shape.entries, 1)))
    return Codebooks(*sides)


def _codes(words: Tensor, books: Sequence[Codebook], bits: int) -> Tensor:
    """(T, heads, d) words to (T, heads, M) codes."""
    if len(books) == 1:
        return exact_codes(words, books[0].words, books[0].exponent, bits)
    each = enumerate(books)
    return torch.stack([exact_codes(words[:, n], b.words, b.exponent, bits) for n, b in each], 1)


def check_heads(config: MillionConfig, queries: int, heads: int, head_dim: int) -> None:
    """ConfigError unless the cache has a model's query heads, KV heads and elements of a head."""
    wanted = (config.head.heads * config.head.group, config.head.heads, config.pq.head_dim)
    if (queries, heads, head_dim) != wanted:
        raise ConfigError(
            f"the model has {queries} queries and {heads} KV heads of {head_dim} elements, not "
            f"{wanted[0]} and {wanted[1]} of {wanted[2]}"
        )


def check(config: MillionConfig, layers: Iterable[int], prompt: int, steps: int) -> None:
    """ConfigError unless the cache has room for these layers, and for as many tokens of each."""
    every = set(layers)
    last = max(every)
    if last >= config.layers:
        raise ConfigError(f"cache.layers must be more than {last}, the last layer's number, not "
                          f"{config.layers}")  # fmt: skip
    check_length(config, prompt, steps)
    size = _coded(config, prompt, steps) * config.pq.record_bytes
    needed = 2 * len(every) * config.head.heads * -(-size // config.page_bytes)
    if needed > config.pages:
        raise ConfigError(f"cache.pages must be at least {needed} for {prompt + steps} tokens of "
                          f"{len(every)} layers, not {config.pages}")  # fmt: skip


def _coded(config: MillionConfig, prompt: int, steps: int) -> int:
    """Counts the tokens of a layer that are codes after the steps."""
    window, recent, coded = config.window, 0, prompt - config.window.sinks
    for _ in range(steps):
        if not window.recent:
            coded += 1
            continue
        if recent == window.recent:
            recent, coded = recent - window.block, coded + window.block
        recent += 1
    return coded


def check_length(config: MillionConfig, prompt: int, steps: int) -> None:
    """ConfigError unless the cache has room for the tokens of a sequence, sinks among them."""
    sinks = config.window.sinks
    if prompt < sinks:
        raise ConfigError(f"the prompt must have at least {sinks} tokens, the sinks, not {prompt}")
    if prompt + steps > config.max_tokens:
        raise ConfigError(f"cache.max_tokens must be at least {prompt + steps}, prompt and steps, "
                          f"not {config.max_tokens}")  # fmt: skip


def run(
    script: Script,
    seen: dict[int, Seen],
    books: dict[int, Codebooks],
    prompt: int,
    steps: int,
    say: Callable[[str], None] = lambda _: None,
) -> dict[int, Tensor]:
    """The example's requests on ``script``; by layer the outputs (steps, heads, group, d) words.

    ConfigError: the cache has no room: ``check``, or too few pages.
    """
    config = script.cache.config
    check(config, seen, prompt, steps)
    sinks, bits = config.window.sinks, config.pq.bits
    sequence = script.open()
    for layer, x in seen.items():
        script.load(layer, books[layer])
        for token in range(sinks):
            script.prefill(sequence, layer, x.k[token], x.v[token])
        k, v = (
            _codes(words[sinks:prompt], side, bits)
            for words, side in ((x.k, books[layer].k), (x.v, books[layer].v))
        )
        for codes_k, codes_v in zip(k, v, strict=True):
            script.restore(sequence, layer, codes_k, codes_v)
        say(f"layer {layer}: {sinks} exact tokens, {prompt - sinks} as codes")
    outputs: dict[int, list[Tensor]] = {layer: [] for layer in seen}
    for step in range(steps):
        token = prompt + step
        for layer, x in seen.items():
            script.load(layer, books[layer])
            script.append(sequence, layer, x.k[token], x.v[token])
            outputs[layer].append(script.attend(sequence, layer, x.q[token]))
    return {layer: torch.stack(words) for layer, words in outputs.items()}


def exact_outputs(seen: Seen, first: int) -> Tensor:
    """Attention in float64 on all words as they are, of the tokens from ``first`` on.

    (T - first, heads, group, d).
    """
    k, v, q = (float_from_bits(x, FP16) for x in (seen.k, seen.v, seen.q[first:]))
    scores = torch.einsum("thgd,shd->thgs", q, k)
    ahead = torch.arange(len(k))[None] > torch.arange(first, len(k))[:, None]
    scores = scores.masked_fill(ahead[:, None, None], -torch.inf)
    return torch.einsum("thgs,shd->thgd", scores.softmax(-1), v)
