"""Sizes and payloads of the unit CACHE: those of oaken_attention, seen from the other side."""

import dataclasses

from amaranth.lib import data

from golden.config import Config, bounded, choice, nested
from golden.fp16.format import FP16
from golden.kllm.config import VectorShape
from golden.kllm.isa import ROW_ELEMENTS, row_count
from golden.oaken.config import CacheConfig
from hdl.kllm.engine import ROW
from hdl.ports import Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmCacheConfig(Config):
    """The memories of the unit, and the engine that it feeds."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    places: int = bounded(8, 1, 64, "places of the batch")
    cache: CacheConfig = nested(CacheConfig, "the cache")
    queries: int = bounded(1, 1, 8, "query heads of each KV head")
    lanes: int = choice(16, (16, 32, 64), "elements per beat of kv, and of a beat of the queries")
    engines: int = bounded(1, 1, 16, "engines of the cache, each with jobs of its own")

    def __post_init__(self) -> None:
        if self.cache.kv.head_dim % self.lanes:
            self._refuse("lanes", f"a divisor of head_dim = {self.cache.kv.head_dim}")
        if self.cache.kv.heads % self.engines:
            self._refuse("engines", f"a divisor of cache.kv.heads = {self.cache.kv.heads}")

    @property
    def heads(self) -> int:
        """Query heads of a token."""
        return self.cache.kv.heads * self.queries

    @property
    def beat_rows(self) -> int:
        return self.lanes // ROW_ELEMENTS

    @property
    def head_rows(self) -> int:
        return self.cache.kv.head_dim // ROW_ELEMENTS

    @property
    def steps(self) -> int:
        """Beats of a head."""
        return self.cache.kv.head_dim // self.lanes

    @property
    def cached_rows(self) -> int:
        """Rows of K or V of a token."""
        return self.cache.kv.heads * self.head_rows

    @property
    def attended_rows(self) -> int:
        """Rows of the queries of a token, and of what comes of them."""
        return self.heads * self.head_rows

    @property
    def jobs(self) -> int:
        """Groups of KV heads of a token: the queries of each begin with their sinks."""
        return self.engines * self.cache.part(self.engines).kv.groups

    @property
    def job_sinks(self) -> int:
        """Rows of the sinks of a job."""
        return row_count(self.heads // self.jobs) if self.cache.sinks else 0

    @property
    def kv_layout(self) -> data.StructLayout:
        return Payload(
            x=(data.ArrayLayout(FP16.bits, self.lanes), "elements, FP16", FP16),
            last=(1, "final beat of the vector"),
        )

    @property
    def q_layout(self) -> data.StructLayout:
        what = "elements of a query, or sinks" if self.cache.sinks else "elements of a query"
        return Payload(word=(ROW, f"{what}, FP16", FP16))

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            word=(ROW, "elements of an output, FP16", FP16),
            void=(1, "the attend was refused: the word counts for nothing"),
            last=(1, "final beat of the attend"),
        )
