"""A model's K, V and queries as the streams of ``million_attention``, on disk and back.

``python -m golden.llm.pack --block million_attention -o DIR`` writes, as text for $readmemh:

    codebook_LL.hex  beats of a LOAD of layer LL
    request.hex      requests in order
    kv.hex           beats of K and V of each PREFILL and APPEND
    restored.hex     words of the records of each RESTORE
    query.hex        beats of the queries of each ATTEND, the slope above them
    o.hex            beats of the outputs of each ATTEND
    status.hex       one status per request, in order of requests
    manifest.json    golden.manifest

golden.million.script has the layout of the words. Statuses are in order of requests here; hardware
may answer requests of different kinds in another order.
"""

import argparse
import dataclasses
import pydoc_data.topics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from golden.config import Config, ConfigError, nested, power_of_two
from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.llm import checkpoint, text
from golden.llm.million import example
from golden.manifest import Manifest, PackError, write_hex
from golden.million.cache import Codebooks
from golden.million.config import SYSTEMS, MillionConfig
from golden.million.format import Op
from golden.million.script import REQUEST_FIELDS, STATUS_FIELDS, STREAMS, Script, fields

BLOCK = "million_attention"
LLAMA = "llama"  # --model: a LLaMA of random weights
LLAMA_LAYERS = 3
WINDOW = 512  # tokens of a window of training text


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamConfig(Config):
    """The choices that the words of a pack depend on."""

    cache: MillionConfig = nested(lambda: SYSTEMS["smollm2"], kind=MillionConfig)
    lanes: int = power_of_two(16, 4, 64, "words per beat of q, K, V, codebooks and outputs")
    data_bits: int = power_of_two(256, 64, 1024, "bits of a memory word")

    @property
    def widths(self) -> dict[str, int]:
        """Bits of a word of each stream."""
        beat = FP16.bits * self.lanes
        return {
            "request": sum(REQUEST_FIELDS.values()),
            "codebook": beat,
            "kv": beat,
            "query": beat + FP16.bits,
            "restored": self.data_bits,
            "o": beat,
            "status": sum(STATUS_FIELDS.values()),
        }


@dataclasses.dataclass(frozen=True)
class Pack:
    """A folder, read back: the words of every stream, those of each LOAD among them."""

    manifest: Manifest
    words: dict[str, list[int]]


def _codebook(layer: int) -> str:
    return f"codebook_{layer:02d}.hex"


def write(
    folder: Path, config: StreamConfig, script: Script, model: dict[str, Any], made: dict[str, Any]
) -> Manifest:
    """Write a script; ``model`` and ``made`` go into the manifest.

    ConfigError: two LOADs of a layer bring different codebooks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    streams = {name: script.words[name] for name in STREAMS if name != "codebook"}
    files = {
        f"{name}.hex": write_hex(folder, f"{name}.hex", words, config.widths[name])
        for name, words in streams.items()
    }
    books: dict[int, list[int]] = {}
    at = 0
    for each in _loads(script.words["request"]):
        count = _load_beats(config, each["entries"])
        beats = script.words["codebook"][at : at + count]
        at += count
        if books.setdefault(each["layer"], beats) != beats:
            raise ConfigError(f"layer {each['layer']} must have the same codebooks in every LOAD")
    for layer, beats in books.items():
        name = _codebook(layer)
        files[name] = write_hex(folder, name, beats, config.widths["codebook"])
    layout = {"request": REQUEST_FIELDS, "status": STATUS_FIELDS}
    manifest = Manifest(
        block=BLOCK, config=config.describe(), model=model, made=made, layout=layout, files=files
    )
    manifest.write(folder)
    return manifest


def _loads(requests: Iterable[int]) -> list[dict[str, int]]:
    found = (fields(REQUEST_FIELDS, word) for word in requests)
    return [each for each in found if each["op"] == Op.LOAD]


def _load_beats(config: StreamConfig, entries: int) -> int:
    return 2 * config.cache.books * entries * config.cache.pq.head_dim // config.lanes


def load(folder: Path, config: StreamConfig) -> Pack:
    """A folder made for this configuration.

    PackError, one line: another format version, block or configuration; a file that is missing or
    has changed. Another one: a file has not as many words as the requests need.
    """
    folder = Path(folder)
    manifest = Manifest.read(folder, BLOCK, config.describe())

    def words(name: str, width: int) -> list[int]:
        return [word for _, word in manifest.words(folder, name, width)]

    widths = config.widths
    streams = {name: words(f"{name}.hex", widths[name]) for name in STREAMS if name != "codebook"}
    loads = _loads(streams["request"])
    books = {layer: words(_codebook(layer), widths["codebook"]) for layer in
             {each["layer"] for each in loads}}  # fmt: skip
    needed = _needed(config, streams["request"])
    for name, count in needed.items():
        if len(streams[name]) != count:
            have = len(streams[name])
            raise PackError(f"{folder}: {name}.hex must have {count} words, not {have}")
    for each in loads:
        count, have = _load_beats(config, each["entries"]), len(books[each["layer"]])
        if have != count:
            raise PackError(
                f"{folder}: {_codebook(each['layer'])} must have {count} words, not {have}"
            )
    streams["codebook"] = [beat for each in loads for beat in books[each["layer"]]]
    return Pack(manifest, streams)


def _needed(config: StreamConfig, requests: list[int]) -> dict[str, int]:
    """Words of each stream but codebook."""
    cache = config.cache
    ops = [fields(REQUEST_FIELDS, word)["op"] for word in requests]
    vector = cache.head.heads * cache.pq.head_dim // config.lanes
    attends = ops.count(Op.ATTEND) * cache.head.group * vector
    record = -(-8 * cache.pq.record_bytes // config.data_bits)
    return {
        "status": len(requests),
        "kv": 2 * vector * (ops.count(Op.PREFILL) + ops.count(Op.APPEND)),
        "restored": 2 * cache.head.heads * record * ops.count(Op.RESTORE),
        "query": attends,
        "o": attends,
    }


def training_text() -> str:
    """golden.llm.text's sample, and Python's own manual for codebooks that need more tokens.

    The manual differs from one release of Python to the next. The sample, 13,075 tokens of SmolLM2,
    is enough for 256 entries. So the codebooks of all named configurations are the same everywhere.
    """
    topics = pydoc_data.topics.topics
    return "\n\n".join([text.sample(), *(topics[name] for name in sorted(topics))])


def _random_llama(config: MillionConfig) -> Any:
    """A LLaMA of LLAMA_LAYERS layers with the heads of ``config`` and random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads, d = config.head.heads * config.head.group, config.pq.head_dim
    torch.manual_seed(0)
    shape = LlamaConfig(
        hidden_size=heads * d, intermediate_size=2 * heads * d, num_hidden_layers=LLAMA_LAYERS,
        num_attention_heads=heads, num_key_value_heads=config.head.heads, head_dim=d,
        vocab_size=1024, initializer_range=0.05,
    )  # fmt: skip
    return LlamaForCausalLM(shape).eval()


