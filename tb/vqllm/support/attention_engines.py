"""One image of a KV head on each engine of attention: its words, and the cycles it spends."""

import json
from collections.abc import Sequence

import numpy as np

from golden.million.bounds import bound, step_bound
from golden.million.cache import Codebooks
from golden.million.decode import decode_sums
from golden.million.format import Op
from golden.million.timing import decode_values
from golden.million.vectors.decode_jobs import Job, beats_of, shared_vectors
from golden.vqllm.timing import attend_bound
from golden.words import layout_words, unpack_ints
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from hdl.million.decode_engine import MillionDecodeEngine, MillionDecodeEngineConfig
from hdl.million.layouts import beat_layout, score_layout
from hdl.vqllm.attend.attention import VqAttention, VqAttentionConfig
from tb.million.support.replay import Parts
from tb.million.support.steps import BASE
from tb.million.support.trains import lone_cycles
from tb.simulate.run import build_model, run_model
from tb.vqllm.support.attention import Head, Script
from tb.vqllm.support.heads import TRAIN, Config, Spent
from tb.vqllm.support.one_image import OneImage, Softmax


def _among(ends: Sequence[int]) -> int:
    """Cycles of COUNTED heads of a train: of the last one nothing follows, so it is faster."""
    return ends[-2] - ends[0]


def _vq_cycles(config: VqAttentionConfig, images: Sequence[OneImage], latency: int) -> list[Spent]:
    shape, scripts = config.shape, []
    for image in images:
        reads = image.in_passes(shape)
        head = Head.of(image.books, image.codes, image.q)
        for count in (1, TRAIN):
            script = Script(np.random.default_rng(1), config)
            script.book(0, head.books, head.exponents)
            for _ in range(count):
                script.request(head, 0)
            again = {name: content * count for name, content in reads.items()}
            scripts.append(script.params() | {"reads": again})
    model = build_model(VqAttention(config), long_run=True)
    params = {"scripts": scripts, "latency": latency}
    where = run_model(model, "tb.vqllm.tb_attention_run", config=config, params=params)
    cycles = json.loads((where / "cycles.json").read_text())
    return [
        Spent(
            tokens=image.tokens,
            others=(_among(train), attend_bound(shape, image.tokens, shape.pq.entries)),
            alone=alone[-1],
        )
        for image, alone, train in zip(images, cycles[::2], cycles[1::2], strict=True)
    ]


def _bytes(words: Sequence[int], size: int) -> bytes:
    return b"".join(word.to_bytes(size, "little") for word in words)


