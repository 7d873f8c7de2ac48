"""Sizes of a model, and where its memories hold what. Pure Python."""

import dataclasses
from collections.abc import Mapping

from golden.config import Config, ConfigError, Kind, Range, declared, real
from golden.kllm.config import MachineConfig
from golden.kllm.isa import ROW_ELEMENTS, row_count
from golden.kllm.layer.layout import Job, LayerLayout, Rows, images
from golden.kllm.layer.program import HeadLayout, cap_scalar
from golden.kllm.layer.shape import LayerOptions, LayerShape

ANGLES = ("cos", "sin")
CONTEXT_MAX = 16383  # tokens of a sequence
_ADDRESSES = 1 << 32  # of words, in LOAD and in MATMUL
HEAD_SHARE = 0.02  # outliers on each side of a token before the head


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelShape(Config):
    """Sizes of a model, all layers alike but for ``unrotated``, ``windows`` and ``local``."""

    layer: LayerShape = dataclasses.field(metadata=declared(Kind(LayerShape)))
    layers: int = dataclasses.field(metadata=declared(Range(1, 1024), "decoder layers"))
    vocabulary: int = dataclasses.field(
        metadata=declared(Range(2, 1 << 20), "tokens of the tokenizer")
    )
    context: int = dataclasses.field(
        metadata=declared(Range(2, CONTEXT_MAX), "most tokens of a sequence")
    )
    unrotated: tuple[int, ...] = ()  # layers whose q and k are not rotated
    windows: tuple[int, ...] = ()  # ``window`` of each layer; empty: all as in ``layer``
    local: tuple[int, ...] = ()  # layers with the second table of angles
    logit_cap: float = real(0.0, 0.0, 65504.0, "c of c * tanh(logit / c); 0: none")

    def __post_init__(self) -> None:
        object.__setattr__(self, "unrotated", tuple(self.unrotated))
        if not set(self.unrotated) <= set(range(self.layers)):
            self._refuse("unrotated", f"of layers 0..{self.layers - 1}")
        object.__setattr__(self, "windows", tuple(self.windows))
        if len(self.windows) not in (0, self.layers):
            self._refuse("windows", f"none, or one of each of {self.layers} layers")
        object.__setattr__(self, "local", tuple(self.local))
        if not set(self.local) <= set(range(self.layers)):
            self._refuse("local", f"of layers 0..{self.layers - 1}")
        if self.logit_cap:
            cap_scalar(self.logit_cap)

    def layer_of(self, number: int) -> LayerShape:
        """The shape of a layer."""
        window = self.windows[number] if self.windows else self.layer.window
        return dataclasses.replace(
            self.layer, rotary=number not in self.unrotated, window=window
        )

    @property
    def widest(self) -> LayerShape:
        """The layer that needs most of a machine: with the shortest window."""
        some = [self.layer.window, *self.windows]
        return dataclasses.replace(self.layer, window=min(filter(None, some), default=0))


@dataclasses.dataclass(frozen=True)
class ModelLayout:
    """The memories of a model for sequences of up to ``shape.context`` tokens.

    layers : of each layer
    angles : first rows of the cosines and of the sines of position 0, and rows of a position; by
        the names of ``angle_names``
    head : of the head
    embedding : first row of token 0
    rows : of the data memory; words : of the memory of port 0
    """

    shape: ModelShape
    options: LayerOptions
    config: MachineConfig
    layers: tuple[LayerLayout, ...]
    angles: Mapping[str, tuple[int, int]]
    head: HeadLayout
    embedding: int
    rows: int
    words: int

    def row_of_token(self, token: int) -> int:
        """First row of a token's embedding."""
        return self.embedding + token * row_count(self.shape.layer.hidden)

    def of_layer(self, number: int, job: Job) -> LayerLayout:
        """The layout that a layer's commands name for this job, with the rows of its angles."""
        whole = self.layers[number]
        place = dict(whole.place)
        for t in range(job.tokens):
            for name, table in zip(ANGLES, angle_names(number in self.shape.local), strict=True):
                first, count = self.angles[table]
                place[f"{name}{t}"] = first + (job.context + t) * count, count
        return LayerLayout(place, whole.image, whole.words)


def angle_names(local: bool) -> tuple[str, ...]:
    """The tables of cosines and sines, of layers in ``ModelShape.local`` or of the others."""
    return tuple(f"local_{name}" if local else name for name in ANGLES)


def model_layout(shape: ModelShape, options: LayerOptions, config: MachineConfig) -> ModelLayout:
    """ConfigError: the memories are beyond the addresses."""
    rows, words = Rows(), 0
    per_position = row_count(shape.layer.head_size // 2)
    tables = angle_names(local=False) + (angle_names(local=True) if shape.local else ())
    for name in tables:
        rows.add(name, shape.layer.head_size // 2, shape.context)
    rows.add("codebook.head", ROW_ELEMENTS, 2)
    rows.add("packet.head", config.kmeans_words)
    shared = dict(rows.place)
    layers = []
    for _ in range(shape.layers):
        made, words = images(shape.layer, options, config, words)
        own = Rows(rows.rows)
        own.add_constants(made, shape.layer, options, config)
        rows.rows = own.rows
        layers.append(LayerLayout(own.place, made, words))
    size = config.image_words(shape.layer.hidden, shape.vocabulary)
    head = HeadLayout(
        shape.vocabulary,
        codebook=shared["codebook.head"][0],
        packet=shared["packet.head"][0],
        weights=words,
        residual=words + size,
        cap=shape.logit_cap,
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
        angles={name: (shared[name][0], per_position) for name in tables},
        head=head,
        embedding=rows.place["embedding"][0],
        rows=rows.rows,
        words=words,
    )
