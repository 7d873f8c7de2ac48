"""MILLION: attention on product-quantized codes of K and V, by engines next to a matrix unit.

The matrix unit, the vector unit and the memory are ``sim.matrix``. Each core has an engine with the
cycles of ``golden.million.bounds`` and ``golden.million.timing``, at a clock of its own. Codes of K
and of V have a stream each (``kv_apart``).

A job is the queries of one KV head of a sequence in one layer. The codes are read once for each
group of ``queries`` queries. The first tokens and the recent ones are FP16 rows. Our engine holds
them on chip, of all sequences, layers and heads. Here they are in memory, since many sequences have
too many: so each pass says that it is extrapolated. As many rows as the window has are exact, if
the sequence has them.

In a prompt, the new tokens attend each other in FP16, in the matrix unit. The codebooks of a layer
are read once per pass, for all cores, while another layer is at work.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import ClassVar

from golden.config import Config, bounded, power_of_two
from golden.million.bounds import Bound, bound, load_beats
from golden.million.config import (
    HeadShape,
    MillionConfig,
    PqShape,
    RateShape,
    WindowShape,
)
from golden.million.storage import storage, sum_bits
from golden.million.timing import group_interval, pq_encoder
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
from sim.work import Pass, Work

_WINDOW_WORDS = 1 << 20  # of ``window_macs`` elements, the most that hdl.million.window has


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionSettings(MatrixSettings):
    """Choices of the engines of attention, as the generators name them."""

    max_tokens: int = bounded(32768, 1, 32768, "longest sequence")
    subspaces: int = 64  # M: parts of a vector
    bits: int = 8  # of a code, 4..12
    sinks: int = 4  # first tokens that stay exact, 0..64
    keep: int = 0  # recent tokens that stay exact, 0..256
    block: int = 32  # tokens that are encoded together, 0..256
    macs: int = 64  # products per cycle with the codebook, a power of two in 4..256
    keys: int = 1  # keys per cycle: 1, 2 or 4
    queries: int = 4  # queries of a KV head side by side, 1..8
    window_macs: int = 32  # products per cycle with exact rows, a power of two in 4..256
    lanes: int = 16  # words per beat of q, K, V and outputs, a power of two in 4..64
    elements: int = 4  # of the outputs per cycle, a divisor of lanes
    data_bits: int = power_of_two(512, 64, 1024, "of a core's words of memory")
    scope_heads: bool = False  # a codebook for each KV head instead of one for all

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.rate, self.window  # they refuse their fields
        if self.elements < 1 or self.lanes % self.elements:
            self._refuse("elements", f"a divisor of lanes = {self.lanes}")

    @property
    def rate(self) -> RateShape:
        return RateShape(
            macs=self.macs, keys=self.keys, queries=self.queries, window_macs=self.window_macs,
            lanes=self.lanes,
        )  # fmt: skip

    @property
    def window(self) -> WindowShape:
        return WindowShape(sinks=self.sinks, keep=self.keep, block=self.block)


@dataclasses.dataclass(frozen=True)
class _Engine:
    """The engine of a core for a model; all cycles are of one layer."""

    config: MillionConfig
    rate: RateShape
    settings: MillionSettings

    @functools.cached_property
    def rows(self) -> int:
        """Most exact rows."""
        return self.config.window.rows

    @functools.cached_property
    def encode(self) -> float:
        """Cycles of K and V of a token of a head."""
        pq = self.config.pq
        return 2 * float(pq_encoder(pq.entries, self.rate.parts(pq), pq.sub).interval)

    @functools.cached_property
    def load(self) -> int:
        """Cycles of the codebooks."""
        return load_beats(self.config, self.rate.lanes)

    @functools.cached_property
    def book_bytes(self) -> float:
        """Bytes of the codebooks of K and V."""
        pq = self.config.pq
        return 2.0 * self.config.books * pq.entries * pq.head_dim * WORD

    def split(self, tokens: int) -> tuple[int, int]:
        """Tokens in codes, and exact ones."""
        exact = min(tokens, self.rows)
        return tokens - exact, exact

    def bytes(self, tokens: int) -> float:
        """Bytes of K and V of a head."""
        codes, exact = self.split(tokens)
        pq = self.config.pq
        return 2.0 * (codes * pq.record_bytes + exact * pq.head_dim * WORD)

    def groups(self, new: int) -> int:
        """Counts the groups of the queries of a job."""
        return -(-new * self.config.head.group // self.rate.queries)

    def attend(self, tokens: int, new: int) -> tuple[Bound, float]:
        """A job with ``tokens`` in the cache: its bound, and the cycles of each of its groups."""
        codes, exact = self.split(tokens)
        pq, heads = self.config.pq, self.config.head
        found = bound(pq, self.rate, heads.group * new, codes, self.settings.data_bits)
        interval = group_interval(
            pq, self.rate, found, elements=self.settings.elements, exact=exact,
            groups=heads.heads * found.groups, apart=True,
        )  # fmt: skip
        return found, float(interval)


@functools.lru_cache(64)
def _engine(model: Model, settings: MillionSettings) -> _Engine:
    """ConfigError: the engine does not have such heads."""
    pq = PqShape(head_dim=model.head_size, subspaces=settings.subspaces, bits=settings.bits)
    config = MillionConfig(
        pq=pq,
        head=HeadShape(heads=model.kv_heads, group=model.group),
        window=settings.window,
        layers=model.layers,
        max_tokens=settings.max_tokens,
        pages=1 << 20,
        page_bytes=settings.page_bytes,
        scope_heads=settings.scope_heads,
    )
    settings.rate.check_head(pq)
    return _Engine(config, settings.rate, settings)


# Settings that change memories of an engine of attention, and none of its logic.
_MEMORIES = ("max_tokens", "sinks", "keep", "block", "scope_heads")


class Million(MatrixEngine):
    """A chip of a matrix unit and engines of attention on codes."""

    name = "million"
    constants: ClassVar[Mapping[str, tuple[str, str]]] = {
        **CONSTANTS,
        "sram": ("pJ/bit", "of a bit of the tables and bins, read or written"),
        "engine_area": ("mm2", "of the logic of a core's engine of attention"),
        "ram_area": ("um2", "of a bit of the engine's memories"),
        "engine_clock": ("Hz", "of the engines of attention"),
    }
    Settings: ClassVar[type[Config]] = MillionSettings
    chip_fields: ClassVar[Collection[str]] = (
        *MatrixEngine.chip_fields,
        "engine_clock",
        "macs",
        "keys",
        "queries",
        "window_macs",
        "lanes",
        "elements",
        "data_bits",
        "subspaces",
        "bits",
        *_MEMORIES,
    )
    free_fields: ClassVar[Collection[str]] = tuple(
        name for name in MatrixEngine.free_fields if name not in _MEMORIES
    )
    areas: ClassVar[Mapping[str, Collection[str]]] = {"ours": ("core_area", "engine_area")}
    follows: ClassVar[Mapping[str, Collection[str]]] = {
        "core_area": ("cores", "subspaces", "bits", *_MEMORIES),  # it has no engine of attention
        "engine_area": ("cores", *_MEMORIES),  # logic, while ``ram_area`` follows the memories
    }

    def engine(self, model: Model) -> _Engine:
        return _engine(model, self.settings)

    def supports(self, model: Model) -> None:
        super().supports(model)
        self.engine(model)

    def weight_bytes(self, model: Model) -> float:
        """Bytes of the weights, with the codebooks of all layers."""
        return super().weight_bytes(model) + model.layers * self.engine(model).book_bytes

    def cache_bytes(self, model: Model, tokens: int) -> float:
        """Codes in pages, a stream for each head of K and of V of each layer, and exact rows."""
        engine = self.engine(model)
        codes, exact = engine.split(model.kept(tokens))
        stream = self.paged(codes * engine.config.pq.record_bytes)
        head = stream + exact * model.head_size * WORD
        return 2.0 * model.layers * model.kv_heads * head

    def storage(self, model: Model) -> dict[str, float]:
        """Bytes on chip of all cores, by what they hold; exact rows are in memory."""
        engine = self.engine(model)
        bits = storage(engine.config, engine.rate)
        cores = self.settings.cores
        return {name: cores * count / 8 for name, count in bits.items() if name != "rows"}

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        return {**super().sram_bytes(model), **self.storage(model)}

    @property
    def area(self) -> Mapping[str, float]:
        """The paper's cores, each with our engine, for heads of 128 elements or a few more."""
        found = self.settings
        config = MillionConfig(
            pq=PqShape(
                head_dim=-(-128 // found.subspaces) * found.subspaces,
                subspaces=found.subspaces, bits=found.bits,
            ),
            window=found.window, max_tokens=found.max_tokens, scope_heads=found.scope_heads,
        )  # fmt: skip
        bits = sum(n for name, n in storage(config, found.rate).items() if name != "rows")
        engine = self.base("engine_area") + bits * self.base("ram_area")
        return {"ours": found.cores * (self.base("core_area") + engine)}

    def extrapolated(self, model: Model) -> tuple[str, ...]:
        """Says what the RTL does otherwise: exact rows are on chip and have only so many places."""
        window = self.engine(model).config.window
        rows = model.layers * model.kv_heads * (window.sinks + window.places)
        most = _WINDOW_WORDS // (rows * (model.head_size // self.settings.window_macs))
        reason = (
            f"MILLION's exact rows are read from memory; our RTL keeps them on chip, "
            f"{2 * WORD * rows * model.head_size / 1e6:.1f} MB for each sequence, and an engine "
            f"has room for at most {most}"
        )
        return (reason,)

    def on_chip(self, model: Model, step: Pass) -> Interval:
        """Joules of the tables and bins on chip.

        A key and a query read an entry of each table, and read and write a bin of each.
        """
        engine = self.engine(model)
        pq, most = engine.config.pq, engine.config.max_tokens
        key = pq.subspaces * (WORD + 2 * sum_bits(-(-most // engine.rate.keys)) / 8)
        keys = sum(
            each.layers * load.count * load.new * engine.split(load.cached)[0]
            for each in model.alike
            for load in part_loads(each, step)
        )
        moved = model.heads * keys * key
        return self.hardware.constants["sram"].interval * moved

    def attention(self, model: Model, step: Pass, work: Work, rest: float) -> Spent:
        engine, loads = self.engine(model), part_loads(model, step)
        clock = self.base("engine_clock")
        heads, jobs, fill, read, written = model.kv_heads, [], 0, 0.0, 0.0
        for load in loads:
            if load.cached:
                found, interval = engine.attend(load.cached, load.new)
                jobs.append((load.count * heads, found.groups * interval))
                fill = max(fill, found.fill)
                read += load.count * heads * engine.bytes(load.cached) * found.groups
            # A new token of a step is written as a row, and later as codes.
            row = model.head_size * WORD * (load.new == 1)
            written += load.count * load.new * heads * 2 * (row + engine.config.pq.record_bytes)
        # New tokens of a prompt among themselves.
        fresh = [
            PartLoad(load.count, 0, load.new, max(load.pairs - load.new * load.cached, 0))
            for load in loads
            if load.new > 1
        ]
        moved = {
            "weights": engine.book_bytes if jobs or written else 0.0,
            "kv_read": read,
            "kv_written": written,
            "activations": self.spilled(work),
        }
        encoded = ((load.count * heads, load.new * engine.encode) for load in loads)
        limits = {
            "memory": self.memory.seconds(sum(moved.values())),
            **self.attend_seconds(model, fresh, not self.settings.split),
            "attend": self.busiest(jobs) / clock,
        }
        background = {
            "encode": self.busiest(encoded) / clock,
            "load": engine.load / clock,
        }
        limits = with_background(limits, background, rest)
        return operation(work, limits, moved, fill / clock)
