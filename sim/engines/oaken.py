"""Oaken: K and V in 4 bits with outliers, quantized and restored by engines of each core.

The matrix unit, the vector unit and the memory are ``sim.matrix``. The engines take the cycles of
``golden.oaken.timing``, and the bytes of ``golden.oaken.format``.

A job is a sequence, or one KV head of it, in one layer. A core reads the heads of a job one after
another. A READ of all heads reads the scales once, up to ``scale_tokens`` tokens. A longer READ, or
one of a single head, reads the scales for each head. The cheaper of the two ways counts.

``memory_mode`` says how the pages are read:

| memory_mode | K and V take |
|---|---|
| bursts | their bytes, at the bandwidth of all channels: long bursts, as for all other traffic |
| requests | the longer of two times, below; APPENDs take the cycles of their walk |

With ``requests``, the limit ``requests`` is that of the busiest core. Its MMU reads K and V of its
jobs through its own window of ``outstanding`` bursts and of its queues (``sim.requests``). A word
comes after the latency of the chip's memory, in cycles of the clock. The limit ``memory`` is that
of all channels. It takes the whole words that the bursts bring. So the bandwidth is that of all
cores' windows together, or that of the channels if it is less. The latency is that of an idle
memory: channels that are full delay no single burst. The time up to the first word is in the
overhead of both modes.

The paper does not state its number of cores or the lanes of its engines. 264 cores of 512 products
per cycle give 270 TFLOPS. Engines of 16 and 64 lanes have the areas of Table 4 (docs/area.md).
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import ClassVar

from golden.config import Config, bounded, choice, power_of_two
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.format import SCALE_BYTES, bits_read, effective_bits
from golden.oaken.timing import (
    dequant_engine,
    kv_append_cycles,
    kv_head_cycles,
    kv_read_cycles,
)
from golden.paging.timing import mmu
from sim.cost import Spent
from sim.matrix import (
    CONSTANTS,
    MatrixEngine,
    MatrixSettings,
    PartLoad,
    part_loads,
    with_background,
)
from sim.model import Model
from sim.requests import Window, append_cycles, read_of, record_sizes, train_cycles
from sim.roofline import operation
from sim.work import Pass, Work


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenSettings(MatrixSettings):
    """Choices of the engines of K and V, as the generators name them."""

    records: str = choice(
        "oaken", ("oaken", "none"), "of K and V; none: FP16 words, without engines"
    )
    quant_lanes: int = 16  # elements per cycle that a core quantizes, a power of two in 8..64
    dequant_lanes: int = 64  # elements per cycle that a core restores, a power of two in 8..64
    block: int = choice(64, (16, 32, 64), "elements that share a count byte")
    data_bits: int = power_of_two(256, 64, 1024, "of a core's words of memory")
    scale_tokens: int = bounded(1024, 4, 65536, "tokens whose scales a core keeps")
    scale_stages: int = bounded(7, 1, 16, "cycles from scales to their parameters")
    stages: int = bounded(5, 1, 16, "cycles in the lanes")
    sparse_beats: int = bounded(128, 1, 65536, "words of the queue of sparse records")
    memory_mode: str = choice(
        "bursts",
        ("bursts", "requests"),
        "how pages are read; requests: one by one, by the fields below",
    )
    outstanding: int = bounded(16, 1, 256, "bursts that a core has in flight")
    burst_beats: int = bounded(64, 1, 256, "words of the longest burst")
    reads: int = bounded(8, 1, 16, "READs that a core has in flight")
    dense_beats: int = bounded(256, 4, 4096, "words of the queue of dense records")
    scale_beats: int = bounded(64, 4, 4096, "words of the queue of scales")

    def __post_init__(self) -> None:
        super().__post_init__()
        for lanes in ("quant_lanes", "dequant_lanes"):
            self._check_power_of_two(lanes, 8, self.block)
        if self.memory_mode == "requests":
            if self.records == "none":
                self._refuse("memory_mode", "bursts where records is none")
            self._check_range("sparse_beats", 4, 65536)


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of a model's K and V, and the cycles of the engines for them.

    outliers : share of the elements
    memory : cycles from a request to its first word
    """

    kv: KvShape
    settings: OakenSettings
    outliers: float
    memory: int

    @functools.cached_property
    def stored(self) -> float:
        """Bytes of K and V of a token in a layer."""
        bits = effective_bits(self.outliers, self.kv.elements, self.kv.block)
        return 2 * self.kv.elements * bits / 8

    @functools.cached_property
    def _read(self) -> tuple[float, float]:
        """Bytes that are read for them: one head at a time, all heads at once."""
        f, heads, size = self.outliers, self.kv.heads, self.kv.head_dim
        one, every = (bits_read(f, heads, size, self.kv.block, n) for n in (1, heads))
        return 2 * self.kv.elements * one / 8, 2 * self.kv.elements * every / 8

    def read(self, tokens: int, whole: bool) -> float:
        """Bytes that a READ of ``tokens`` tokens reads."""
        is_once = whole and tokens <= self.settings.scale_tokens
        return tokens * self._read[is_once]

    @functools.cached_property
    def window(self) -> Window:
        """The window of a core's MMU. ConfigError: the memory's latency is out of its range."""
        found = self.settings
        return Window(
            latency=self.memory,
            **{
                name: getattr(found, name)
                for name in (
                    "data_bits", "page_bytes", "burst_beats", "outstanding", "reads",
                    "dense_beats", "sparse_beats", "scale_beats",
                )
            },
        )  # fmt: skip

    def requests(self, tokens: int, whole: bool) -> tuple[float, int]:
        """Cycles from the first word of a READ of K and V to the last, and bytes of their words.

        whole: of all heads, head by head where the scales find no place; else of one head.
        """
        if not tokens:
            return 0.0, 0
        heads = self.kv.heads if whole else 1
        together = heads if tokens <= self.settings.scale_tokens else 1
        read = read_of(self.window, self.kv, tokens, self.outliers, together)
        count = 2 * heads // together
        cycles = train_cycles(self.window, read, count)
        first = mmu(self.kv, self.window.depths).latency + self.memory
        return cycles - first, count * sum(read.words) * self.window.word_bytes

    @functools.cached_property
    def streams(self) -> tuple[tuple[int, float], ...]:
        """The streams of K or V of a layer: how many, and bytes of a token in each."""
        sparse = self.kv.head_blocks + self.outliers * self.kv.head_dim
        return (
            (self.kv.heads, float(self.kv.dense_bytes)),
            (self.kv.heads, sparse),
            (1, float(SCALE_BYTES)),
        )

    @functools.cached_property
    def fill(self) -> int:
        """Cycles from a READ to its first beat."""
        found = self.settings
        return kv_read_cycles(found.scale_stages, found.stages, found.sparse_beats, self.memory)

    @functools.cached_property
    def _token(self) -> float:
        """Cycles of K or V of a token of a head at full rate."""
        found = self.settings
        beats = self.kv.head_dim // found.dequant_lanes
        return beats * float(dequant_engine(found.scale_stages, found.stages).interval)

    def restore(self, tokens: int) -> float:
        """Cycles of K and V of ``tokens`` tokens of a head."""
        return 2 * max(tokens * self._token, kv_head_cycles()) if tokens else 0.0

    def quantize(self, heads: int) -> int:
        """Cycles of K and V of a token, of ``heads`` heads."""
        return 2 * heads * self.kv.head_dim // self.settings.quant_lanes

    @functools.lru_cache(256)  # noqa: B019, records are few and kept anyway
    def append(self, heads: int) -> int:
        """Cycles of the MMU for them: records of ``heads`` heads, and the scales."""
        if self.settings.memory_mode == "requests":
            sizes = record_sizes(dataclasses.replace(self.kv, heads=heads), self.outliers)
            few, more = (append_cycles(self.window, sizes, count) for count in (8, 24))
            return 2 * -(-(more - few) // 16)
        slots = heads * len(self.kv.per_head) + len(self.kv.per_vector)
        words = -(-8 * SCALE_BYTES // self.settings.data_bits)
        return 2 * kv_append_cycles(slots, words, self.memory)


@functools.lru_cache(64)
def _records(model: Model, settings: OakenSettings, outliers: float, memory: int) -> Records:
    """ConfigError: the engines do not have such heads, or a page has no room for two records.

    With requests: the memory's latency has more cycles than ``Window`` takes.
    """
    kv = KvShape(heads=model.kv_heads, head_dim=model.head_size, block=settings.block)
    cache = CacheConfig(
        kv=kv, sequences=1, layers=model.layers, pages=1 << 20, page_bytes=settings.page_bytes,
        max_tokens=settings.max_tokens,
    )  # fmt: skip
    made = Records(cache.kv, settings, outliers, memory)
    if settings.memory_mode == "requests":
        _ = made.window  # which checks its numbers
    return made


class Oaken(MatrixEngine):
    """The paper's chip, or the same chip with a cache of FP16 words."""

    name = "oaken"
    constants: ClassVar[Mapping[str, tuple[str, str]]] = {
        **CONSTANTS,
        "outliers": ("", "share of the elements of K and V in the outer and the inner group"),
    }
    Settings: ClassVar[type[Config]] = OakenSettings
    chip_fields: ClassVar[Collection[str]] = (
        *MatrixEngine.chip_fields,
        "quant_lanes",
        "dequant_lanes",
        "block",
        "data_bits",
        "scale_tokens",
        "scale_stages",
        "stages",
        "sparse_beats",
        "outstanding",
        "burst_beats",
        "reads",
        "dense_beats",
        "scale_beats",
    )
    free_fields: ClassVar[Collection[str]] = (
        *MatrixEngine.free_fields,
        "records",
        "memory_mode",
    )

    def records(self, model: Model) -> Records | None:
        """None: FP16 words."""
        if self.settings.records == "none":
            return None
        return _records(model, self.settings, self.base("outliers"), self.memory_cycles)

    def supports(self, model: Model) -> None:
        super().supports(model)
        self.records(model)

    def cache_bytes(self, model: Model, tokens: int) -> float:
        """Records in pages, each stream by itself."""
        records = self.records(model)
        if records is None:
            return super().cache_bytes(model, tokens)
        kept = model.kept(tokens)
        vector = sum(count * self.paged(kept * each) for count, each in records.streams)
        return 2 * model.layers * vector

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        held = super().sram_bytes(model)
        if self.settings.records == "none":
            return held
        scales = self.settings.cores * self.settings.scale_tokens * SCALE_BYTES
        return {**held, "scales": float(scales)}

    def attention(self, model: Model, step: Pass, work: Work, rest: float) -> Spent:
        records = self.records(model)
        if records is None:
            return super().attention(model, step, work, rest)
        loads = part_loads(model, step)
        vectors = [(load.count, load.new) for load in loads]
        found = []
        for whole in (False, True) if self.settings.split else (True,):
            limits, moved = self._read(model, records, loads, whole)
            moved["kv_written"] = sum(n * new for n, new in vectors) * records.stored
            moved["activations"] = self.spilled(work)
            limits["memory"] = self.memory.seconds(sum(moved.values()))
            background = self._written(model, records, vectors, whole)
            waits = any(load.cached for load in loads)
            found.append(
                operation(
                    work, with_background(limits, background, rest), moved,
                    records.fill / self.clock if waits else 0.0,
                )
            )  # fmt: skip
        return min(found, key=lambda each: each.seconds)

    def _read(
        self, model: Model, records: Records, loads: list[PartLoad], whole: bool
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of the units of a layer, and bytes. whole: a core reads all heads."""
        heads = model.kv_heads if whole else 1  # of a job
        jobs = model.kv_heads // heads  # of a sequence
        restored = self.busiest(
            (load.count * jobs, heads * records.restore(load.cached)) for load in loads
        )
        limits = {"memory": 0.0, **self.attend_seconds(model, loads, whole)}
        limits["dequantize"] = restored / self.clock
        if self.settings.memory_mode == "bursts":
            amount = sum(load.count * records.read(load.cached, whole) for load in loads)
            return limits, {"kv_read": amount}
        found = [(load.count * jobs, *records.requests(load.cached, whole)) for load in loads]
        limits["requests"] = self.busiest((n, cycles) for n, cycles, _ in found) / self.clock
        return limits, {"kv_read": float(sum(n * amount for n, _, amount in found))}

    def _written(
        self, model: Model, records: Records, vectors: list[tuple[int, int]], whole: bool
    ) -> dict[str, float]:
        """Seconds of the engines that write new tokens. vectors: sequences, and new tokens each."""
        heads = model.kv_heads if whole else 1
        jobs = model.kv_heads // heads
        cycles = {"quantize": records.quantize(heads), "append": records.append(heads)}
        return {
            name: self.busiest((n * jobs, new * each) for n, new in vectors) / self.clock
            for name, each in cycles.items()
        }
