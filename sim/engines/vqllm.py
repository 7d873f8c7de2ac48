"""VQ-LLM: matrices as VQ codes, multiplied by an engine of each core, and K and V as CQ codes.

The vector unit and the memory are ``sim.matrix``. The rows of a matrix are spread over the cores.
Each core multiplies by the cycles of ``golden.vqllm.crossover``. Its codebooks and codes come by a
port of its own, and cores share what they read of memory. The head and a router are FP16 words for
the matrix unit.

``gemm`` reads the codes once for as many tokens as it keeps. ``gemv`` reads them again for each
group of ``batch`` tokens. K and V are FP16 words, or the codes of ``cq4`` or ``cq2``. Attention on
codes takes the cycles of ``golden.vqllm.timing.attend_bound``, and reads the codebooks of each head
for each group of queries.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import ClassVar

from golden.config import Config, bounded, choice, power_of_two
from golden.million.config import PqShape
from golden.million.timing import pq_encoder
from golden.vqllm.config import NAMED, AttendShape, MatrixShape
from golden.vqllm.crossover import Engine as Multiplier
from golden.vqllm.crossover import gemm_cycles, gemv_cycles
from sim.constant import Interval
from sim.cost import Spent
from sim.matrix import (
    CONSTANTS,
    WORD,
    MatrixEngine,
    MatrixSettings,
    PartLoad,
    part_loads,
    with_background,
)
from sim.model import Model
from sim.roofline import operation
from sim.work import LINEAR, Pass, Work, matrices_of, works

_WEIGHTS = tuple(name for name in NAMED if not name.startswith("cq"))
_KV = ("none", "cq4", "cq2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqLlmSettings(MatrixSettings):
    """Choices of the engines for codes, as the generators name them."""

    vq: str = choice(
        "aqlm2x8", _WEIGHTS, "codes of the matrices, a name of golden.vqllm.config.NAMED"
    )
    method: str = choice("gemm", ("gemm", "gemv"), "engine of the matrices")
    macs: int = 32  # weights of a beat, 1..4,096
    batch: int = 16  # tokens side by side, 1..64
    tokens: int = bounded(256, 1, 65536, "most tokens of a gemm on chip")
    port_bits: int = 512  # of a core's memory port, 8..4,096
    kv: str = choice("none", _KV, "codes of K and V; none: FP16 words")
    max_tokens: int = bounded(32768, 1, 32768, "longest sequence")
    groups: int = 8  # channel groups of a pass of attention, 4..128
    queries: int = 4  # queries of a KV head side by side, 1..8
    attend_bits: int = 256  # of the words of attention, a power of two in 64..1,024
    encode_macs: int = power_of_two(64, 4, 256, "products per cycle with the codebooks of K and V")

    def __post_init__(self) -> None:
        super().__post_init__()
        Multiplier(macs=self.macs, batch=self.batch, port_bits=self.port_bits)


@dataclasses.dataclass(frozen=True)
class _Attention:
    """Attention of a model on codes; all cycles are of one head."""

    shape: AttendShape
    group: int  # queries of a KV head
    encode: float  # cycles of K and V of a token
    memory: int  # cycles from a request to its first word

    @functools.cached_property
    def token_bytes(self) -> int:
        """Bytes of the codes of K, or of V, of a token."""
        return self.shape.pq.record_bytes

    @functools.cached_property
    def book_bytes(self) -> float:
        """Bytes of the codebooks of K and V."""
        return 2.0 * self.shape.pq.entries * self.shape.pq.head_dim * WORD

    def groups(self, new: int) -> int:
        return -(-new * self.group // self.shape.queries)

    def cycles(self, tokens: int) -> int:
        """Cycles of a group of queries among others."""
        from golden.vqllm.timing import attend_bound  # loads numpy

        return attend_bound(self.shape, tokens, self.shape.pq.entries)

    def fill(self, tokens: int) -> int:
        """Cycles of a train of heads, beyond ``cycles``."""
        from golden.vqllm.timing import attend_fill

        return attend_fill(self.shape, tokens, self.shape.pq.entries, self.memory)


@functools.lru_cache(64)
def _attention(model: Model, settings: VqLlmSettings, memory: int) -> _Attention:
    """ConfigError: the engine does not have such heads."""
    size, bits = NAMED[settings.kv].size, NAMED[settings.kv].code_bits
    pq = PqShape(head_dim=model.head_size, subspaces=model.head_size // size, bits=bits)
    shape = AttendShape(
        pq=pq, groups=settings.groups, queries=settings.queries, data_bits=settings.attend_bits,
        max_tokens=settings.max_tokens,
    )  # fmt: skip
    parts = max(1, model.head_size // settings.encode_macs)
    encode = 2 * float(pq_encoder(pq.entries, parts, pq.sub).interval)
    return _Attention(shape, model.group, encode, memory)


class VqLlm(MatrixEngine):
    """A chip of engines for codes, with a matrix unit for FP16 words."""

    name = "vqllm"
    constants: ClassVar[Mapping[str, tuple[str, str]]] = {
        **CONSTANTS,
        "look_cycles": ("cycles", "mean of the look-ups of a beat, 1 without conflicts"),
        "sram": ("pJ/bit", "of a bit of the codebooks on chip that is read"),
    }
    Settings: ClassVar[type[Config]] = VqLlmSettings
    chip_fields: ClassVar[Collection[str]] = (
        *MatrixEngine.chip_fields,
        "vq",
        "method",
        "kv",
        "macs",
        "batch",
        "tokens",
        "port_bits",
        "groups",
        "queries",
        "attend_bits",
        "encode_macs",
    )

    @property
    def vq(self):
        return NAMED[self.settings.vq]

    def coded(self, model: Model) -> _Attention | None:
        """None: FP16 words."""
        if self.settings.kv == "none":
            return None
        return _attention(model, self.settings, self.memory_cycles)

    def supports(self, model: Model) -> None:
        super().supports(model)
        self.weight_bytes(model)

    def matrix_bytes(self, inputs: int, outputs: int) -> float:
        """Codes, codebooks and an FP16 scale of each row. ConfigError: no whole vectors."""
        shape = MatrixShape(rows=outputs, columns=inputs, vq=self.vq)
        return (shape.code_bits + shape.codebook_bits) / 8 + WORD * outputs

    def weight_bytes(self, model: Model) -> float:
        """Codes and codebooks of the layers; router, embeddings and head as words."""
        layers = model.stored(self.matrix_bytes)
        words = model.router_weights + model.weights - model.layer_weights
        coded = self.coded(model)
        books = coded.book_bytes * model.kv_heads if coded else 0.0
        return layers + model.layers * books + words * self.settings.weight_bytes

    def cache_bytes(self, model: Model, tokens: int) -> float:
        """Codes in pages, a stream for each head of K and of V of each layer."""
        coded = self.coded(model)
        if coded is None:
            return super().cache_bytes(model, tokens)
        stream = self.paged(model.kept(tokens) * coded.token_bytes)
        return 2.0 * model.layers * model.kv_heads * stream

    def _passes(self, tokens: int) -> int:
        """Counts how often the codes of a matrix are read."""
        found = self.settings
        return math.ceil(tokens / (found.tokens if found.method == "gemm" else found.batch))

    def linear(self, model: Model, work: Work) -> Spent:
        matrices = matrices_of(model, work)
        if not matrices:
            return super().linear(model, work)
        found = self.settings
        engine = Multiplier(
            macs=found.macs, batch=found.batch, port_bits=found.port_bits,
            look_cycles=self.base("look_cycles"),
        )  # fmt: skip
        experts = max(1, work.weights // (work.inputs * work.outputs))
        tokens = math.ceil(work.rows / experts)
        passes = self._passes(tokens)
        cycles = {"port": 0, "look-ups": 0, "products": 0}
        amount = 0.0
        for inputs, outputs in matrices:
            rows = math.ceil(outputs / found.cores)
            shape = MatrixShape(rows=rows, columns=inputs, vq=self.vq)
            if found.method == "gemm":
                most = min(tokens, found.tokens)
                each = gemm_cycles(shape, engine, most)
                each = {name: passes * count for name, count in each.items()}
                each["products"] = gemm_cycles(shape, engine, tokens)["products"]
            else:
                each = gemv_cycles(shape, engine, tokens)
            cycles["port"] += each["memory"]
            cycles["look-ups"] += each["look-ups"]
            cycles["products"] += each["products"]
            amount += passes * self.matrix_bytes(inputs, outputs)
        limits = {name: experts * count / self.clock for name, count in cycles.items()}
        return self.roofline(work, limits, {"weights": experts * amount})

    @property
    def area(self) -> Mapping[str, float]:
        """Unknown: the cores' figure is the paper's, without the engines of codes."""
        return {}

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        """Unknown: no formula has the codebooks of these engines."""
        return {}

    def on_chip(self, model: Model, step: Pass) -> Interval:
        """Each look-up of a code reads an entry of a codebook."""
        amount = self._looked(model, step.tokens)
        coded = self.coded(model)
        if coded:
            for each in model.alike:
                for load in part_loads(each, step):
                    reads = load.count * model.kv_heads * coded.groups(load.new) * load.cached
                    amount += each.layers * reads * 2 * model.head_size * WORD
        return self.hardware.constants["sram"].interval * amount

    @functools.lru_cache(1 << 12)  # noqa: B019, engines are few and kept anyway
    def _looked(self, model: Model, tokens: int) -> float:
        """Bytes of entries that the matrices of a pass read."""
        amount = 0.0
        for work in works(model, Pass.decode(tokens, 0)):
            if work.kind == LINEAR and matrices_of(model, work):
                experts = max(1, work.weights // (work.inputs * work.outputs))
                passes = self._passes(math.ceil(work.rows / experts))
                amount += work.count * work.weights * passes * self.vq.stages * WORD
        return amount

    def attention(self, model: Model, step: Pass, work: Work, rest: float) -> Spent:
        coded = self.coded(model)
        if coded is None:
            return super().attention(model, step, work, rest)
        loads, heads, jobs, fill = part_loads(model, step), model.kv_heads, [], 0
        read = books = 0.0
        for load in loads:
            if load.cached:
                groups = coded.groups(load.new)
                jobs.append((load.count * heads, groups * float(coded.cycles(load.cached))))
                fill = max(fill, coded.fill(load.cached))
                read += load.count * heads * groups * load.cached * 2 * coded.token_bytes
                books += load.count * heads * groups * coded.book_bytes
        # New tokens among themselves are FP16 words.
        fresh = [
            PartLoad(load.count, 0, load.new, max(load.pairs - load.new * load.cached, 0))
            for load in loads
        ]
        written = sum(load.count * load.new for load in loads) * heads * 2 * coded.token_bytes
        moved = {
            "weights": books,
            "kv_read": read,
            "kv_written": written,
            "activations": self.spilled(work),
        }
        encoded = ((load.count * heads, load.new * coded.encode) for load in loads)
        limits = {
            "memory": self.memory.seconds(sum(moved.values())),
            **self.attend_seconds(model, fresh, not self.settings.split),
            "attend": self.busiest(jobs) / self.clock,
        }
        limits = with_background(limits, {"encode": self.busiest(encoded) / self.clock}, rest)
        return operation(work, limits, moved, fill / self.clock)
