"""The programs of a decoder layer and of a model's head, from sizes alone. Pure Python.

What the memories hold is named here and made by golden.kllm.layer.compiler. So a simulator has the
same programs without a checkpoint.
"""

import dataclasses
import math
import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from golden.config import ConfigError
from golden.index.format import K_MAX
from golden.kllm.assembler import Assembler, Attending, Based, Slots, Vector
from golden.kllm.config import FunctionShape, MachineConfig, outlier_count
from golden.kllm.flow import ROUTER, SITES, site_of
from golden.kllm.isa import (
    ROW_ELEMENTS,
    Binary,
    Function,
    Index,
    Norm,
    Outliers,
    Statistics,
    row_count,
)
from golden.kllm.layer.layout import (
    BASE,
    LIMITS,
    MEAN,
    ROUTER_IMAGES,
    Job,
    LayerLayout,
    layer_layout,
    linear_sizes,
    part_name,
    router_image,
)
from golden.kllm.layer.shape import LayerOptions, LayerShape, network_parts
from golden.kllm.layer.vector_norm import by_row, emit_norm, vector_norms
from golden.paging.format import Kv

__all__ = [
    "STAGES",
    "Group",
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


@dataclasses.dataclass(frozen=True)
class LayerProgram:
    """Commands, and where they expect what.

    tokens : new tokens, one for each of the first places of the batch
    layout : of the memories
    words : of the commands
    """

    config: MachineConfig
    shape: LayerShape
    options: LayerOptions
    tokens: int
    layout: LayerLayout
    words: list[int]


_HEADS_MAX = 255  # of ROTARY
_WINDOW_MAX = (1 << 16) - 1  # of ATTEND
STAGES = 4  # of a layer, in which the commands of several groups of tokens take turns


@dataclasses.dataclass(frozen=True)
class Group:
    """Tokens that go through a layer together.

    first : place of the first of them in the batch
    angles : cosines and sines of each, in vectors that stay; None: each layer loads them
    """

    tokens: int
    first: int = 0
    angles: Sequence[tuple[Vector, Vector]] | None = None


class LayerCommands:
    """Emits the commands of one layer.

    ``asm`` may have commands of other layers before. ``layout`` says where the memories hold what
    the commands name. ``number``: of the layer, as the cache counts them.
    """

    def __init__(
        self,
        shape: LayerShape,
        options: LayerOptions,
        group: Group,
        layout: LayerLayout,
        asm: Assembler,
        number: int = 0,
    ):
        self.shape, self.options, self.tokens = shape, options, group.tokens
        self.asm, self.config = asm, asm.config
        self.place, self.image = layout.place, layout.image
        self.number, self.angles, self.first = number, group.angles, group.first
        self.norms = vector_norms(shape, "qkv" in self.image)
        self.parts = network_parts(shape.intermediate, options.parts)
        self.choice: tuple[int, int] | None = None  # place and rank, while an expert works
        self.inner = shape.intermediate // self.parts  # elements of the network at a time

    # Pieces.

    def _load(self, name: str, length: int, tokens: int = 1) -> Vector:
        vector = self.asm.vector(length, tokens)
        self._load_into(name, vector)
        return vector

    def _load_into(self, name: str, vector: Vector) -> None:
        """Rows of the data memory; while an expert works, those that it has of its own."""
        if self.choice is None or f"{name}.0" not in self.place:
            address, rows = self.place[name]
            assert vector.rows == rows, name
            self.asm.load(address=address, dst=vector)
            return
        address, rows = self.place[f"{name}.0"]
        assert vector.rows == rows, name
        place, rank = self.choice
        self.asm.load_at(
            address=address, rows=rows, index=Index.CHOICE, limit=self.shape.experts, dst=vector,
            place=place, rank=rank,
        )  # fmt: skip

    def _clustering(self, name: str) -> None:
        rows = self._load(f"codebook.{name}", 2 * ROW_ELEMENTS)
        self.asm.activation_codebook(src=rows)
        self.asm.free(rows)

    def _lanes(self, name: str) -> None:
        packet = self._load(f"packet.{name}", self.config.kmeans_words)
        self.asm.lane_codebook(src=packet)
        self.asm.free(packet)

    def _table(self, name: str, table: int) -> None:
        rows = self._load(f"codebook.{name}", 2 * ROW_ELEMENTS)
        self.asm.function_codebook(src=rows, table=table)
        self.asm.free(rows)

    def _quantize(self, name: str, src: Vector) -> Slots:
        site, slots = SITES[name], self.asm.slots(src.tokens)
        norm = Norm.RMS if site.norm and self.shape.normed_before else Norm.NONE
        k = 0
        if site.outliers and self.options.share:
            k = min(outlier_count(src.length, self.options.share), self.config.outliers_max // 2)
        statistics = Statistics(norm, _epsilon(self.shape))
        self.asm.quantize(src=src, slot=slots, outliers=Outliers(k, k), statistics=statistics)
        return slots

    def _linear(self, name: str, slots: Slots, dst: Vector, part: int = 0) -> None:
        """``dst``: (tokens, N) vectors."""
        self._lanes(name)
        self._multiply(name, slots, (dst,), part)

    def _multiply(
        self, name: str, slots: Slots, pieces: tuple[Vector, ...], part: int = 0
    ) -> None:
        """One MATMUL per piece; the lanes hold the codebook.

        The pieces are the outputs of ``name`` in order. All but the last piece end with a group.
        """
        fold_norm = site_of(name).norm and self.shape.normed_before
        based = self.choice is not None
        own = f"{name}.0" if based else part_name(name, part, self.parts)
        address, length, outputs = self.image[own]
        assert outputs == sum(piece.length for piece in pieces), name
        first = 0
        for piece in pieces:
            weights = address + self._group_address(length, first)
            self.asm.matmul(
                weights=Based(weights) if based else weights, dst=piece, length=length,
                slot=slots, fold_norm=fold_norm,
            )  # fmt: skip
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

    def _add_vector(self, name: str, x: Vector, part: int = 0) -> None:
        """Adds a vector of the data memory, or a part, to each token of ``x``, if there is one."""
        own = name if self.choice is None else f"{name}.0"
        if own not in self.place:
            return
        vector = self.asm.vector(x.length)
        if self.choice is None:
            self.asm.load(address=self.place[name][0] + part * vector.rows, dst=vector)
        else:
            self._load_into(name, vector)
        self.asm.binary(op=Binary.ADD, a=x, b=vector, dst=x)
        self.asm.free(vector)

    def _norm(self, name: str, x: Vector) -> None:
        """Normalises ``x`` if the layer has this norm; the lanes hold the codebook."""
        norm = self.norms.get(name)
        if norm is None:
            return
        epsilon = self._load(f"epsilon.{name}", ROW_ELEMENTS)
        gamma = self._load(f"gamma.{name}", norm.elements)
        emit_norm(self.asm, x, norm, self.image[MEAN + name][0], epsilon, gamma)
        self.asm.free(epsilon, gamma)

    # The layer.

    def layer(self, x: Vector, chained: bool) -> None:
        """``x`` holds the tokens, and then what the layer gives; chained: without LOAD and READ."""
        for _ in self.stages(x, chained):
            pass
        if not chained:
            self.asm.read(src=x)

    def stages(self, x: Vector, chained: bool = True) -> Iterator[None]:
        """The commands of ``layer`` in STAGES parts, each emitted before a value is yielded.

        Those of another group of tokens may come between two parts.
        """
        attention = self._attend(self._project(x, chained))
        yield
        self._add(x, "o", self._quantized("attention", attention))
        yield
        if self.shape.experts:
            self._add_made(x, "down", self._network_of_experts(x))
            yield
        elif self.parts == 1:
            slots = self._network(x)
            yield
            self._add(x, "down", slots)
        else:
            # A norm after down needs the lanes as down leaves them.
            self._add_made(x, "down", self._network_in_parts(x))
            yield
        yield

    def _project(self, x: Vector, chained: bool) -> Vector:
        """Loads x; q, k, v; rotated q and k, with its offset, are left; v and k go to the cache.

        The lanes load their first codebook during QUANTIZE. v goes first because it does not wait
        for ROTARY.
        """
        shape, size = self.shape, self.shape.head_size
        q, kv = shape.heads * size, shape.kv_heads * size
        made = self._projected(x, chained)
        self._add_vector("bias.qkv", made)
        self._append(Kv.V, made, q + kv)
        for name, first, outputs in (("qk", 0, q + kv), ("q", 0, q), ("k", q, kv)):
            self._norm(name, made.part(first, outputs, self.tokens, made.stride))
        if shape.rotary:
            return self._rotated(made)
        self._append_keys(made)
        return made

    def _projected(self, x: Vector, chained: bool) -> Vector:
        """Loads x; q, k and v, one after the other."""
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
            self._multiply("qkv", slots, (made,))
        else:
            for name, first, outputs in (("q", 0, q), ("k", q, kv), ("v", q + kv, kv)):
                dst = made.part(first, outputs, self.tokens, made.stride)
                if name != "q":
                    self._lanes(name)
                self._multiply(name, slots, (dst,))
        asm.free(slots)
        return made

    def _rotated(self, made: Vector) -> Vector:
        """Rotates q and k of ``made``, which is free then; k goes to the cache.

        k of one token is rotated before q, so APPEND of k overlaps ROTARY of q.
        """
        asm, shape, size = self.asm, self.shape, self.shape.head_size
        q, kv = shape.heads * size, shape.kv_heads * size
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
        self._append_keys(rotated)
        if is_split:
            self._rotate(made, rotated, angles, 0, shape.heads)
        if self.angles is None:
            asm.free(*(vector for pair in angles for vector in pair))
        asm.free(made)
        return rotated

    def _append_keys(self, source: Vector) -> None:
        """K of ``source``, which gets its offset, to the cache; it follows q."""
        shape, size = self.shape, self.shape.head_size
        q, kv = shape.heads * size, shape.kv_heads * size
        self._add_vector("key_offset", source.part(q, kv, self.tokens, source.stride))
        self._append(Kv.K, source, q)

    def _append(self, kv: Kv, source: Vector, first: int) -> None:
        """The KV heads of all tokens, which begin at element ``first``, to the pages."""
        elements = self.shape.kv_heads * self.shape.head_size
        x = source.part(first, elements, self.tokens, source.stride)
        if self.options.by_host:
            self.asm.read(src=x)
            return
        self.asm.append(src=x, layer=self.number, kv=kv, place=self.first)

    def _attend(self, rotated: Vector) -> Vector:
        """Attention of all heads, by the unit CACHE or by the host.

        The host has read v, k and now q. It writes what it gives into the data memory, and then
        sends the next part of the program.
        """
        asm, shape = self.asm, self.shape
        length = shape.heads * shape.head_size
        q = rotated.part(0, length, self.tokens, rotated.stride)
        if self.options.by_host:
            asm.read(src=q)
            asm.free(rotated)
            asm.part()
            return self._load("attention", length)
        attention = asm.vector(length, self.tokens)
        # No sequence has more tokens than the cache serves.
        is_short = 0 < shape.window < min(self.config.cache.max_tokens, _WINDOW_MAX + 1)
        sinks = None
        if shape.sinks:
            sinks = self._load("sinks", ROW_ELEMENTS * self.config.sink_rows(shape.heads))
        window = shape.window if is_short and self.config.cache.windows else 0
        asm.attend(
            src=q, dst=attention, layer=self.number, heads=shape.heads, place=self.first,
            rules=Attending(window, shape.cap, sinks),
        )  # fmt: skip
        asm.free(rotated, *([sinks] if sinks else []))
        return attention

    def _rotate(
        self, made: Vector, rotated: Vector, angles: Sequence[tuple[Vector, Vector]], first: int,
        heads: int,
    ) -> None:  # fmt: skip
        """Heads of all tokens, from element ``first`` on."""
        size = self.shape.head_size
        for t, (cos, sin) in enumerate(angles):
            for head in range(0, heads, _HEADS_MAX):
                count = min(_HEADS_MAX, heads - head)
                at = first + head * size
                src, dst = (each.token(t).part(at, count * size) for each in (made, rotated))
                self.asm.rotary(src=src, dst=dst, cos=cos, sin=sin, heads=count, head_size=size)

    def _quantized(self, name: str, value: Vector) -> Slots:
        """``value`` in slots, whose rows are free then."""
        self._clustering(name)
        slots = self._quantize(name, value)
        self.asm.free(value)
        return slots

    def _add(self, x: Vector, linear: str, slots: Slots) -> None:
        """``x += linear(slots)``, with its bias and norm; frees the slots."""
        asm = self.asm
        made = asm.vector(self.shape.hidden, self.tokens)
        self._linear(linear, slots, made)
        self._add_made(x, linear, made)
        asm.free(slots)

    def _add_made(self, x: Vector, linear: str, made: Vector) -> None:
        """``x += made`` with the bias and the norm of a linear layer; frees ``made``."""
        self._add_vector(f"bias.{linear}", made)
        self._norm(linear, made)
        self.asm.binary(op=Binary.ADD, a=x, b=made, dst=x)
        self.asm.free(made)

    def _network(self, x: Vector) -> Slots:
        """The network of the normed ``x`` before its last linear layer, in slots."""
        self._clustering("post")
        return self._inner(self._quantize("post", x))

    def _network_in_parts(self, x: Vector) -> Vector:
        """The network of the normed ``x``, without bias and norm after it: the sum of its parts."""
        asm = self.asm
        self._clustering("post")
        slots = self._quantize("post", x)
        total = asm.vector(self.shape.hidden, self.tokens)
        for part in range(self.parts):
            inner = self._inner(slots, part)
            made = asm.vector(self.shape.hidden, self.tokens) if part else total
            self._linear("down", inner, made, part)
            asm.free(inner)
            if part:
                asm.binary(op=Binary.ADD, a=total, b=made, dst=total)
                asm.free(made)
        return total

    def _network_of_experts(self, x: Vector) -> Vector:
        """The weighted sum of what its experts give of each token, one token after the other.

        No two tokens need have an expert in common. The experts of a token come in the order of
        their ranks, each with packets, a base of weights and biases of its own.
        """
        asm, shape = self.asm, self.shape
        self._clustering("post")
        slots = self._quantize("post", x)
        weights = self._routed(slots)
        total = asm.vector(shape.hidden, self.tokens)
        for t in range(self.tokens):
            for rank in range(shape.active):
                self.choice = self.first + t, rank
                made = asm.vector(shape.hidden) if rank else total.token(t)
                base = self._load(BASE, ROW_ELEMENTS)
                asm.weight_base(src=base)
                asm.free(base)
                inner = self._inner(Slots(slots.first + t))
                self._linear("down", inner, made)
                asm.free(inner)
                self._add_vector("bias.down", made)
                share = Vector(weights.row + t * shape.active + rank, ROW_ELEMENTS)
                by_row(asm, Binary.MULTIPLY, made, share)
                if rank:
                    asm.binary(op=Binary.ADD, a=total.token(t), b=made, dst=total.token(t))
                    asm.free(made)
        self.choice = None
        asm.free(slots, weights)
        return total

    def _routed(self, slots: Slots) -> Vector:
        """Chooses the experts of each token; a row for each of them, all elements its weight."""
        asm, shape, tokens = self.asm, self.shape, slots.tokens
        logits = asm.vector(shape.experts, tokens)
        self._lanes(ROUTER)
        for number in range(ROUTER_IMAGES):
            part = asm.vector(shape.experts, tokens) if number else logits
            self._multiply(router_image(number), slots, (part,))
            if number:
                asm.binary(op=Binary.ADD, a=logits, b=part, dst=logits)
                asm.free(part)
        self._add_vector(f"bias.{ROUTER}", logits)
        asm.softmax(src=logits, dst=logits)
        asm.top_k(src=logits, place=self.first, route=shape.active)
        asm.free(logits)
        weights = asm.vector(ROW_ELEMENTS * shape.active, tokens)
        ranks = [
            Vector(weights.row + rank, ROW_ELEMENTS, tokens, shape.active)
            for rank in range(shape.active)
        ]
        for rank, rows in enumerate(ranks):
            asm.load_at(
                address=0, rows=1, index=Index.CHOICE_VALUE, limit=shape.experts, dst=rows,
                place=self.first, rank=rank,
            )  # fmt: skip
        if shape.router_norm:
            self._renormalised(ranks)
        return weights

    def _renormalised(self, ranks: Sequence[Vector]) -> None:
        """Divides a row of each rank, for each token, by the sum of all ranks."""
        asm, tokens = self.asm, ranks[0].tokens
        total = asm.vector(ROW_ELEMENTS, tokens)
        so_far = ranks[0]  # alone, its rows follow each other as those of the sum do
        for rows in ranks[1:]:
            asm.binary(op=Binary.ADD, a=so_far, b=rows, dst=total)
            so_far = total
        flat = Vector(total.row, ROW_ELEMENTS * tokens)
        asm.function(function=Function.RECIPROCAL, src=so_far, dst=flat)
        for rows in ranks:
            asm.binary(op=Binary.MULTIPLY, a=rows, b=total, dst=rows)
        asm.free(total)

    def _inner(self, slots: Slots, part: int = 0) -> Slots:
        """A part of the network before down, in slots; the last part frees ``slots``."""
        h = self._gated(slots, part) if self.shape.gated else self._plain(slots, part)
        return self._quantized("h", h)

    def _free_after(self, slots: Slots, part: int) -> None:
        if part == self.parts - 1 and self.choice is None:
            self.asm.free(slots)

    def _gated(self, slots: Slots, part: int) -> Vector:
        """The product of up and of the function of gate."""
        asm, shape, tokens = self.asm, self.shape, slots.tokens
        half = -(-self.inner // ROW_ELEMENTS) * ROW_ELEMENTS
        made = asm.vector(2 * half, tokens)
        gate = made.part(0, self.inner, tokens, made.stride)
        up = made.part(half, self.inner, tokens, made.stride)
        fused = part_name("gate_up", 0, self.parts) if self.choice is None else "gate_up.0"
        if fused in self.image:
            # QUANTIZE of gate overlaps the product of up.
            split = self._splits(shape.hidden, half)
            self._lanes("gate_up")
            self._multiply("gate_up", slots, (gate, up) if split else (made,), part)
        else:
            self._linear("gate", slots, gate, part)
            self._linear("up", slots, up, part)
        self._free_after(slots, part)
        self._add_vector("bias.gate", gate, part)
        self._add_vector("bias.up", up, part)
        if shape.clamped:
            self._clamp(gate, up)
        h = asm.vector(self.inner, tokens)
        if self.options.glu == "index":
            self._clustering("gate")
            gates = self._quantize("gate", gate)
            self._clustering("up")
            ups = self._quantize("up", up)
            self._table("gate", 0)
            self._table("up", 1)
            for t in range(tokens):
                asm.glu(
                    function=shape.function, slot_a=gates.first + t, slot_b=ups.first + t,
                    dst=h.token(t),
                )  # fmt: skip
            asm.free(gates, ups)
        else:
            for t in range(tokens):
                asm.function(function=shape.function, src=gate.token(t), dst=h.token(t))
            asm.binary(op=Binary.MULTIPLY, a=h, b=up, dst=h)
        asm.free(made)
        return h

    def _clamp(self, gate: Vector, up: Vector) -> None:
        """The least of gate and its limit; up within both limits, plus 1."""
        limits = self._load("limits", len(LIMITS) * ROW_ELEMENTS)
        most, least, one = (Vector(limits.row + n, ROW_ELEMENTS, 1, 1) for n in range(3))
        for x, op, by in (
            (gate, Binary.MINIMUM, most), (up, Binary.MINIMUM, most), (up, Binary.MAXIMUM, least),
            (up, Binary.ADD, one),
        ):  # fmt: skip
            for t in range(x.tokens):
                by_row(self.asm, op, x.token(t), by)
        self.asm.free(limits)

    def _plain(self, slots: Slots, part: int) -> Vector:
        """The function of up."""
        asm, shape, tokens = self.asm, self.shape, slots.tokens
        up = asm.vector(self.inner, tokens)
        self._linear("up", slots, up, part)
        self._free_after(slots, part)
        self._add_vector("bias.up", up, part)
        if self.options.glu == "index":
            self._clustering("up")
            ups = self._quantize("up", up)
            self._table("up", 0)
            for t in range(tokens):
                asm.activate(function=shape.function, slot=ups.first + t, dst=up.token(t))
            asm.free(ups)
        else:
            for t in range(tokens):
                asm.function(function=shape.function, src=up.token(t), dst=up.token(t))
        return up


def _epsilon(shape: LayerShape) -> int:
    """The FP32 word of the norms' addend, rounded to nearest even."""
    return int(struct.unpack("<I", struct.pack("<f", shape.epsilon))[0])


def layer_program(
    shape: LayerShape,
    options: LayerOptions,
    config: MachineConfig,
    tokens: int = 1,
    context: int = 0,
    chained: bool = False,
) -> LayerProgram:
    """The program for ``tokens`` new tokens; the batch says of which sequences they are.

    context: cached tokens that there must be room for. No command depends on them. chained: x is
    in the vector memory, as the layer before left it, and stays there: no LOAD, no READ. All
    layers give x the same rows.

    ConfigError: a layer that the machine has no room for; AssemblyError: no rows or slots left.
    """
    asm = Assembler(config)
    layout = _commanded(shape, options, asm, Job(tokens, context), chained)
    return LayerProgram(config, shape, options, tokens, layout, asm.words())


def check_room(
    shape: LayerShape,
    options: LayerOptions,
    config: MachineConfig,
    tokens: int = 1,
    context: int = 0,
) -> None:
    """Takes and gives the rows and slots of ``layer_program`` in a tenth of its time.

    Room is no monotone function of ``tokens``: what is free lies in pieces.
    ConfigError, AssemblyError: no room.
    """
    _commanded(shape, options, _Room(config), Job(tokens, context), chained=True)


class _Room(Assembler):
    """Takes and gives rows and slots, and makes no word."""

    def emit(self, *_: Any, **__: Any) -> int:
        return 0


def _commanded(
    shape: LayerShape, options: LayerOptions, asm: Assembler, job: Job, chained: bool
) -> LayerLayout:
    """Emits the commands of a layer. ConfigError, AssemblyError: as ``layer_program``."""
    check_layer(shape, options, asm.config, job)
    layout = layer_layout(shape, options, asm.config, job.tokens)
    x = asm.vector(shape.hidden, job.tokens)
    LayerCommands(shape, options, Group(job.tokens), layout, asm).layer(x, chained)
    return layout


def check_layer(shape: LayerShape, options: LayerOptions, config: MachineConfig, job: Job) -> None:
    """ConfigError: a layer that the machine has no room for."""
    parts = network_parts(shape.intermediate, options.parts)
    longest = max(shape.hidden, shape.intermediate // parts, shape.heads * shape.head_size)
    # Of a network in parts the tokens stay in their slots to the last part.
    quantized = 2 if options.glu == "index" and shape.gated else 1
    slots = (quantized + (parts > 1)) * job.tokens
    if shape.experts:  # one token after the other
        slots = job.tokens + quantized
    if options.by_host and job.tokens > 1:
        raise ConfigError(f"tokens must be 1 where the host attends, not {job.tokens}")
    sizes = {} if options.by_host else {"batch": job.tokens}
    sizes |= {"slot.elements": longest, "slot.slots": slots}
    if vector_norms(shape, options.fuse):
        sizes["slot.outliers_max"] = ROW_ELEMENTS  # of DIRECT
    if shape.experts:
        if parts > 1:
            raise ConfigError(
                f"intermediate must be at most {K_MAX} for a layer with experts, and parts 1, "
                f"not {shape.intermediate} in {parts} parts"
            )
        sizes |= {"experts": shape.active, "softmax_elements": shape.experts}
    _check_sizes(config, sizes)
    _check_functions(config, shape.extra, "layer")
    if not options.by_host:
        _check_pages(shape, config, job)
    # New tokens share weights.
    needed = -(-longest // config.elements) if job.tokens > 1 else 0
    if config.replay_beats < needed:
        raise ConfigError(
            f"MachineConfig.replay_beats must be at least {needed} for this layer, "
            f"not {config.replay_beats}"
        )


def _check_pages(shape: LayerShape, config: MachineConfig, job: Job) -> None:
    """ConfigError: a layer that the unit CACHE of the machine does not serve."""
    kv = config.cache.kv
    for field, needed, found in (
        ("cache.kv.heads", shape.kv_heads, kv.heads),
        ("cache.kv.head_dim", shape.head_size, kv.head_dim),
        ("queries", shape.group, config.queries or shape.group),
    ):
        if needed != found:
            raise ConfigError(f"MachineConfig.{field} must be {needed} for this layer, not {found}")
    _check_sizes(config, {"cache.max_tokens": job.attended})
    if _WINDOW_MAX < shape.window < job.attended:
        raise ConfigError(
            f"window must be at most {_WINDOW_MAX} for sequences of {job.attended} tokens, "
            f"not {shape.window}"
        )
    for field, is_needed, what in (
        ("caps", bool(shape.cap), f"whose scores have a cap of {shape.cap:g}"),
        ("sinks", shape.sinks, "whose softmax has sinks"),
    ):
        if is_needed and not getattr(config.cache, field):
            raise ConfigError(f"MachineConfig.cache.{field} must be True for this layer, {what}")
    if 0 < shape.window < job.attended and not config.cache.windows:
        raise ConfigError(
            "MachineConfig.cache.windows must be True for this layer, whose tokens attend "
            f"{shape.window} of {job.attended}"
        )


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


def _check_functions(config: MachineConfig, needed: FunctionShape, what: str) -> None:
    """ConfigError: the machine lacks a function."""
    for name in config.extra.lacks(needed):
        raise ConfigError(f"MachineConfig.extra.{name} must be True for this {what}, not False")


def cap_scalar(cap: float) -> float:
    """The factor of AXPY that multiplies by ``cap``: ``cap * t = (cap - 1) * t + t``.

    ConfigError: it is no FP16 word.
    """
    try:
        (word,) = struct.unpack("<e", struct.pack("<e", cap - 1))
    except OverflowError:
        word = math.inf
    if not cap > 0 or word != cap - 1:
        raise ConfigError(
            f"final_logit_softcapping must be above 0 and 1 more than an FP16 word, not {cap:g}"
        )
    return float(word)


def head_program(
    shape: LayerShape, config: MachineConfig, vocabulary: int, tokens: int = 1,
    share: float = 0.005, cap: float = 0.0,
) -> list[int]:  # fmt: skip
    """The final norm and the model's head for ``tokens`` tokens: words of one program.

    LOAD of the tokens, QUANTIZE with RMS, and MATMUL of the vocabulary in pieces, each read by the
    host while the next one runs. ConfigError, AssemblyError: no room.
    """
    asm = Assembler(config)
    packet = row_count(2 * ROW_ELEMENTS)
    x = packet + row_count(config.kmeans_words)
    layout = HeadLayout(vocabulary, codebook=0, packet=packet, weights=0, x=x, cap=cap)
    head_commands(asm, shape, layout, tokens, share)
    return asm.words()


@dataclasses.dataclass(frozen=True)
class HeadLayout:
    """The places in the memories of what the head needs.

    vocabulary : outputs
    codebook, packet : first rows of the data memory; weights : first word of the image
    x : first row of the tokens in the data memory
    residual : first word of a second image, whose products are added; None: there is none
    cap : c of ``c * tanh(logit / c)``; the image has 1/c in its scales. 0: there is none
    """

    vocabulary: int
    codebook: int
    packet: int
    weights: int
    x: int = 0
    residual: int | None = None
    cap: float = 0.0


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
    """Emits the final norm and the head. As ``head_program``. x: the tokens, loaded if None.

    With a cap the logits are ``rne16(cap * tanh(y))``, y what MATMUL gives. Equal words stay equal,
    and others may become so: TOP_K takes the lowest id of equal ones.
    """
    config = asm.config
    if layout.cap:
        _check_functions(config, FunctionShape.of(Function.TANH), "model, whose logits have a cap")
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
        if layout.cap:
            _cap(asm, made, layout.cap)
        if results.logits:
            asm.read(src=made)
        if results.place is not None:
            is_last = first + step >= layout.vocabulary
            asm.top_k(src=made, first=first, place=results.place, begin=first == 0, end=is_last)
        asm.free(made)
    asm.free(slots)


def _cap(asm: Assembler, logits: Vector, cap: float) -> None:
    """``logits = rne16(cap * tanh(logits))``; the sum of AXPY is exact before its rounding."""
    word = int.from_bytes(struct.pack("<e", cap_scalar(cap)), "little")
    for t in range(logits.tokens):
        one = logits.token(t)
        asm.function(function=Function.TANH, src=one, dst=one)
        asm.axpy(immediate=word, a=one, b=one, dst=one)


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
