"""A chip with a matrix unit, a vector unit, SRAM and memory, which all work side by side.

An operation takes as long as the slowest of them, then ``start``: the first bytes come, the
pipeline fills. Chips that differ in number formats and in what they leave out share this engine.

The matrix unit multiplies ``token_lanes`` rows at a time with the same weights. Fewer rows leave
lanes idle. In attention the rows that share K and V are the queries of a group, times the new
tokens of a sequence.

Activations: every operation has the rule of ``sim.matrix``, ``sim.roofline.spilled``. They stay on
chip as far as ``buffer`` has room for what an operation reads and writes. The excess is memory
traffic. SRAM reads or writes each activation once. Two other rules were refused:

| rule | why not |
|---|---|
| all of products and attention move, those of vector operations do not | K and V move twice |
| | the outputs of gate and up move before the activation halves them |
| | the same work moves less on chips of ``sim.matrix``, to which the claims compare |
| none moves | at 1K tokens a product of LLaMA-2-7B has 53 MB, more than a small chip holds |
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import ClassVar

from golden.config import Config, bounded, flag
from sim.constant import Interval
from sim.cost import Cost, Spent
from sim.engine import Engine, check_words
from sim.hardware import Hardware
from sim.model import Model
from sim.roofline import operation, spilled
from sim.work import (
    ATTENTION,
    LINEAR,
    Pass,
    Work,
    attention_macs,
    heads_of,
    scores_of,
    works,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsicSettings(Config):
    """The precision of what the chip stores, and the parts that it leaves out.

    weight_bits, activation_bits, kv_bits, head_bits : of an element; the head is the last matrix
    weight_group, kv_group : elements that share a scale, 0: a whole column of a matrix, a whole
    vector of a head
    scale_bits : of a scale, its zero point included
    token_lanes : rows that share the weights of the matrix unit in a cycle
    attention_16 : attention multiplies in FP16, at ``matrix_16`` and not at ``matrix``
    """

    weight_bits: int = bounded(16, 1, 16)
    weight_group: int = bounded(0, 0, 1 << 20)
    activation_bits: int = bounded(16, 1, 16)
    head_bits: int = bounded(16, 1, 16)
    kv_bits: int = bounded(16, 1, 16)
    kv_group: int = bounded(0, 0, 1 << 20)
    scale_bits: int = bounded(16, 0, 64)
    token_lanes: int = bounded(1, 1, 1 << 16)
    attention_16: bool = flag(False)


class Asic(Engine):
    """An accelerator by its rooflines."""

    name: ClassVar[str] = "asic"
    Settings: ClassVar[type[Config]] = AsicSettings
    constants: ClassVar[Mapping[str, tuple[str, str]]] = {
        "clock": ("MHz", "of the chip"),
        "matrix": ("lanes", "multiplications of the matrix unit in a cycle, in the chip's format"),
        "matrix_16": ("lanes", "those of FP16 in a cycle, for matrices that stay in FP16"),
        "matrix_efficiency": ("", "share of the cycles in which a full matrix unit works"),
        "vector": ("lanes", "elements of the vector unit in a cycle"),
        "weights_read": ("", "share of the weights that is read; below 1 where some are derived"),
        "weights_multiplied": ("", "share of the multiplications by weights that is done"),
        "tokens_kept": ("", "share of the cached tokens that attention reads"),
        "heads_kept": ("", "share of the heads that attention computes"),
        "start": ("ns", "of an operation in which nothing overlaps, the memory's latency excluded"),
        "mac": ("pJ", "of one multiplication and addition in the chip's format"),
        "mac_16": ("pJ", "of one in FP16"),
        "vector_energy": ("pJ", "of an element of the vector unit"),
        "sram": ("pJ/bit", "of a byte read or written on the chip"),
        "sram_reuse": ("", "multiplications for each operand that is read from SRAM"),
        "buffer": ("B", "activations that stay on chip"),
        "static": ("W", "of the chip without its memory"),
        "area": ("mm2", "of the chip; 0: unknown"),
    }  # fmt: skip
    divisors: ClassVar[Collection[str]] = (
        "clock",
        "matrix",
        "matrix_16",
        "matrix_efficiency",
        "vector",
        "sram_reuse",
    )
    shares: ClassVar[Collection[str]] = (
        "matrix_efficiency",
        "weights_read",
        "weights_multiplied",
        "tokens_kept",
        "heads_kept",
    )

    chip_fields: ClassVar[Collection[str]] = (
        "clock",
        "matrix",
        "matrix_16",
        "vector",
        "buffer",
        "token_lanes",
        "weight_bits",
        "activation_bits",
        "kv_bits",
        "head_bits",
        "attention_16",
    )
    free_fields: ClassVar[Collection[str]] = ("weight_group", "kv_group", "scale_bits")
    energies: ClassVar[Collection[str]] = ("static",)
    areas: ClassVar[Mapping[str, Collection[str]]] = {"paper": ("area",), "ours": ("area",)}

    def __init__(self, hardware: Hardware):
        super().__init__(hardware)
        rate = self.base("clock") * self.base("matrix_efficiency")
        self._rate, self._rate_16 = rate * self.base("matrix"), rate * self.base("matrix_16")
        self._vector_rate = self.base("clock") * self.base("vector")
        self._start = self.base("start") + self.memory.latency
        self._bandwidth, self._buffer = self.memory.bandwidth, self.base("buffer")
        self._operation = functools.lru_cache(maxsize=1 << 14)(self.operation)

    @property
    def area(self) -> Mapping[str, float]:
        found = self.hardware.constants["area"]
        return {"ours" if found.kind == "measured" else "paper": found.base} if found.value else {}

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        return {"activations": self._buffer}

    def _matrix(self, inputs: float, outputs: float, bits: int) -> float:
        """Bytes of a matrix as it is stored."""
        use: AsicSettings = self.settings
        if bits == 16:
            return inputs * outputs * 2.0
        groups = math.ceil(inputs / use.weight_group) if use.weight_group else 1
        share = self.base("weights_read")
        return inputs * outputs * bits / 8 * share + outputs * groups * use.scale_bits / 8

    def _element(self, model: Model) -> float:
        use: AsicSettings = self.settings
        if use.kv_bits == 16:
            return 2.0
        return (use.kv_bits + use.scale_bits / (use.kv_group or model.kv_vector)) / 8

    def weight_bytes(self, model: Model) -> float:
        use: AsicSettings = self.settings
        layers = model.stored(lambda a, b: self._matrix(a, b, use.weight_bits))
        if model.routed:
            layers += model.routed * self._matrix(*model.router_size, use.weight_bits)
        table = model.vocabulary * model.hidden * 2.0
        head = 0.0 if model.tied else self._matrix(model.hidden, model.vocabulary, use.head_bits)
        return layers + table + head

    def kv_bytes(self, model: Model, tokens: int) -> float:
        return model.cached_elements(tokens) * self._element(model)

    def check(self, model: Model, batch: int, context: int) -> None:
        check_words(self.hardware.name, model, self.settings.kv_bits)

    def _spilled(self, work: Work) -> float:
        """Bytes of activations that find no room on chip; of ``embed``, FP16 rows of its table."""
        element = self.settings.activation_bits / 8
        return spilled(work, element, 2.0, self._buffer)

    def _padded(self, rows: float) -> float:
        """Rows of the matrix unit that are busy or idle while ``rows`` pass it."""
        lanes: int = self.settings.token_lanes
        return math.ceil(rows / lanes) * lanes

    def _linear(self, work: Work) -> Spent:
        use: AsicSettings = self.settings
        copies = work.weights // (work.inputs * work.outputs)
        bits = use.head_bits if work.name == "head" else use.weight_bits
        plain = bits == 16
        rows = copies * self._padded(work.rows / copies)
        share = 1.0 if plain else self.base("weights_multiplied")
        done = rows * work.inputs * work.outputs * share
        weights = copies * self._matrix(work.inputs, work.outputs, bits)
        moved = self._spilled(work)
        limits = {
            "matrix": done / (self._rate_16 if plain else self._rate),
            "memory": (weights + moved) / self._bandwidth,
        }
        return operation(work, limits, {"weights": weights, "activations": moved}, self._start)

    def _attention(self, work: Work, step: Pass, model: Model) -> Spent:
        use: AsicSettings = self.settings
        kept = self.base("tokens_kept") * self.base("heads_kept")
        size = self._element(model)
        # Parts differ in how many rows share K and V, so each fills the lanes by itself.
        done = 0.0
        for part in step.parts:
            rows = part.new * heads_of(model, part).sharing
            done += attention_macs(model, part) * (self._padded(rows) / rows)
        traffic = {
            "kv_read": work.kv_read * size * kept,
            "kv_written": work.kv_written * size,
            "activations": self._spilled(work),
        }
        plain = use.attention_16 or use.kv_bits == 16
        scores = 2 * scores_of(model, step)
        limits = {
            "matrix": done * kept / (self._rate_16 if plain else self._rate),
            "vector": scores * kept / self._vector_rate,
            "memory": sum(traffic.values()) / self._bandwidth,
        }
        return operation(work, limits, traffic, self._start)

    def _vector(self, work: Work) -> Spent:
        moved = self._spilled(work)
        limits = {"vector": work.vectors / self._vector_rate, "memory": moved / self._bandwidth}
        return operation(work, limits, {"activations": moved}, 0.0)

    def operation(self, work: Work) -> Spent:
        """Any operation but attention."""
        return self._linear(work) if work.kind == LINEAR else self._vector(work)

    def cost(self, model: Model, step: Pass) -> Cost:
        self.check(model, step.sequences, 1)
        found = works(model, step)
        alike = iter(model.alike)
        made = tuple(
            self._attention(work, step, next(alike))
            if work.kind == ATTENTION
            else self._operation(work)
            for work in found
        )
        return Cost(made, self._energy(found, made))

    def _energy(self, found: list[Work], made: tuple[Spent, ...]) -> dict[str, Interval]:
        use: AsicSettings = self.settings
        constants = self.hardware.constants
        kept = self.base("tokens_kept") * self.base("heads_kept")
        seconds = moved = macs = macs_16 = elements = operands = 0.0
        for work, spent in zip(found, made, strict=True):
            seconds += spent.seconds
            bytes_ = sum(spent.traffic.values())
            moved += bytes_
            vectors = work.count * work.vectors
            if work.kind not in (LINEAR, ATTENTION):
                elements += vectors
            count, bits = float(work.count * work.macs), use.activation_bits
            if work.kind == ATTENTION:
                count, plain = count * kept, use.attention_16 or use.kv_bits == 16
            else:
                plain = (use.head_bits if work.name == "head" else use.weight_bits) == 16
                count *= 1.0 if plain else self.base("weights_multiplied")
            if plain:
                macs_16, bits = macs_16 + count, 16
            else:
                macs += count
            # Operands that the reuse leaves, activations, and what memory brings, written and read.
            operands += count * bits / 8 / self.base("sram_reuse") + 2 * bytes_
            operands += vectors * use.activation_bits / 8
        core = (
            constants["mac"].interval * macs
            + constants["mac_16"].interval * macs_16
            + constants["vector_energy"].interval * elements
        )
        return {
            "static": (constants["static"].interval + self.memory.watts) * seconds,
            "dram": self.memory.joules(moved),
            "sram": constants["sram"].interval * operands,
            "core": core,
        }
