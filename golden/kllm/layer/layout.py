"""The places in the memories of what a layer's programs name. Pure Python."""

import dataclasses
from collections.abc import Mapping

from golden.config import ConfigError
from golden.kllm.config import MachineConfig
from golden.kllm.flow import FUSED, LINEARS, SITES, matmuls
from golden.kllm.isa import ROW_ELEMENTS, row_count
from golden.kllm.layer.shape import CLAMPED_LIMIT, LayerOptions, LayerShape, network_parts
from golden.kllm.layer.vector_norm import vector_norms

_PROJECTED = FUSED["qkv"]  # whose outputs lie side by side, fused or not


@dataclasses.dataclass(frozen=True)
class Job:
    """The tokens that a program processes: new ones, after cached ones of their sequence.

    ConfigError: numbers that no program has.
    """

    tokens: int = 1
    context: int = 0

    def __post_init__(self) -> None:
        tokens, context = self.tokens, self.context
        if tokens < 1 or context < 0:
            raise ConfigError(
                f"tokens must be at least 1, context at least 0, not {tokens}, {context}"
            )

    @property
    def attended(self) -> int:
        """Tokens of the sequence when the new ones are in it."""
        return self.context + self.tokens


# Rows of equal elements, of a clamped network: the greatest, the least, and what up gets.
LIMITS = (CLAMPED_LIMIT, -CLAMPED_LIMIT, 1.0)
MEAN = "mean."  # begins the name of an image that sums a row
_NETWORK = ("gate", "up", "gate_up", "down")  # matmuls that have parts


def parts_of(matmul: str, parts: int) -> int:
    """The parts of a matmul in a layer whose network has so many."""
    return parts if matmul in _NETWORK else 1


def part_name(matmul: str, part: int, parts: int) -> str:
    """The image of a matmul, or of its part: ``down.1``."""
    return f"{matmul}.{part}" if parts_of(matmul, parts) > 1 else matmul


def matmul_of(image: str) -> str:
    """``down`` of ``down.1``"""
    return image.partition(".")[0]


def used_sites(shape: LayerShape) -> tuple[str, ...]:
    """The activations whose codebooks are in memory. q, k, v are not quantized by codebooks."""
    given = (*shape.linears, *(linear.site for linear in LINEARS.values()))
    return tuple(name for name, each in SITES.items() if name in given and not each.heads)


def linear_sizes(shape: LayerShape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear layer of a layer."""
    query, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sizes = {
        "q": (shape.hidden, query),
        "k": (shape.hidden, kv),
        "v": (shape.hidden, kv),
        "o": (query, shape.hidden),
        "gate": (shape.hidden, shape.intermediate),
        "up": (shape.hidden, shape.intermediate),
        "down": (shape.intermediate, shape.hidden),
    }
    return {name: sizes[name] for name in shape.linears}


def vector_lengths(shape: LayerShape, options: LayerOptions) -> dict[str, int]:
    """Elements of the vectors that are added to, or multiplied with, what commands compute.

    ``sinks`` has a score of each query head.
    """
    sizes = linear_sizes(shape)
    lengths = {}
    if options.center:
        lengths["key_offset"] = sizes["k"][1]
    if set(_PROJECTED) & set(shape.biases):
        lengths["bias.qkv"] = sum(sizes[name][1] for name in _PROJECTED)
    for name in shape.biases:
        if name not in _PROJECTED:
            lengths[f"bias.{name}"] = sizes[name][1]
    if shape.sinks:
        lengths["sinks"] = shape.heads
    if shape.clamped:
        lengths["limits"] = len(LIMITS) * ROW_ELEMENTS
    for name, norm in vector_norms(shape, options.fuse).items():
        lengths |= {f"gamma.{name}": norm.elements, f"epsilon.{name}": ROW_ELEMENTS}
    return lengths


@dataclasses.dataclass(frozen=True)
class LayerLayout:
    """place : first row and rows of each vector of the data memory, in order

    image : word address and shape (K, N) of each weight image, in order
    words : port words up to the end of all images
    """

    place: Mapping[str, tuple[int, int]]
    image: Mapping[str, tuple[int, int, int]]
    words: int


class Rows:
    """Vectors of a data memory, one after the other from row ``first`` on."""

    def __init__(self, first: int = 0) -> None:
        self.rows = first
        self.place: dict[str, tuple[int, int]] = {}

    def add(self, name: str, length: int, count: int = 1) -> None:
        """Rows for ``count`` vectors."""
        rows = count * row_count(length)
        self.place[name] = self.rows, rows
        self.rows += rows

    def add_constants(
        self,
        images: Mapping[str, object],
        shape: LayerShape,
        options: LayerOptions,
        config: MachineConfig,
    ) -> None:
        """Rows for the codebooks of a layer, the packets of its matmuls, and its vectors."""
        for name in used_sites(shape):
            self.add(f"codebook.{name}", ROW_ELEMENTS, 2)
        names = (matmul_of(name) for name in images if not name.startswith(MEAN))
        for name in dict.fromkeys(names):
            self.add(f"packet.{name}", config.kmeans_words)
        for name, length in vector_lengths(shape, options).items():
            if name == "sinks":
                length = ROW_ELEMENTS * config.sink_rows(length)
            self.add(name, length)


def images(
    shape: LayerShape, options: LayerOptions, config: MachineConfig, first: int = 0
) -> tuple[dict[str, tuple[int, int, int]], int]:
    """The weight images from word ``first`` on, and the word after them.

    Images of single linear layers come first, those that sum rows last. A part of the network has
    the outputs of its elements in gate and up, and their inputs in down.
    """
    parts = network_parts(shape.intermediate, options.parts)
    sizes, address = linear_sizes(shape), first
    made = matmuls(options.fuse, shape.intermediate, shape.gated)
    image = {}
    for name in sorted(made, key=lambda name: len(made[name]) > 1):
        length = sizes[made[name][0]][0]
        outputs = sum(sizes[each][1] for each in made[name])
        many = parts_of(name, parts)
        if name == "down":
            length //= many
        else:
            outputs //= many
        for part in range(many):
            image[part_name(name, part, many)] = address, length, outputs
            address += config.image_words(length, outputs)
    for name in vector_norms(shape, options.fuse):
        image[MEAN + name] = address, ROW_ELEMENTS, ROW_ELEMENTS
        address += config.image_words(ROW_ELEMENTS, ROW_ELEMENTS)
    return image, address


def layer_layout(
    shape: LayerShape, options: LayerOptions, config: MachineConfig, tokens: int
) -> LayerLayout:
    """The memories of one layer alone, with room for so many new tokens."""
    image, words = images(shape, options, config)
    rows = Rows()
    rows.add_constants(image, shape, options, config)
    for t in range(tokens):
        for name in ("cos", "sin"):
            rows.add(f"{name}{t}", shape.head_size // 2)
    rows.add("x", shape.hidden, tokens)
    return LayerLayout(rows.place, image, words)
