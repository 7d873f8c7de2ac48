"""The programs of a decoder layer and of a model's head, from sizes alone. Pure Python.

What the memories hold is named here and made by golden.kllm.layer.compiler. So a simulator has the
same programs without a checkpoint.
"""

import dataclasses
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from golden.config import ConfigError
from golden.kllm.assembler import Assembler, Slots, Vector
from golden.kllm.config import MachineConfig, outlier_count
from golden.kllm.flow import SITES, attention_steps, follow
from golden.kllm.isa import (
    ROW_ELEMENTS,
    Binary,
    Codebook,
    Function,
    MatmulMode,
    Norm,
    Outliers,
    Statistics,
    row_count,
)
from golden.kllm.layer.layout import Job, LayerLayout, cached, layer_layout, linear_sizes
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.paging.format import Kv

__all__ = [
    "HeadLayout",
    "HeadResults",
    "LayerCommands",
    "LayerProgram",
    "check_layer",
    "check_room",
    "check_widths",
    "head_commands",
    "head_program",
    "head_step",
    "layer_program",
    "linear_sizes",
]

_LANES = {"scores": Codebook.KMEANS, "cached_v": Codebook.INTEGER}  # of attention


@dataclasses.dataclass(frozen=True)
class LayerProgram:
    """Commands, and where they expect what.

    tokens : new tokens; context : cached tokens before them
    caches : sequences that the new tokens belong to, 1 or ``tokens``
    parts : words of each part: two where the host appends K and V between them, else one
    place : first row and rows of each vector of the data memory, in order
    image : word address and shape (K, N) of each weight image, in order; of k and v of a KV head
        the cache image, ``k0`` of one sequence and ``k0.1`` of the second of several
    words : port words of all images
    """

    config: MachineConfig
    shape: LayerShape
    options: LayerOptions
    tokens: int
    context: int
    caches: int
    parts: list[list[int]]
    place: Mapping[str, tuple[int, int]]
    image: Mapping[str, tuple[int, int, int]]
    words: int

    def cached(self, name: str, sequence: int, head: int) -> str:
        """The name of k, v or v_scale of a KV head of a sequence."""
        return cached(name, sequence, head, self.caches)