def _check_streams(parts: Parts, image: OneImage, first: int) -> None:
    """AssertionError unless the words so far are the image: codebooks, and codes from ``first``."""
    found, words = image.image(), parts.words
    if words["codebook"]:
        books = _bytes(words["codebook"], 2 * parts.lanes)
        assert books == found["books_k"] + found["books_v"], "codebooks: not the bytes of the image"
    size = image.pq.record_bytes
    records = _bytes(words["restored"], min(size, parts.data_bits // 8))
    k, v = (np.frombuffer(found[f"codes_{side}"], np.uint8).reshape(-1, size) for side in "kv")
    wanted = np.stack([k, v], 1)[first:].tobytes()
    assert records == wanted, "records: not the bytes of the image"


def million_parts(config: MillionAttentionConfig, images: Sequence[OneImage]) -> list[dict]:
    """Parts ``alone N``, ``others N``, ``loaded N`` for N tokens, and those that place the codes.

    alone: an ATTEND. others: a train of them. loaded: a train, each with a LOAD before it. Each
    part names the images that it reads.
    """
    parts = Parts(config)
    sequence, done = parts.open(), 0
    books = Codebooks(*((book,) for book in images[0].books))
    parts.load(0, books)
    for image in images:
        k, v = image.codes
        for token in range(done, image.tokens):
            parts.restore(sequence, 0, k[None, token], v[None, token])
        _check_streams(parts, image, done)
        done = image.tokens
        parts.cut(f"restore {done}")
        found = {name: each for name, each in image.image().items() if "codes" in name}
        for name, count in (("alone", 1), ("others", TRAIN), ("loaded", TRAIN)):
            for _ in range(count):
                if name == "loaded":
                    parts.load(0, books)
                parts.attend(sequence, 0, image.q[None])
            parts.cut(f"{name} {done}")
            parts.parts[-1]["reads"] = {side: each * count for side, each in found.items()}
    return parts.parts


def _million_cycles(
    config: MillionAttentionConfig, images: Sequence[OneImage], latency: int
) -> list[Spent]:
    parts = million_parts(config, images)
    for part in parts:  # codes are not measured while they come
        part["latency"] = 1 if part["name"].startswith("restore") else latency
    model = build_model(MillionAttention(config), long_run=True)
    params = {"parts": parts, "base": BASE, "latency": latency}
    where = run_model(model, "tb.million.tb_replay", config=config, params=params)
    found = json.loads((where / "replay.json").read_text())["parts"]
    cache, rate, spent = config.cache, config.rate, []

    def train(name: str) -> int:
        return _among([cycle for op, cycle in found[name]["statuses"] if op == Op.ATTEND])

    for image in images:
        tokens = image.tokens
        least = bound(cache.pq, rate, cache.head.group, tokens, config.data_bits).head
        step = step_bound(cache, rate, tokens, config.data_bits, layers=1)
        spent.append(
            Spent(
                tokens=tokens,
                others=(train(f"others {tokens}"), least),
                alone=lone_cycles({f"alone {tokens}": found[f"alone {tokens}"]}, "alone"),
                loaded=(train(f"loaded {tokens}"), step),
            )
        )
    return spent


def decode_words(config: MillionDecodeEngineConfig, image: OneImage) -> dict[str, list[int]]:
    """Words of each stream for TRAIN jobs of keys and of values, each with its codebook."""
    rng, rate = np.random.default_rng(1), config.rate
    softmax = Softmax.decoded(image)
    scores, weights = softmax.scores.numpy(), softmax.weights.T.numpy()
    sums = decode_sums(softmax.weights.T, image.books[1].words, image.codes[1])
    queries, parts = len(image.q), config.parts
    order = np.arange(queries * config.pq.head_dim).reshape(queries, parts, rate.macs)
    flat = sums.integers()
    values = [[flat[n] for n in row] for row in order.transpose(1, 0, 2).reshape(-1, rate.macs)]
    words: dict[str, list[int]] = {}
    q = np.tile(image.q.numpy().reshape(-1, rate.lanes), (TRAIN, 1))
    none = np.zeros(TRAIN, dtype=np.int64)

    def keys(words: np.ndarray) -> np.ndarray:
        """Beats of a word for each query, of all jobs; slots beyond the keys have +0."""
        beats = beats_of(words, rate.keys, lambda count: np.zeros((count, queries), dtype=np.int64))
        return np.tile(beats, (TRAIN, 1, 1))

    beats = -(-image.tokens // rate.keys)
    last = np.tile(np.arange(beats) == beats - 1, TRAIN)
    for side, block, book, codes in zip(
        "kv", (config.keys_side, config.values_side), image.books, image.codes, strict=True
    ):
        jobs = [Job(book.words.numpy(), True, codes.numpy(), {})] * TRAIN
        vectors, _ = shared_vectors(rng, block, jobs)
        job = {"keys": none + image.tokens, "entries": none + config.pq.entries, "switch": none + 1}
        if side == "k":
            size = queries * block.query_beats
            vectors |= {
                "q": layout_words(
                    beat_layout(rate.lanes), word=q, last=np.arange(len(q)) % size == size - 1
                ),
                "score": layout_words(score_layout(rate), word=keys(scores), last=last),
                "end": layout_words(block.end_layout, bad_code=none, bad=none),
            }
            job |= {
                "slope": np.zeros((TRAIN, queries), dtype=np.int64),
                "exponent": none + book.exponent,
                "distance": none + image.tokens - 1,
            }
        else:
            vectors |= {
                "weight": layout_words(
                    score_layout(rate), word=keys(weights), last=last
                ),
                "sum": layout_words(
                    block.sum_layout, value=values * TRAIN,
                    last=np.tile(np.arange(len(values)) == len(values) - 1, TRAIN),
                ),
                "end": layout_words(block.end_layout, bad_code=none),
            }  # fmt: skip
        vectors["job"] = layout_words(block.job_layout, **job)
        words |= {f"{side}_{name}": unpack_ints(each) for name, each in vectors.items()}
    return words


def _decode_cycles(
    config: MillionDecodeEngineConfig, images: Sequence[OneImage], latency: int
) -> list[Spent]:
    model, spent = build_model(MillionDecodeEngine(config), long_run=True), []
    books = config.pq.entries * config.parts  # words of a codebook; those of K and V come together
    for image in images:
        params = {"words": decode_words(config, image)}
        where = run_model(model, "tb.million.tb_decode_run", config=config, params=params)
        ends = json.loads((where / "cycles.json").read_text())
        drain = decode_values().latency + config.parts * config.rate.queries - 1  # sums leave
        spent.append(
            Spent(
                tokens=image.tokens,
                others=(
                    max(_among(each) for each in ends.values()),
                    max(-(-image.tokens // config.rate.keys) + drain, books),
                ),
            )
        )
    return spent


def measure(config: Config, images: Sequence[OneImage], latency: int) -> list[Spent]:
    """Cycles of an engine for each image, each the first tokens of one.

    AssertionError where an output differs from golden's, or a byte that is read from the image's.
    """
    if isinstance(config, VqAttentionConfig):
        return _vq_cycles(config, images, latency)
    if isinstance(config, MillionAttentionConfig):
        return _million_cycles(config, images, latency)
    return _decode_cycles(config, images, latency)
