"""Sizes of a model, and where its memories hold what. Pure Python."""

import dataclasses
from collections.abc import Mapping

from golden.config import Config, ConfigError, Kind, Range, declared
from golden.kllm.config import MachineConfig
from golden.kllm.isa import ROW_ELEMENTS, row_count
from golden.kllm.layer.layout import Job, LayerLayout, Rows, images
from golden.kllm.layer.program import HeadLayout
from golden.kllm.layer.shape import LayerOptions, LayerShape

CONTEXT_MAX = 16383  # tokens of a sequence
_ADDRESSES = 1 << 32  # of words, in LOAD and in MATMUL
_CACHED = ("k", "v")
HEAD_SHARE = 0.02  # outliers on each side of a token before the head


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelShape(Config):
    """Sizes of a LLaMA-like model, all layers alike."""

    layer: LayerShape = dataclasses.field(metadata=declared(Kind(LayerShape)))
    layers: int = dataclasses.field(metadata=declared(Range(1, 1024), "decoder layers"))
    vocabulary: int = dataclasses.field(
        metadata=declared(Range(2, 1 << 20), "tokens of the tokenizer")
    )
    context: int = dataclasses.field(
        metadata=declared(Range(2, CONTEXT_MAX), "most tokens of a sequence")
    )


@dataclasses.dataclass(frozen=True)
class ModelLayout:
    """The memories of a model, with room for ``shape.context`` cached tokens in every layer.

    layers : of each layer; of V's scales all rows, of the cache images all tokens
    angles : first rows of the cosines and of the sines of position 0, and rows of a position
    mask : first row of what the host writes for several new tokens; no row where the unit CACHE
        attends
    head : of the head
    embedding : first row of token 0
    rows : of the data memory; words : of the memory of port 0
    """

    shape: ModelShape
    options: LayerOptions
    config: MachineConfig
    layers: tuple[LayerLayout, ...]
    angles: Mapping[str, tuple[int, int]]
    mask: int
    head: HeadLayout
    embedding: int
    rows: int
    words: int

    def row_of_token(self, token: int) -> int:
        """First row of a token's embedding."""
        return self.embedding + token * row_count(self.shape.layer.hidden)

    def of_layer(self, number: int, job: Job) -> LayerLayout:
        """The layout that the programs of a layer name for this job, a job of one sequence."""
        whole, rows = self.layers[number], row_count(job.attended)
        place = dict(whole.place)
        for t in range(job.tokens):
            for name, (first, count) in self.angles.items():
                place[f"{name}{t}"] = first + (job.context + t) * count, count
        if not self.options.lanes_attend:
            return LayerLayout(place, whole.image, whole.words)
        place |= self.masks(job)
        image = dict(whole.image)
        for head in range(self.shape.layer.kv_heads):
            scales = job.cached("v_scale", 0, head)
            place[scales] = place[scales][0], rows
            k, v = (job.cached(name, 0, head) for name in _CACHED)
            size = self.shape.layer.head_size
            image[k] = image[k][0], size, job.attended
            image[v] = image[v][0], job.attended, size
        return LayerLayout(place, image, whole.words)

    def masks(self, job: Job) -> dict[str, tuple[int, int]]:
        """Rows of the masks, which the host writes before the pass."""
        if not self.options.lanes_attend:
            return {}
        rows = row_count(job.attended)
        return {f"mask{t}": (self.mask + t * rows, rows) for t in range(job.masks)}


def model_layout(
    shape: ModelShape, options: LayerOptions, config: MachineConfig, chunk: int = 1
) -> ModelLayout:
    """chunk: most new tokens of a pass. ConfigError: the memories are beyond the addresses."""
    rows, words = Rows(), 0
    per_position = row_count(shape.layer.head_size // 2)
    for name in ("cos", "sin"):
        rows.add(name, shape.layer.head_size // 2, shape.context)
    rows.add("mask", shape.context, max(chunk - 1, 1) if options.lanes_attend else 0)
    rows.add("codebook.head", ROW_ELEMENTS, 2)
    rows.add("packet.head", config.kmeans_words)
    shared = dict(rows.place)
    layers = []
    room = Job(context=shape.context - 1)
    for _ in range(shape.layers):
        made, words = images(shape.layer, options, config, room, words)
        own = Rows(rows.rows)
        own.add_constants(made, shape.layer, options, config)
        for kv_head in range(shape.layer.kv_heads if options.lanes_attend else 0):
            own.add(room.cached("v_scale", 0, kv_head), room.attended)
        rows.rows = own.rows
        layers.append(LayerLayout(own.place, made, words))
    size = config.image_words(shape.layer.hidden, shape.vocabulary)
    head = HeadLayout(
        shape.vocabulary,
        codebook=shared["codebook.head"][0],
        packet=shared["packet.head"][0],
        weights=words,
        residual=words + size,
    )
    words += 2 * size
    rows.add("embedding", shape.layer.hidden, shape.vocabulary)
    for what, needed in (("words of each weight port", words), ("rows of 32 bytes", rows.rows)):
        if needed > _ADDRESSES:
            raise ConfigError(f"the model needs {needed} {what}; commands address {_ADDRESSES}")
    return ModelLayout(
        shape=shape,
        options=options,
        config=config,
        layers=tuple(layers),
        angles={name: (shared[name][0], per_position) for name in ("cos", "sin")},
        mask=shared["mask"][0],
        head=head,
        embedding=rows.place["embedding"][0],
        rows=rows.rows,
        words=words,
    )
