"""The configuration of million_attention: what it keeps and attends, its rates, its memory port."""

import dataclasses
from fractions import Fraction

from amaranth.lib import data

from golden.config import bounded, flag
from golden.million.format import EXPONENT_MAX, EXPONENT_MIN
from golden.million.timing import attention_stages
from hdl.index.codebook_store import IndexCodebookStoreConfig
from hdl.million.code_reader import MillionCodeReaderConfig
from hdl.million.control import MillionControlConfig
from hdl.million.layouts import REQUEST_LAYOUT, STATUS_LAYOUT, beat_layout, query_layout
from hdl.million.loader import MillionLoaderConfig
from hdl.million.output import MillionOutputConfig
from hdl.million.pq_encoder import MillionPqEncoderConfig
from hdl.million.record_writer import MillionRecordWriterConfig
from hdl.million.restorer import MillionRestorerConfig
from hdl.million.score_engine import MillionScoreEngineConfig
from hdl.million.shapes import LayerConfig
from hdl.million.table_builder import MillionTableBuilderConfig
from hdl.million.value_engine import MillionValueEngineConfig
from hdl.million.verdict import MillionVerdictConfig
from hdl.million.window import MillionWindowConfig
from hdl.paging.mmu import PagingMmuConfig
from hdl.ports import Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionAttentionConfig(LayerConfig):
    """The cache that is kept and attended, the rates, and the memory port."""

    data_bits: int = 256  # bits of a memory word, a power of two in 64..1024
    address_bits: int = 40  # bits of a byte address, 32..64
    burst_beats: int = 64  # words of the longest burst, 1..256
    outstanding: int = 16  # bursts read ahead, 1..16
    reads: int = bounded(8, 2, 16, "reads of codes under way")
    beats: int = bounded(256, 4, 4096, "memory words that wait for the engines")
    kv_apart: bool = flag(False, "codes of K and of V at the same time, for wide memory words")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_parts()

    @property
    def mmu(self) -> PagingMmuConfig:
        return PagingMmuConfig(
            cache=self.cache.cache,
            data_bits=self.data_bits,
            address_bits=self.address_bits,
            burst_beats=self.burst_beats,
            outstanding=self.outstanding,
            reads=self.reads,
            appends=1,  # the encoder's control waits for each
            beats=(self.beats,),
            kv_apart=self.kv_apart,
        )

    @property
    def request_layout(self) -> Payload:
        return REQUEST_LAYOUT

    @property
    def status_layout(self) -> Payload:
        return STATUS_LAYOUT

    @property
    def query_layout(self) -> data.StructLayout:
        return query_layout(self.rate.lanes)

    @property
    def o_layout(self) -> data.StructLayout:
        return beat_layout(self.rate.lanes)

    @property
    def _sizes(self) -> dict:
        return {"cache": self.cache, "rate": self.rate}

    @property
    def control(self) -> MillionControlConfig:
        return MillionControlConfig(**self._sizes)

    @property
    def loader(self) -> MillionLoaderConfig:
        return MillionLoaderConfig(**self._sizes)

    @property
    def verdict(self) -> MillionVerdictConfig:
        return MillionVerdictConfig(**self._sizes)

    @property
    def window(self) -> MillionWindowConfig:
        return MillionWindowConfig(**self._sizes)

    @property
    def output(self) -> MillionOutputConfig:
        return MillionOutputConfig(**self._sizes)

    @property
    def stages(self) -> dict[str, Fraction]:
        """Cycles of a group in each stage, with all exact rows in use."""
        groups = self.cache.head.heads * self.control.attend.passes
        rows, elements = self.cache.window.rows, self.output.elements
        return attention_stages(self.cache.pq, self.rate, elements, rows, groups)

    @property
    def _engine(self) -> dict:
        return {"pq": self.cache.pq, "rate": self.rate}

    @property
    def code_reader(self) -> MillionCodeReaderConfig:
        return MillionCodeReaderConfig(**self._engine, data_bits=self.data_bits)

    @property
    def record_writer(self) -> MillionRecordWriterConfig:
        return MillionRecordWriterConfig(pq=self.cache.pq, data_bits=self.data_bits)

    @property
    def restorer(self) -> MillionRestorerConfig:
        return MillionRestorerConfig(writer=self.record_writer, heads=self.cache.head.heads)

    @property
    def table_builder(self) -> MillionTableBuilderConfig:
        return MillionTableBuilderConfig(**self._engine, books=self.cache.books)

    @property
    def encoder(self) -> MillionPqEncoderConfig:
        return MillionPqEncoderConfig(**self._engine, books=self.cache.books)

    @property
    def score_engine(self) -> MillionScoreEngineConfig:
        return MillionScoreEngineConfig(**self._engine, max_keys=self.cache.max_tokens)

    @property
    def value_engine(self) -> MillionValueEngineConfig:
        return MillionValueEngineConfig(
            **self._engine, max_keys=self.cache.max_tokens, books=self.cache.books
        )

    @property
    def store(self) -> IndexCodebookStoreConfig:
        """Codebooks of K, or of V."""
        pq, rate = self.cache.pq, self.rate
        return IndexCodebookStoreConfig(
            macs=rate.macs,
            parts=rate.parts(pq),
            entries=pq.entries,
            books=self.cache.books,
            exponent_min=EXPONENT_MIN,
            exponent_max=EXPONENT_MAX,
        )