class LayerCommands:
    """Emits the commands of one layer.

    ``asm`` may have commands of other layers before. ``layout`` says where the memories hold what
    the commands name. ``number``: of the layer, as the cache counts them. ``angles``: cosines and
    sines of each token, in vectors that stay; None: each layer loads them.
    """

    def __init__(
        self,
        shape: LayerShape,
        options: LayerOptions,
        job: Job,
        layout: LayerLayout,
        asm: Assembler,
        number: int = 0,
        angles: Sequence[tuple[Vector, Vector]] | None = None,
    ):
        self.shape, self.options, self.job = shape, options, job
        self.asm, self.config = asm, asm.config
        self.tokens, self.all_tokens = job.tokens, job.attended
        self.place, self.image = layout.place, layout.image
        self.head_rows = shape.head_size // ROW_ELEMENTS
        self.number, self.angles = number, angles

    # Pieces.

    def _load(self, name: str, length: int, tokens: int = 1) -> Vector:
        vector = self.asm.vector(length, tokens)
        self._load_into(name, vector)
        return vector

    def _load_into(self, name: str, vector: Vector) -> None:
        address, rows = self.place[name]
        assert vector.rows == rows, name
        self.asm.load(address=address, dst=vector)

    def _clustering(self, name: str) -> None:
        rows = self._load(f"codebook.{name}", 2 * ROW_ELEMENTS)
        self.asm.activation_codebook(src=rows)
        self.asm.free(rows)

    def _lanes(self, name: str, kind: Codebook = Codebook.KMEANS) -> None:
        words = self.config.kmeans_words if kind == Codebook.KMEANS else self.config.integer_words
        packet = self._load(f"packet.{name}", words)
        self.asm.lane_codebook(src=packet, kind=kind)
        self.asm.free(packet)

    def _table(self, name: str, table: int) -> None:
        rows = self._load(f"codebook.{name}", 2 * ROW_ELEMENTS)
        self.asm.function_codebook(src=rows, table=table)
        self.asm.free(rows)

    def _quantize(self, name: str, src: Vector) -> Slots:
        site, slots = SITES[name], self.asm.slots(src.tokens)
        norm = Norm.RMS if site.norm else Norm.NONE
        k = 0
        if site.outliers and self.options.share:
            k = min(outlier_count(src.length, self.options.share), self.config.outliers_max // 2)
        statistics = Statistics(norm, _epsilon(self.shape))
        self.asm.quantize(src=src, slot=slots, outliers=Outliers(k, k), statistics=statistics)
        return slots

    def _linear(self, name: str, slots: Slots, dst: Vector, fold_norm: bool = False) -> None:
        """``dst``: (tokens, N) vectors."""
        self._lanes(name)
        self._multiply(name, slots, (dst,), fold_norm)

    def _multiply(
        self, name: str, slots: Slots, pieces: tuple[Vector, ...], fold_norm: bool = False
    ) -> None:
        """One MATMUL per piece; the lanes hold the codebook.

        The pieces are the outputs of ``name`` in order. All but the last piece end with a group.
        """
        address, length, outputs = self.image[name]
        assert outputs == sum(piece.length for piece in pieces), name
        first = 0
        for piece in pieces:
            weights = address + self._group_address(length, first)
            self.asm.matmul(
                weights=weights, dst=piece, length=length, slot=slots, fold_norm=fold_norm
            )
            first += piece.length

    def _group_address(self, length: int, outputs: int) -> int:
        """Port words before the group that begins with output ``outputs`` of an image."""
        assert self._splits(length, outputs)
        return self.config.image_words(length, outputs)

    def _splits(self, length: int, outputs: int) -> bool:
        """A group begins with output ``outputs``, at the same word of every port."""
        config = self.config
        words = config.array_beats(length, outputs) * config.beat_words
        return outputs % config.group_outputs == 0 and words % config.ports.ports == 0

    # The layer.

    def layer(self, x: Vector, chained: bool) -> None:
        """All parts; ``x`` holds the tokens, and then what the layer gives.

        There are two parts where the host appends K and V, else one. chained: without LOAD and
        READ of x.
        """
        rotated = self._project(x, chained)
        if self.options.lanes_attend:
            self.asm.part()
            attention = self._attend(rotated)
        else:
            attention = self._attend_pages(rotated)
        self._residual("attention", "o", attention, x)
        self._mlp(x)
        if not chained:
            self.asm.read(src=x)

    def _project(self, x: Vector, chained: bool) -> Vector:
        """Loads x; q, k, v; rotated q and k, with its offset, are left; v and k go to the cache.

        The lanes load their first codebook during QUANTIZE, and the codebook of the scores during
        ROTARY. v goes first because it does not wait for ROTARY. k of one token is rotated before
        q, which the host does not wait for.
        """
        asm, shape, size = self.asm, self.shape, self.shape.head_size
        q, kv = shape.heads * size, shape.kv_heads * size
        fused = "qkv" in self.image
        self._lanes("qkv" if fused else "q")
        if not chained:
            self._load_into("x", x)
        self._clustering("x")
        slots = self._quantize("x", x)
        made = asm.vector(q + 2 * kv, self.tokens)
        if fused:
            self._multiply("qkv", slots, (made,), fold_norm=True)
        else:
            for name, first, outputs in (("q", 0, q), ("k", q, kv), ("v", q + kv, kv)):
                dst = made.part(first, outputs, self.tokens, made.stride)
                if name != "q":
                    self._lanes(name)
                self._multiply(name, slots, (dst,), fold_norm=True)
        asm.free(slots)
        if self.options.lanes_attend:
            lanes = next(iter(attention_steps(self.options.scores)))
            self._lanes(lanes, _LANES[lanes])
        else:
            self._append(Kv.V, made, q + kv)
        rotated = asm.vector(q + kv, self.tokens)
        angles = self.angles
        if angles is None:
            angles = [
                (self._load(f"cos{t}", size // 2), self._load(f"sin{t}", size // 2))
                for t in range(self.tokens)
            ]
        # k alone for one token: with more, the commands would fill the queue of the unit.
        is_split = self.tokens == 1
        heads = shape.kv_heads if is_split else shape.heads + shape.kv_heads
        self._rotate(made, rotated, angles, q if is_split else 0, heads)
        if self.options.center:
            constant = self._load("key_offset", kv)
            keys = rotated.part(q, kv, self.tokens, rotated.stride)
            asm.binary(op=Binary.ADD, a=keys, b=constant, dst=keys)
            asm.free(constant)
        if not self.options.lanes_attend:
            self._append(Kv.K, rotated, q)
        if is_split:
            self._rotate(made, rotated, angles, 0, shape.heads)
        if self.angles is None:
            asm.free(*(vector for pair in angles for vector in pair))
        if self.options.lanes_attend:
            self._give("v", made, q + kv)
            self._give("k", rotated, q)
        asm.free(made)
        return rotated

    def _append(self, kv: Kv, source: Vector, first: int) -> None:
        """The KV heads of all tokens, which begin at element ``first``, to the pages."""
        elements = self.shape.kv_heads * self.shape.head_size
        x = source.part(first, elements, self.tokens, source.stride)
        self.asm.append(src=x, layer=self.number, kv=kv)

    def _attend_pages(self, rotated: Vector) -> Vector:
        """Attention of all heads by the unit CACHE."""
        asm, shape = self.asm, self.shape
        length = shape.heads * shape.head_size
        attention = asm.vector(length, self.tokens)
        q = rotated.part(0, length, self.tokens, rotated.stride)
        asm.attend(src=q, dst=attention, layer=self.number, heads=shape.heads)
        asm.free(rotated)
        return attention

    def _give(self, name: str, source: Vector, first: int) -> None:
        """Slots of the KV heads of all tokens, which begin at element ``first``, to the host."""
        asm, heads, size = self.asm, self.shape.kv_heads, self.shape.head_size
        step = max(1, min(heads, self.config.slots // 2))
        self._clustering(name)
        for t in range(self.tokens):
            for head in range(0, heads, step):
                count = min(step, heads - head)
                some = source.token(t).part(first + head * size, size, count, self.head_rows)
                slots = self._quantize(name, some)
                for n in range(count):
                    asm.read_slot(slot=slots.first + n)
                asm.free(slots)

    def _rotate(
        self, made: Vector, rotated: Vector, angles: Sequence[tuple[Vector, Vector]], first: int,
        heads: int,
    ) -> None:  # fmt: skip
        """Heads of all tokens, from element ``first`` on."""
        size = self.shape.head_size
        for t, (cos, sin) in enumerate(angles):
            src, dst = (each.token(t).part(first, heads * size) for each in (made, rotated))
            self.asm.rotary(src=src, dst=dst, cos=cos, sin=sin, heads=heads, head_size=size)

    def _attend(self, rotated: Vector) -> Vector:
        """Attention of all heads: KV heads in blocks that the slots hold.

        Part 0 has loaded the first lane codebook.
        A block does the steps of one lane codebook for all of its heads, then those of the next.
        """
        asm, shape = self.asm, self.shape
        attention = asm.vector(shape.heads * shape.head_size, self.tokens)
        jobs = [(t, head) for t in range(self.tokens) for head in range(shape.kv_heads)]
        phases = attention_steps(self.options.scores)
        quantizes = any("query" in steps for steps in phases.values())
        free = self.config.slots - (shape.group if quantizes else 0)  # q needs slots, too
        block = max(1, free // shape.group)
        size = shape.group * shape.head_size  # of the queries, and of the result
        for first in range(0, len(jobs), block):
            some = jobs[first : first + block]
            value: list[Any] = [self._heads(rotated, t, head * size) for t, head in some]
            for lanes, steps in phases.items():
                if "query" in steps:
                    self._clustering("q")
                if first or lanes != next(iter(phases)):
                    self._lanes(lanes, _LANES[lanes])
                for n, (t, head) in enumerate(some):
                    dst = self._heads(attention, t, head * size)
                    value[n] = follow(steps, self._commands(t, head, dst), value[n])
        asm.free(rotated)
        return attention

    def _heads(self, vectors: Vector, t: int, first: int) -> Vector:
        """The vectors of token t's query heads that share a KV head."""
        shape = self.shape
        return vectors.token(t).part(first, shape.head_size, shape.group, self.head_rows)

    def _commands(self, t: int, head: int, dst: Vector) -> dict[str, Callable[[Any], Any]]:
        """The steps of golden.kllm.flow.ATTENTION for token t's heads that share a KV head."""
        asm, shape, context = self.asm, self.shape, self.all_tokens
        cache = 0 if self.job.caches == 1 else t
        scales = self.job.cached("v_scale", cache, head)

        def scores(q: Vector | Slots) -> Vector:
            """DIRECT for words, by indices for slots."""
            made = asm.vector(context, shape.group)
            address, size = self.image[self.job.cached("k", cache, head)][0], shape.head_size
            if isinstance(q, Slots):
                asm.matmul(weights=address, dst=made, length=size, slot=q)
                asm.free(q)
            else:
                asm.matmul(weights=address, dst=made, length=size, src=q, mode=MatmulMode.DIRECT)
            return made

        def binary(op: Binary, name: str, a: Vector) -> Vector:
            b = self._load(name, context)
            asm.binary(op=op, a=a, b=b, dst=a)
            asm.free(b)
            return a

        def mask(value: Vector) -> Vector:
            """Nothing is hidden from a sequence's last token."""
            name = f"mask{t}"
            return binary(Binary.ADD, name, value) if name in self.place else value

        def softmax(value: Vector) -> Vector:
            asm.softmax(src=value, dst=value)
            return value

        def integers(value: Vector) -> Slots:
            slots = asm.slots(shape.group)
            asm.quantize_integer(src=value, slot=slots)
            asm.free(value)
            return slots

        def values(slots: Slots) -> Vector:
            address = self.image[self.job.cached("v", cache, head)][0]
            asm.matmul(
                weights=address, dst=dst, length=context, slot=slots, mode=MatmulMode.INTEGER
            )
            asm.free(slots)
            return dst

        return {
            "query": lambda q: self._quantize("q", q),
            "scores": scores,
            "mask": mask,
            "softmax": softmax,
            "weight": lambda value: binary(Binary.MULTIPLY, scales, value),
            "integers": integers,
            "values": values,
        }

    def _residual(self, name: str, linear: str, value: Vector, x: Vector) -> None:
        """``x += linear(quantized value)``; frees ``value``."""
        asm = self.asm
        self._clustering(name)
        slots = self._quantize(name, value)
        asm.free(value)
        made = asm.vector(self.shape.hidden, self.tokens)
        self._linear(linear, slots, made)
        asm.binary(op=Binary.ADD, a=x, b=made, dst=x)
        asm.free(made, slots)

    def _mlp(self, x: Vector) -> None:
        asm, shape = self.asm, self.shape
        self._clustering("post")
        slots = self._quantize("post", x)
        half = -(-shape.intermediate // ROW_ELEMENTS) * ROW_ELEMENTS
        made = asm.vector(2 * half, self.tokens)
        gate = made.part(0, shape.intermediate, self.tokens, made.stride)
        up = made.part(half, shape.intermediate, self.tokens, made.stride)
        if "gate_up" in self.image:
            # QUANTIZE of gate overlaps the product of up.
            split = self._splits(shape.hidden, half)
            self._lanes("gate_up")
            self._multiply("gate_up", slots, (gate, up) if split else (made,), fold_norm=True)
        else:
            self._linear("gate", slots, gate, fold_norm=True)
            self._linear("up", slots, up, fold_norm=True)
        asm.free(slots)
        h = asm.vector(shape.intermediate, self.tokens)
        if self.options.glu == "index":
            self._clustering("gate")
            gates = self._quantize("gate", gate)
            self._clustering("up")
            ups = self._quantize("up", up)
            self._table("gate", 0)
            self._table("up", 1)
            for t in range(self.tokens):
                asm.glu(
                    function=Function.SILU, slot_a=gates.first + t, slot_b=ups.first + t,
                    dst=h.token(t),
                )  # fmt: skip
            asm.free(gates, ups)
        else:
            for t in range(self.tokens):
                asm.function(function=Function.SILU, src=gate.token(t), dst=h.token(t))
            asm.binary(op=Binary.MULTIPLY, a=h, b=up, dst=h)
        asm.free(made)
        self._residual("h", "down", h, x)


def _epsilon(shape: LayerShape) -> int:
    """The FP32 word of the norms' addend, rounded to nearest even."""
    return int(struct.unpack("<I", struct.pack("<f", shape.epsilon))[0])


def layer_program(
    shape: LayerShape,
    options: LayerOptions,
    config: MachineConfig,
    tokens: int = 1,
    context: int = 0,
    caches: int = 1,
    chained: bool = False,
) -> LayerProgram:
    """Programs for ``tokens`` new tokens after ``context`` cached ones.

    caches: 1: the tokens follow each other in one sequence; ``tokens``: each is the newest of a
    sequence of its own, with ``context`` cached tokens. chained: x is in the vector memory, as the
    layer before left it, and stays there: no LOAD, no READ. All layers give x the same rows.

    ConfigError: a layer that the machine has
    no room for; AssemblyError: no rows or slots left.
    """
    asm, job = Assembler(config), Job(tokens, context, caches)
    layout = _commanded(shape, options, asm, job, chained)
    return LayerProgram(
        config, shape, options, tokens, context, caches, asm.parts, layout.place, layout.image,
        layout.words,
    )  # fmt: skip


def check_room(
    shape: LayerShape,
    options: LayerOptions,
    config: MachineConfig,
    tokens: int = 1,
    context: int = 0,
    caches: int = 1,
) -> None:
    """Takes and gives the rows and slots of ``layer_program`` in a tenth of its time.

    Room is no monotone function of ``tokens`` or of ``context``: what is free lies in pieces.
    ConfigError, AssemblyError: no room.
    """
    _commanded(shape, options, _Room(config), Job(tokens, context, caches), chained=True)


class _Room(Assembler):
    """Takes and gives rows and slots, and makes no word."""

    def emit(self, *_: Any, **__: Any) -> int:
        return 0


def _commanded(
    shape: LayerShape, options: LayerOptions, asm: Assembler, job: Job, chained: bool
) -> LayerLayout:
    """Emits the commands of a layer. ConfigError, AssemblyError: as ``layer_program``."""
    check_layer(shape, options, asm.config, job)
    layout = layer_layout(shape, options, asm.config, job)
    x = asm.vector(shape.hidden, job.tokens)
    LayerCommands(shape, options, job, layout, asm).layer(x, chained)
    return layout


def check_layer(shape: LayerShape, options: LayerOptions, config: MachineConfig, job: Job) -> None:
    """ConfigError: a layer that the machine has no room for."""
    attended = job.attended if options.lanes_attend else 0
    longest = max(shape.hidden, shape.intermediate, attended, shape.heads * shape.head_size)
    quantized = 2 if options.glu == "index" or options.lanes_attend else 1
    sizes = {"slot.elements": longest, "slot.slots": quantized * job.tokens}
    if options.lanes_attend:
        sizes |= {
            "softmax_elements": attended,
            "slot.outliers_max": shape.head_size if options.scores == "direct" else 2,
            "slot.slots": max(shape.group, 2 * job.tokens),
        }
    else:
        _check_pages(shape, config, job)
    _check_sizes(config, sizes)
    # Longest tokens that share weights: heads of one KV head, or the new tokens.
    shared = [attended] if shape.group > 1 and options.lanes_attend else []
    if job.tokens > 1:
        shared += [longest]
    needed = max((-(-length // config.elements) for length in shared), default=0)
    if config.replay_beats < needed:
        raise ConfigError(
            f"MachineConfig.replay_beats must be at least {needed} for this layer, "
            f"not {config.replay_beats}"
        )


def _check_pages(shape: LayerShape, config: MachineConfig, job: Job) -> None:
    """ConfigError: a layer that the unit CACHE of the machine does not serve."""
    _check_sizes(config, {"batch": job.tokens})
    kv = config.cache.kv
    for field, needed, found in (
        ("cache.kv.heads", shape.kv_heads, kv.heads),
        ("cache.kv.head_dim", shape.head_size, kv.head_dim),
        ("queries", shape.group, config.queries or shape.group),
    ):
        if needed != found:
            raise ConfigError(f"MachineConfig.{field} must be {needed} for this layer, not {found}")
    _check_sizes(config, {"cache.max_tokens": job.attended})


def check_widths(config: MachineConfig, bits_a: int, bits_b: int) -> None:
    """ConfigError: a machine of other widths than a layer's activations and weights."""
    for field, needed in (("slot.bits_a", bits_a), ("lane.bits_b", bits_b)):
        found = operator.attrgetter(field)(config)
        if found != needed:
            raise ConfigError(f"MachineConfig.{field} must be {needed} for this layer, not {found}")


def _check_sizes(config: MachineConfig, sizes: Mapping[str, int]) -> None:
    """ConfigError: a field of the machine is below what ``sizes`` needs of it."""
    for field, needed in sizes.items():
        found = operator.attrgetter(field)(config)
        if found < needed:
            raise ConfigError(f"MachineConfig.{field} must be {needed} for this layer, not {found}")


def head_program(
    shape: LayerShape, config: MachineConfig, vocabulary: int, tokens: int = 1, share: float = 0.005
) -> list[int]:
    """The final norm and the model's head for ``tokens`` tokens: words of one program.

    LOAD of the tokens, QUANTIZE with RMS, and MATMUL of the vocabulary in pieces, each read by the
    host while the next one runs. ConfigError, AssemblyError: no room.
    """
    asm = Assembler(config)
    packet = row_count(2 * ROW_ELEMENTS)
    x = packet + row_count(config.kmeans_words)
    layout = HeadLayout(vocabulary, codebook=0, packet=packet, weights=0, x=x)
    head_commands(asm, shape, layout, tokens, share)
    return asm.words()


@dataclasses.dataclass(frozen=True)
class HeadLayout:
    """The places in the memories of what the head needs.

    vocabulary : outputs
    codebook, packet : first rows of the data memory; weights : first word of the image
    x : first row of the tokens in the data memory
    residual : first word of a second image, whose products are added; None: there is none
    """

    vocabulary: int
    codebook: int
    packet: int
    weights: int
    x: int = 0
    residual: int | None = None


@dataclasses.dataclass(frozen=True)
class HeadResults:
    """The words that the host gets of the head.

    logits : those of all tokens; place : of the first token in the batch: an id of each token too,
    after the logits; None: no ids
    """

    logits: bool = True
    place: int | None = None


def head_commands(
    asm: Assembler,
    shape: LayerShape,
    layout: HeadLayout,
    tokens: int = 1,
    share: float = 0.005,
    x: Vector | None = None,
    results: HeadResults = HeadResults(),
) -> None:
    """Emits the final norm and the head. As ``head_program``. x: the tokens, loaded if None."""
    config = asm.config
    _check_sizes(config, {"slot.elements": shape.hidden, "slot.slots": tokens})
    codebook = asm.vector(2 * ROW_ELEMENTS)
    asm.load(address=layout.codebook, dst=codebook)
    packet = asm.vector(config.kmeans_words)
    asm.load(address=layout.packet, dst=packet)
    if x is None:
        x = asm.vector(shape.hidden, tokens)
        asm.load(address=layout.x, dst=x)
    asm.activation_codebook(src=codebook)
    asm.lane_codebook(src=packet)
    k = min(outlier_count(shape.hidden, share), config.outliers_max // 2) if share else 0
    slots = asm.slots(tokens)
    asm.quantize(
        src=x, slot=slots, outliers=Outliers(k, k), statistics=Statistics(Norm.RMS, _epsilon(shape))
    )
    asm.free(codebook, packet, x)
    step = head_step(config, shape.hidden, layout, tokens)

    def multiply(image: int, first: int) -> Vector:
        made = asm.vector(min(step, layout.vocabulary - first), tokens)
        address = image + (config.image_words(shape.hidden, first) if first else 0)
        asm.matmul(weights=address, dst=made, length=shape.hidden, slot=slots, fold_norm=True)
        return made

    for first in range(0, layout.vocabulary, step):
        made = multiply(layout.weights, first)
        if layout.residual is not None:
            second = multiply(layout.residual, first)
            asm.binary(op=Binary.ADD, a=made, b=second, dst=made)
            asm.free(second)
        if results.logits:
            asm.read(src=made)
        if results.place is not None:
            is_last = first + step >= layout.vocabulary
            asm.top_k(
                src=made, first=first, place=results.place, begin=first == 0, end=is_last
            )
        asm.free(made)
    asm.free(slots)


def head_step(config: MachineConfig, length: int, layout: HeadLayout, tokens: int) -> int:
    """Outputs of a piece, of which three fit the vector memory, or five where two are added.

    The next piece begins with a group, at the same word of every port.
    """
    pieces = 3 if layout.residual is None else 5
    most = min(config.vector_rows * ROW_ELEMENTS // (pieces * tokens), (1 << 16) - 1)
    if most >= layout.vocabulary:
        return layout.vocabulary
    words = config.array_beats(length, 1) * config.beat_words  # of a group
    ports = config.ports.ports
    unit = config.group_outputs * (ports // math.gcd(ports, words))
    return max(most // unit * unit, unit)
