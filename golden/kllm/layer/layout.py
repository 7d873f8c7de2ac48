"""The places in the memories of what a layer's programs name. Pure Python."""

import dataclasses
from collections.abc import Iterable, Mapping

from golden.config import ConfigError
from golden.kllm.config import MachineConfig
from golden.kllm.flow import FUSED, LINEARS, ROUTER, SITES, kind_of, matmuls
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
_NETWORK = ("gate", "up", "gate_up", "down")  # matmuls that have parts, or one for each expert
BASE = "base"  # begins the name of a row that has the first word of an expert's images
ROUTER_IMAGES = 3  # of the router, each of what those before it leave


def parts_of(matmul: str, parts: int) -> int:
    """The parts of a matmul in a layer whose network has so many."""
    return parts if matmul in _NETWORK else 1


def part_name(matmul: str, part: int, parts: int) -> str:
    """The image of a matmul, or of its part: ``down.1``."""
    return f"{matmul}.{part}" if parts_of(matmul, parts) > 1 else matmul


def router_image(number: int) -> str:
    """The image of the router of which ``number`` others come before."""
    return f"{ROUTER}.{number}"


def in_tables(names: Iterable[str]) -> list[str]:
    """The names, each once, those of a matmul one after the other, as LOAD_AT takes a table."""
    found = dict.fromkeys(names)
    kinds = dict.fromkeys(kind_of(name) for name in found)
    return [name for kind in kinds for name in found if kind_of(name) == kind]


def expert_of(name: str) -> int:
    """3 of ``gate.3``, -1 of a name without a number"""
    number = name.partition(".")[2]
    return int(number) if number else -1


def layer_matmuls(shape: LayerShape, options: LayerOptions) -> dict[str, tuple[str, ...]]:
    """Matmuls of a layer, of all experts, and the linear layers in each; the router is the last."""
    made = {}
    for name, members in matmuls(options.fuse, shape.intermediate, shape.gated).items():
        if not shape.experts or name not in _NETWORK:
            made[name] = members
    for expert in range(shape.experts):
        for name, members in matmuls(options.fuse, shape.intermediate, shape.gated).items():
            if name in _NETWORK:
                made[f"{name}.{expert}"] = tuple(f"{member}.{expert}" for member in members)
    return made | ({ROUTER: (ROUTER,)} if shape.experts else {})


def packet_of(image: str, shape: LayerShape) -> str:
    """The matmul whose packet the lanes hold for an image: parts have one together."""
    kind = kind_of(image)
    return image if shape.experts and kind in _NETWORK else kind


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
        ROUTER: (shape.hidden, shape.experts),
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
            lengths |= {f"bias.{own}": sizes[name][1] for own in shape.layers_of(name)}
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
        """Rows for the codebooks of a layer, the packets of its matmuls, and its vectors.

        ``attention`` is what the host writes, where it attends.
        """
        if options.by_host:
            self.add("attention", shape.heads * shape.head_size)
        for name in used_sites(shape):
            self.add(f"codebook.{name}", ROW_ELEMENTS, 2)
        names = (packet_of(name, shape) for name in images if not name.startswith(MEAN))
        for name in in_tables(names):
            self.add(f"packet.{name}", config.kmeans_words)
        for expert in range(shape.experts):
            self.add(f"{BASE}.{expert}", ROW_ELEMENTS)
        for name, length in vector_lengths(shape, options).items():
            if name == "sinks":
                length = ROW_ELEMENTS * config.sink_rows(length)
            self.add(name, length)


def images(
    shape: LayerShape, options: LayerOptions, config: MachineConfig, first: int = 0
) -> tuple[dict[str, tuple[int, int, int]], int]:
    """The weight images from word ``first`` on, and the word after them.

    Images of single linear layers come first, those that sum rows last. A part of the network has
    the outputs of its elements in gate and up, and their inputs in down. The images of an expert
    follow each other, in the same order, and so do the experts.
    """
    parts = network_parts(shape.intermediate, options.parts)
    sizes, address = linear_sizes(shape), first
    made = layer_matmuls(shape, options)
    image = {}
    for name in sorted(made, key=lambda name: (expert_of(name), len(made[name]) > 1)):
        length = sizes[kind_of(made[name][0])][0]
        outputs = sum(sizes[kind_of(each)][1] for each in made[name])
        many = ROUTER_IMAGES if name == ROUTER else parts_of(name, parts)
        if name == "down":
            length //= many
        elif name != ROUTER:
            outputs //= many
        for part in range(many):
            own = router_image(part) if name == ROUTER else part_name(name, part, many)
            image[own] = address, length, outputs
            address += config.image_words(length, outputs)
    for name in vector_norms(shape, options.fuse):
        image[MEAN + name] = address, ROW_ELEMENTS, ROW_ELEMENTS
        address += config.image_words(ROW_ELEMENTS, ROW_ELEMENTS)
    return image, address


def expert_bases(
    shape: LayerShape, options: LayerOptions, config: MachineConfig
) -> list[int]:
    """Words from the images of expert 0 to those of each expert."""
    made, _ = images(shape, options, config)
    firsts = [made[f"down.{expert}"][0] for expert in range(shape.experts)]
    return [first - firsts[0] for first in firsts]


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