def inputs(
    name: str, config: MillionConfig, training: int, tokens: int
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Model, windows of training ids, ids of prompt and further tokens."""
    count = -(-training // WINDOW)
    if name == LLAMA:
        ids = torch.randint(1024, (count * WINDOW + tokens,), generator=_generator())
        windows = ids[: count * WINDOW].reshape(count, WINDOW)
        return _random_llama(config), windows, ids[count * WINDOW :]
    loaded = checkpoint.load(None if name == checkpoint.SMOLLM2 else Path(name))
    windows = torch.stack(checkpoint.windows(loaded, training_text(), count, WINDOW))
    window = checkpoint.decoder(loaded).window
    if 0 < window < tokens:
        raise ConfigError(
            f"sliding_window must be null or at least the {tokens} tokens of the sequence, "
            f"not {window}"
        )
    prompt = text.CALIBRATION + "\n" + text.EVALUATION
    return loaded.model, windows, checkpoint.tokens(loaded, prompt, tokens)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _layers(wanted: list[int] | None, count: int) -> list[int]:
    if wanted is None:
        return sorted({0, (count - 1) // 2, count - 1})
    checkpoint.check_layers(wanted, count, "layer")
    return list(dict.fromkeys(wanted))


def joined(parts: list[example.Seen]) -> example.Seen:
    return example.Seen(*(torch.cat([getattr(part, name) for part in parts]) for name in "kvq"))


def make(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """The folder of the ``options`` of golden.llm.pack. ConfigError, CheckpointError, OSError."""
    name = str(options.model)
    base = SYSTEMS[options.config or (LLAMA if name == LLAMA else "smollm2")]
    config = StreamConfig.parse(StreamConfig(cache=base), options.set)
    assert isinstance(config, StreamConfig)
    cache = config.cache
    context, steps = options.context, options.tokens
    training = -(-39 * cache.pq.entries // (1 if cache.scope_heads else cache.head.heads))
    if name != LLAMA and (found := checkpoint.head_shape(name)):  # before minutes of loading
        example.check_heads(cache, *found)
    path = None if name == checkpoint.SMOLLM2 else Path(name)
    count = LLAMA_LAYERS if name == LLAMA else checkpoint.layer_count(path)
    if count is not None:
        example.check(cache, _layers(options.layer, count), context, steps)
    else:
        example.check_length(cache, context, steps)
    say(f"loading {name}")
    model, windows, ids = inputs(name, cache, training, context + steps)
    layers = _layers(options.layer, model.config.num_hidden_layers)
    example.check(cache, layers, context, steps)
    say(f"training codebooks of layers {layers} on {windows.numel()} tokens")
    parts = [example.capture(model, window, layers, cache) for window in windows]
    books: dict[int, Codebooks] = {}
    for n, layer in enumerate(layers):
        books[layer] = example.trained(joined([part[n] for part in parts]), cache)
    seen = dict(zip(layers, example.capture(model, ids, layers, cache), strict=True))
    script = Script(cache, config.lanes, config.data_bits)
    outputs = example.run(script, seen, books, context, steps, say)
    errors = {layer: _error(seen[layer], words, context) for layer, words in outputs.items()}
    for layer, error in errors.items():
        say(f"layer {layer}: error of the outputs {error:.4f}")
    described = {
        "name": name, "layers": layers, "context": context, "tokens": steps,
        "error": {str(layer): round(error, 6) for layer, error in errors.items()},
    }  # fmt: skip
    learned = "golden.llm.text, sample, then topics of Python's pydoc"
    made = {
        "tool": "golden.llm.pack",
        "torch": torch.__version__,
        "text": (
            "random tokens" if name == LLAMA else "golden.llm.text, CALIBRATION then EVALUATION"
        ),
        "training": "random tokens" if name == LLAMA else learned,
        "training_tokens": windows.numel(),
    }
    manifest = write(options.output, config, script, described, made)
    total = sum(entry["bytes"] for entry in manifest.files.values())
    say(f"{len(manifest.files)} files, {total / 1e6:.1f} MB in {options.output}")


def _error(seen: example.Seen, words: torch.Tensor, first: int) -> float:
    """Norm of the difference from exact attention, over the norm of that."""
    exact = example.exact_outputs(seen, first)
    return float((float_from_bits(words, FP16) - exact).norm() / exact.norm())
