"""``senbazuru.runs.vq``: a layer's K and V through the encoder and through attention."""

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator

import numpy as np
import torch

from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.index.lloyd import Training
from golden.index.pq import exact_codes
from golden.llm.million import example
from golden.llm.million.pack import inputs, joined
from golden.llm.vqllm.pack import HEADS as LLAMA_HEADS
from golden.llm.vqllm.pack import layer_of
from golden.million.attention import Codebook
from golden.million.config import HeadShape, MillionConfig
from golden.million.vectors.tables import codebook_words
from golden.vqllm import timing
from golden.vqllm.attention import attend
from golden.words import layout_words
from hdl.million.layouts import beat_layout
from hdl.vqllm.attend.attention import VqAttention, VqAttentionConfig
from hdl.vqllm.kv_encoder import VqKvEncoder, VqKvEncoderConfig
from hdl.vqllm.room import BLOCKS
from senbazuru.runs.cycles import Figure, described
from tb.simulate.run import build_model, run_model, simulate
from tb.vqllm.support.attention import Head, Script

Say = Callable[[str], None]
HEADS = {"smollm2": HeadShape(heads=3, group=3), "llama": LLAMA_HEADS}
# By model: names of the registered configurations; "" is the default one.
CONFIGS = {
    "smollm2": {"cq4": "cq4_64", "cq2": "cq2_64"},
    "llama": {"cq4": "", "cq2": "cq2"},
}
_ITERATIONS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A run on the Verilated engines: all that ``equal`` counts is golden's."""

    model: str
    method: str
    what: str
    equal: str
    error: float  # relative, of the results
    figure: Figure

    def cells(self) -> tuple[object, ...]:
        """The cells of the table: model, method, what, equal, bound, cycles, ratio, error."""
        bound, cycles = self.figure.bound or 1, self.figure.cycles
        return (self.model, self.method, self.what, self.equal, bound, cycles,
                f"{cycles / bound:.3f}", f"{self.error:.4f}")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Layer:
    """The inputs that a layer sees, and codebooks of its KV heads: K's, V's."""

    seen: example.Seen
    books: tuple[tuple[Codebook, ...], tuple[Codebook, ...]]


def configuration(block: str, name: str):
    registered = BLOCKS[block]
    return registered.configs[name] if name else registered.config


def _config(model: str, method: str) -> MillionConfig:
    shape = configuration("vq_attention", CONFIGS[model][method]).shape
    return MillionConfig(pq=shape.pq, head=HEADS[model], layers=32, scope_heads=True)


@functools.lru_cache(maxsize=1)
def _seen(model: str, wanted: int | None, training: int, tokens: int) -> list[example.Seen]:
    """Captures what a layer sees of the training text and of the text."""
    config = _config(model, "cq4")  # the heads are those of all methods
    source, windows, ids = inputs(model, config, training, tokens)
    number = layer_of(wanted, source.config.num_hidden_layers)
    parts = [example.capture(source, each, [number], config)[0] for each in windows]
    return [joined(parts), example.capture(source, ids, [number], config)[0]]


def captured(model: str, method: str, options: argparse.Namespace) -> Layer:
    """A layer of a model, with codebooks by k-means on tokens of another text."""
    other, seen = _seen(model, options.layer, options.training, options.tokens)
    training = Training(iterations=_ITERATIONS, few=True)
    books = example.trained(other, _config(model, method), training)
    return Layer(seen, (books.k, books.v))


