"""A quantized layer as programs and memories of the accelerator."""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float
from golden.index.nearest import midpoints
from golden.kllm.assembler import Assembler, Slots, Vector
from golden.kllm.config import MachineConfig
from golden.kllm.flow import SITES, attention_steps, follow, site_of
from golden.kllm.image import weight_image
from golden.kllm.isa import (
    ROW_ELEMENTS,
    Binary,
    Codebook,
    Function,
    MatmulMode,
    Norm,
    Outliers,
    Statistics,
)
from golden.kllm.layer.quantized import QuantizedLayer
from golden.kllm.orizuru import outlier_count
from golden.kllm.vectors import codebook_packet, integer_packet

__all__ = ["CompiledLayer", "compile_layer", "write_image"]

_MINUS_INFINITY = FP16.sign_bit | FP16.infinity
_LANES = {"scores": Codebook.KMEANS, "cached_v": Codebook.INTEGER}  # of attention


class _DataMemory:
    """Vectors in order, each from a row of its own."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.place: dict[str, tuple[int, int]] = {}  # first row, rows

    def add(self, name: str, *vectors: Any) -> None:
        first = len(self.rows)
        for vector in vectors:
            words = np.asarray(vector, dtype=np.int64)
            padded = np.zeros(-(-len(words) // ROW_ELEMENTS) * ROW_ELEMENTS, dtype=np.int64)
            padded[: len(words)] = words
            self.rows += list(padded.reshape(-1, ROW_ELEMENTS))
        self.place[name] = first, len(self.rows) - first

    def bytes(self) -> np.ndarray:
        return np.array(self.rows).astype("<u2").reshape(-1).view(np.uint8)


@dataclasses.dataclass(frozen=True)
class CompiledLayer:
    """Programs and memories but for the tokens and the cache.

    parts: words of part 0 and part 1. data: the data memory, zeros where the host writes; place:
    first row and rows of each of its vectors. weights: one memory per port, zeros where the caches
    go; image: word address and shape (K, N) of each image.
    """

    config: MachineConfig
    quantized: QuantizedLayer
    tokens: int
    context: int
    parts: list[list[int]]
    data: np.ndarray
    place: Mapping[str, tuple[int, int]]
    weights: list[np.ndarray]
    image: Mapping[str, tuple[int, int, int]]


def _padded(codebook: Tensor, bits: int) -> Tensor:
    """The last centroid repeated up to 2**bits entries."""
    extra = (1 << bits) - len(codebook)
    return torch.cat((codebook, codebook[-1:].expand(extra)))


class _Compiler:
    def __init__(self, quantized: QuantizedLayer, config: MachineConfig, tokens: int, context: int):
        self.quantized, self.config = quantized, config
        self.shape, self.options = quantized.shape, quantized.options
        self.tokens, self.context, self.all_tokens = tokens, context, context + tokens
        self.data = _DataMemory()
        self.asm = Assembler(config)
        self.head_rows = self.shape.head_size // ROW_ELEMENTS
        self.image: dict[str, tuple[int, int, int]] = {}
        self.weights = self._images()
        self._constants()

    # Memories.

    def _images(self) -> list[np.ndarray]:
        shape, config, address = self.shape, self.config, 0
        sizes = [(n, *w.index.shape) for n, w in self.quantized.weight.items()]
        for head in range(shape.kv_heads):
            sizes.append((f"k{head}", shape.head_size, self.all_tokens))
            sizes.append((f"v{head}", self.all_tokens, shape.head_size))
        for name, length, outputs in sizes:
            self.image[name] = address, length, outputs
            address += config.image_words(length, outputs)
        size, count = address * config.port_bits // 8, config.ports.ports
        memory = [np.zeros(size, np.uint8) for _ in range(count)]
        for name, weight in self.quantized.weight.items():
            write_image(memory, config, self.image[name][0], weight.index, weight.scale)
        return memory

    def _constants(self) -> None:
        quantized, shape, config = self.quantized, self.shape, self.config
        product = config.product
        for name, codebook in quantized.codebook.items():
            self.data.add(f"codebook.{name}", codebook, midpoints(codebook))
        for name, weight in quantized.weight.items():
            a = quantized.codebook[site_of(name).name]
            self.data.add(f"packet.{name}", codebook_packet(a, weight.codebook, product))
        k = _padded(quantized.codebook["k"], config.bits_b)
        q = quantized.codebook["q"]
        v = _padded(quantized.codebook["v"], config.bits_b)
        self.data.add("packet.scores", codebook_packet(q, k, product))
        self.data.add("packet.cached_v", integer_packet(v, config.bits_a, product))
        for t in range(self.tokens):
            for name in ("cos", "sin"):
                self.data.add(f"{name}{t}", np.zeros(shape.head_size // 2))
        for t in range(self.tokens - 1):
            hidden = np.arange(self.all_tokens) > self.context + t
            self.data.add(f"mask{t}", np.where(hidden, _MINUS_INFINITY, 0))
        for head in range(shape.kv_heads):
            self.data.add(f"v_scale{head}", np.zeros(self.all_tokens))
        self.data.add("x", *np.zeros((self.tokens, shape.hidden)))

    # Pieces.

    def _load(self, name: str, length: int, tokens: int = 1) -> Vector:
        vector = self.asm.vector(length, tokens)
        self._load_into(name, vector)
        return vector

    def _load_into(self, name: str, vector: Vector) -> None:
        address, rows = self.data.place[name]
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
        epsilon = int(bits_from_float(torch.tensor(self.shape.epsilon).double(), FP32))
        statistics = Statistics(norm, epsilon)
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

    def compile(self) -> CompiledLayer:
        asm, shape = self.asm, self.shape
        x = asm.vector(shape.hidden, self.tokens)
        rotated = self._project(x)
        asm.part()
        attention = self._attend(rotated)
        self._residual("attention", "o", attention, x)
        self._mlp(x)
        asm.read(src=x)
        return CompiledLayer(
            config=self.config,
            quantized=self.quantized,
            tokens=self.tokens,
            context=self.context,
            parts=asm.parts,
            data=self.data.bytes(),
            place=self.data.place,
            weights=self.weights,
            image=self.image,
        )

    def _project(self, x: Vector) -> Vector:
        """Loads x; q, k, v; rotated q and k are left; quantized v and k go to the host.

        The lanes load their first codebook during QUANTIZE, and the codebook of the scores during
        ROTARY. v goes first because it does not wait for ROTARY.
        """
        asm, shape, size = self.asm, self.shape, self.shape.head_size
        q, kv = shape.heads * size, shape.kv_heads * size
        fused = "qkv" in self.image
        self._lanes("qkv" if fused else "q")
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
        lanes = next(iter(attention_steps(self.options.scores)))
        self._lanes(lanes, _LANES[lanes])
        rotated = asm.vector(q + kv, self.tokens)
        for t in range(self.tokens):
            cos, sin = (self._load(f"{name}{t}", size // 2) for name in ("cos", "sin"))
            asm.rotary(
                src=made.token(t), dst=rotated.token(t), cos=cos, sin=sin,
                heads=shape.heads + shape.kv_heads, head_size=size,
            )  # fmt: skip
            asm.free(cos, sin)
        step = max(1, min(shape.kv_heads, self.config.slots // 2))
        for name, source, first in (("v", made, q + kv), ("k", rotated, q)):
            self._clustering(name)
            for t in range(self.tokens):
                for head in range(0, shape.kv_heads, step):
                    count = min(step, shape.kv_heads - head)
                    heads = source.token(t).part(first + head * size, size, count, self.head_rows)
                    slots = self._quantize(name, heads)
                    for n in range(count):
                        asm.read_slot(slot=slots.first + n)
                    asm.free(slots)
        asm.free(made)
        return rotated

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

        def scores(q: Vector | Slots) -> Vector:
            """DIRECT for words, by indices for slots."""
            made = asm.vector(context, shape.group)
            address, size = self.image[f"k{head}"][0], shape.head_size
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
            """Nothing is hidden from the last token."""
            return binary(Binary.ADD, f"mask{t}", value) if t < self.tokens - 1 else value

        def softmax(value: Vector) -> Vector:
            asm.softmax(src=value, dst=value)
            return value

        def integers(value: Vector) -> Slots:
            slots = asm.slots(shape.group)
            asm.quantize_integer(src=value, slot=slots)
            asm.free(value)
            return slots

        def values(slots: Slots) -> Vector:
            address = self.image[f"v{head}"][0]
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
            "weight": lambda value: binary(Binary.MULTIPLY, f"v_scale{head}", value),
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


def compile_layer(
    quantized: QuantizedLayer, config: MachineConfig, tokens: int = 1, context: int = 0
) -> CompiledLayer:
    """Programs for ``tokens`` new tokens after ``context`` cached ones.

    ConfigError: a layer that the machine has no room for; AssemblyError: no rows or slots left.
    """
    shape = quantized.shape
    if tokens < 1 or context < 0:
        raise ConfigError(f"tokens must be at least 1, context at least 0, not {tokens}, {context}")
    sizes = {
        "slot.elements": max(shape.hidden, shape.intermediate, context + tokens,
                             shape.heads * shape.head_size),
        "softmax_elements": context + tokens,
        "slot.outliers_max": shape.head_size if quantized.options.scores == "direct" else 2,
        "slot.slots": max(shape.group, 2 * tokens),
        "slot.bits_a": max(len(c) for c in quantized.codebook.values()).bit_length() - 1,
        "lane.bits_b": max(w.bits for w in quantized.weight.values()),
    }  # fmt: skip
    for field, needed in sizes.items():
        found = operator.attrgetter(field)(config)
        if found < needed or (".bits_" in field and found != needed):
            raise ConfigError(f"MachineConfig.{field} must be {needed} for this layer, not {found}")
    # Longest tokens that share weights: heads of one KV head, or the new tokens.
    shared = [context + tokens] if shape.group > 1 else []
    if tokens > 1:
        shared += [sizes["slot.elements"]]
    needed = max((-(-length // config.elements) for length in shared), default=0)
    if config.replay_beats < needed:
        raise ConfigError(
            f"MachineConfig.replay_beats must be at least {needed} for this layer, "
            f"not {config.replay_beats}"
        )
    return _Compiler(quantized, config, tokens, context).compile()


def write_image(
    memory: list[np.ndarray],
    config: MachineConfig,
    address: int,
    index: Tensor,
    scale: Tensor,
) -> None:
    made = weight_image(index.numpy(), scale.numpy(), config.layout)
    first = address * config.port_bits // 8
    for port, data in zip(memory, made, strict=True):
        port[first : first + len(data)] = data
