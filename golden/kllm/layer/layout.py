"""The places in the memories of what a layer's programs name. Pure Python."""

import dataclasses
from collections.abc import Mapping

from golden.config import ConfigError
from golden.kllm.config import MachineConfig
from golden.kllm.flow import FUSED, LINEARS, SITES, matmuls
from golden.kllm.isa import ROW_ELEMENTS, row_count
from golden.kllm.layer.shape import LayerOptions, LayerShape


@dataclasses.dataclass(frozen=True)
class Job:
    """The tokens that a layer's programs process.

    tokens : new tokens; context : cached tokens before them
    caches : sequences that the new tokens belong to, 1 or ``tokens``

    ConfigError: numbers that no program has.
    """

    tokens: int = 1
    context: int = 0
    caches: int = 1

    def __post_init__(self) -> None:
        tokens, context = self.tokens, self.context
        if tokens < 1 or context < 0:
            raise ConfigError(
                f"tokens must be at least 1, context at least 0, not {tokens}, {context}"
            )
        if self.caches not in (1, tokens):
            raise ConfigError(f"caches must be 1 or {tokens}, as many as tokens, not {self.caches}")

    @property
    def attended(self) -> int:
        """Tokens of a cache when the new ones are in it."""
        return self.context + (self.tokens if self.caches == 1 else 1)

    @property
    def masks(self) -> int:
        """New tokens that have later ones in their sequence."""
        return self.tokens - 1 if self.caches == 1 else 0

    def cached(self, name: str, sequence: int, head: int) -> str:
        """The name of k, v or v_scale of a KV head of a sequence."""
        return cached(name, sequence, head, self.caches)


def cached(name: str, sequence: int, head: int, caches: int) -> str:
    """``k0`` of one sequence, ``k0.1`` of the second of several."""
    return f"{name}{head}" if caches == 1 else f"{name}{head}.{sequence}"


def used_sites(options: LayerOptions) -> tuple[str, ...]:
    """The activations whose codebooks are in memory."""
    return tuple(name for name, each in SITES.items() if options.lanes_attend or not each.heads)


def linear_sizes(shape: LayerShape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear layer of golden.kllm.flow."""
    query, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    return {
        "q": (shape.hidden, query),
        "k": (shape.hidden, kv),
        "v": (shape.hidden, kv),
        "o": (query, shape.hidden),
        "gate": (shape.hidden, shape.intermediate),
        "up": (shape.hidden, shape.intermediate),
        "down": (shape.intermediate, shape.hidden),
    }


@dataclasses.dataclass(frozen=True)
class LayerLayout:
    """place : first row and rows of each vector of the data memory, in order

    image : word address and shape (K, N) of each weight image, in order; of k and v of a KV head
        the cache image
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
        """Rows for the codebooks of a layer, the packets of its matmuls, and what K gets."""
        for name in used_sites(options):
            self.add(f"codebook.{name}", ROW_ELEMENTS, 2)
        for name in images:
            if name in LINEARS or name in FUSED:
                self.add(f"packet.{name}", config.kmeans_words)
        if options.lanes_attend:
            self.add("packet.scores", config.kmeans_words)
            self.add("packet.cached_v", config.integer_words)
        if options.center:
            self.add("key_offset", shape.kv_heads * shape.head_size)


def images(
    shape: LayerShape, options: LayerOptions, config: MachineConfig, job: Job, first: int = 0
) -> tuple[dict[str, tuple[int, int, int]], int]:
    """The weight images from word ``first`` on, and the word after them.

    Images of single linear layers come first, those of the caches last.
    """
    sizes, address = linear_sizes(shape), first
    made = matmuls(options.fuse, shape.intermediate)
    placed = []
    for name in sorted(made, key=lambda name: len(made[name]) > 1):
        outputs = sum(sizes[each][1] for each in made[name])
        placed.append((name, sizes[made[name][0]][0], outputs))
    for cache in range(job.caches if options.lanes_attend else 0):
        for head in range(shape.kv_heads):
            k, v = (job.cached(name, cache, head) for name in "kv")
            placed.append((k, shape.head_size, job.attended))
            placed.append((v, job.attended, shape.head_size))
    image = {}
    for name, length, outputs in placed:
        image[name] = address, length, outputs
        address += config.image_words(length, outputs)
    return image, address


def layer_layout(
    shape: LayerShape, options: LayerOptions, config: MachineConfig, job: Job
) -> LayerLayout:
    """The memories of one layer alone, with room for this job."""
    image, words = images(shape, options, config, job)
    rows = Rows()
    rows.add_constants(image, shape, options, config)
    for t in range(job.tokens):
        for name in ("cos", "sin"):
            rows.add(f"{name}{t}", shape.head_size // 2)
    if options.lanes_attend:
        for t in range(job.masks):
            rows.add(f"mask{t}", job.attended)
        for cache in range(job.caches):
            for head in range(shape.kv_heads):
                rows.add(job.cached("v_scale", cache, head), job.attended)
    rows.add("x", shape.hidden, job.tokens)
    return LayerLayout(rows.place, image, words)
