"""``tb.runs.vq_kv``: a layer's K and V through the encoder and through attention."""

import argparse
import dataclasses
import json

import numpy as np
import torch
from rich.console import Console

from golden.command import elapsed
from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.index.lloyd import Training
from golden.index.pq import exact_codes
from golden.million import example
from golden.million.attention import Codebook
from golden.million.config import HeadShape, MillionConfig
from golden.million.pack import inputs, joined
from golden.vqllm import timing
from golden.vqllm.attention import attend
from hdl.million.layouts import beat_layout
from hdl.vqllm.attention import VqAttention, VqAttentionConfig
from hdl.vqllm.kv_encoder import VqKvEncoder, VqKvEncoderConfig
from hdl.vqllm.room import BLOCKS
from tb.million.support.tables import codebook_words
from tb.run import build_model, run_model, simulate
from tb.runs.vq_kv import MODELS
from tb.vqllm.support.attention import Head, Script
from tb.words import layout_words

__all__ = ["Layer", "captured", "encode", "report", "run"]

HEADS = {"smollm2": HeadShape(heads=3, group=3), "llama": HeadShape(heads=2, group=4)}
# By model: names of the registered configurations; "" is the default one.
CONFIGS = {
    "smollm2": {"cq4": "cq4_64", "cq2": "cq2_64"},
    "llama": {"cq4": "", "cq2": "cq2"},
}
_ITERATIONS = 10
_HEADINGS = ("model", "method", "head size", "tokens", "codes equal", "outputs equal", "cycles",
            "bound", "ratio", "error of outputs")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Layer:
    """What a layer sees, and codebooks of its KV heads: K's, V's."""

    seen: example.Seen
    books: tuple[tuple[Codebook, ...], tuple[Codebook, ...]]


def configuration(block: str, name: str):
    registered = BLOCKS[block]
    return registered.configs[name] if name else registered.config


def captured(model: str, options: argparse.Namespace) -> dict[str, Layer]:
    """By method, the layer of a model with codebooks by k-means on other tokens."""
    found, parts = {}, None
    for method in options.method or CONFIGS[model]:
        name = CONFIGS[model][method]
        config = configuration("vq_attention", name)
        cache = MillionConfig(pq=config.shape.pq, head=HEADS[model], layers=32, scope_heads=True)
        if parts is None:
            source, windows, ids = inputs(model, cache, options.training, options.tokens)
            parts = [example.capture(source, each, [options.layer], cache)[0] for each in windows]
            seen = example.capture(source, ids, [options.layer], cache)[0]
        training = Training(iterations=_ITERATIONS, few=True)
        books = example.trained(joined(parts), cache, training)
        found[method] = Layer(seen, (books.k, books.v))
    return found


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
        made = Head(
            [book.words.numpy() for book in books], [book.exponent for book in books],
            [side[:, head].numpy() for side in codes], q.numpy(),
        )  # fmt: skip
        script.book(head, made.books, made.exponents)
        waiting.append(made)
    for head, made in enumerate(waiting):  # all books come before the first request
        script.request(made, head)
    model = build_model(VqAttention(config))
    params = {"scripts": [script.params()], "latency": latency}
    where = run_model(model, "tb.vqllm.tb_attention_run", config=config, params=params)
    (cycles,) = json.loads((where / "cycles.json").read_text())
    return cycles, torch.stack(outputs)


def report(options: argparse.Namespace) -> int:
    console, rows = Console(), []
    say = elapsed(lambda text: console.print(text, highlight=False))
    for model in [options.model] if options.model else MODELS:
        for method, layer in captured(model, options).items():
            name = CONFIGS[model][method]
            codes = encode(layer, configuration("vq_kv_encoder", name))
            config = configuration("vq_attention", name)
            cycles, words = run(layer, codes, config, options.latency)
            shape, tokens = config.shape, len(codes[0])
            bound = len(words) * timing.attend_bound(shape, tokens, shape.pq.entries)
            exact = example.exact_outputs(layer.seen, tokens - 1)[0]
            error = float((float_from_bits(words, FP16) - exact).norm() / exact.norm())
            rows.append([
                model, method, shape.pq.head_dim, tokens, sum(each.numel() for each in codes),
                words.numel(), cycles[-1], bound, f"{cycles[-1] / bound:.3f}", f"{error:.3f}",
            ])  # fmt: skip
            say(f"{model}, {method}: all equal")
    table = ["| " + " | ".join(_HEADINGS) + " |", "|" + " ---: |" * len(_HEADINGS)]
    table += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    print("\n".join(table))
    return 0