def encode(layer: Layer, config: VqKvEncoderConfig) -> list[torch.Tensor]:
    """(tokens, heads, M) codes of K and of V: golden's, and the block's are equal."""
    rate, pq = config.rate, config.pq
    sides = [layer.seen.k, layer.seen.v]
    codes, jobs, stores = [], [], []
    for side, books in zip(sides, layer.books, strict=True):
        each = [
            exact_codes(side[:, head], book.words, book.exponent, pq.bits)
            for head, book in enumerate(books)
        ]
        codes.append(torch.stack(each, 1))
        stack = np.stack([book.words.numpy() for book in books])
        fill = np.zeros((config.books - len(books), *stack.shape[1:]), dtype=np.int64)
        stores.append(codebook_words(pq, rate, np.concatenate([stack, fill])))
    for kv, books in enumerate(layer.books):
        jobs += [(kv, head, books[head].exponent) for _ in sides[kv] for head in range(len(books))]
    kv, book, exponent = (np.array(each) for each in zip(*jobs, strict=True))
    x = torch.cat([side.flatten(0, 1) for side in sides]).numpy().reshape(-1, rate.lanes)
    every = torch.cat([each.flatten(0, 1) for each in codes]).numpy()
    ends = np.zeros(len(jobs), dtype=np.int64)
    vectors = {
        "job": layout_words(
            config.job_layout, kv=kv, book=book, exponent=exponent, entries=ends + pq.entries
        ),
        "x": layout_words(beat_layout(rate.lanes), word=x, last=np.zeros(len(x), dtype=np.int64)),
        "code": layout_words(config.code_layout, code=every, bad=ends),
        "k": stores[0],
        "v": stores[1],
    }
    params = {
        "words": [pq.entries * config.parts] * len(jobs),
        "beats": pq.head_dim // rate.lanes,
        "bad": ends.tolist(),
    }
    simulate(
        VqKvEncoder(config), "tb.million.tb_pq_encoder", vectors=vectors, params=params,
        testcase="full_rate",
    )  # fmt: skip
    return codes


def run(layer: Layer, codes: list[torch.Tensor], config: VqAttentionConfig, latency: int):
    """(cycles from the first request to each status, (heads, group, d) outputs)."""
    script = Script(np.random.default_rng(1), config)
    outputs, waiting = [], []
    heads = layer.seen.q.shape[1]
    for head in range(heads):
        books = [side[head] for side in layer.books]
        q = layer.seen.q[-1, head]
        _, words = attend(q, codes[0][:, head], codes[1][:, head], *books)
        outputs.append(words)
        made = Head.of(books, [side[:, head] for side in codes], q)
        script.book(head, made.books, made.exponents)
        waiting.append(made)
    for head, made in enumerate(waiting):  # all books come before the first request
        script.request(made, head)
    model = build_model(VqAttention(config))
    params = {"scripts": [script.params()], "latency": latency}
    where = run_model(model, "tb.vqllm.tb_attention_run", config=config, params=params)
    (cycles,) = json.loads((where / "cycles.json").read_text())
    return cycles, torch.stack(outputs)


def cache(model: str, method: str, options: argparse.Namespace, say: Say) -> Iterator[Result]:
    """K and V of all KV heads of a layer. AssertionError: a code, an output or a status differs."""
    name = CONFIGS[model][method]
    layer = captured(model, method, options)
    say("encoding K and V")
    codes = encode(layer, configuration("vq_kv_encoder", name))
    config = configuration("vq_attention", name)
    say("attending the last token's queries")
    cycles, words = run(layer, codes, config, options.latency)
    shape, tokens = config.shape, len(codes[0])
    exact = example.exact_outputs(layer.seen, tokens - 1)[0]
    count = sum(each.numel() for each in codes)
    yield Result(
        model=model, method=method,
        what=f"K and V, {len(words)} heads of {shape.pq.head_dim}, {tokens} tokens",
        equal=f"{count} codes, {words.numel()} results",
        error=float((float_from_bits(words, FP16) - exact).norm() / exact.norm()),
        figure=Figure(
            command="senbazuru.runs.vq", block="vq_attention", configuration=described(config),
            parameters={
                "model": model, "heads": len(words), "tokens": tokens,
                "memory_latency": options.latency,
            },
            span="from the first request to the last status", cycles=cycles[-1],
            bound=len(words) * timing.attend_bound(shape, tokens, shape.pq.entries),
        ),
    )  # fmt: skip
