"""Size of a decode attention on CQ codes, and the payloads of its parts."""

import dataclasses

from amaranth.lib import data

from golden.axi.format import Resp
from golden.config import Config, bounded, nested, power_of_two
from golden.fp16.format import FP16
from golden.million.config import HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.format import Status
from golden.vqllm.config import AttendShape
from hdl.attention.weights import AttentionWeightsConfig
from hdl.axi.read_port import AxiReadPortConfig
from hdl.kinds import BITS, NUMBER, index_of, mask_of
from hdl.million.decode_values import MillionDecodeValuesConfig
from hdl.million.layouts import BEAT_LAST, EXPONENT_SHAPE, beat_layout
from hdl.million.output import MillionOutputConfig
from hdl.million.verdict import weights_config
from hdl.ports import Payload
from hdl.stream.payload import LAST
from hdl.vqllm.row.config import VqRowSumsConfig
from hdl.vqllm.row.finish import VqRowFinishConfig

_STRIDE_BITS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqAttentionConfig(Config):
    """Codes, channel groups and queries side by side, and the memory port."""

    shape: AttendShape = nested(AttendShape)
    books: int = bounded(8, 1, 128, "codebooks of KV heads that the block knows")
    address_bits: int = bounded(40, 32, 64, "of a byte address")
    burst_beats: int = bounded(16, 1, 64, "words of the longest burst")
    outstanding: int = bounded(16, 1, 16, "bursts requested ahead")
    words: int = power_of_two(
        64, 4, 1024, "of codes, and of codebooks, that wait; burst_beats or more"
    )

    def __post_init__(self) -> None:
        if self.words < self.burst_beats:
            self._refuse("words", f"burst_beats = {self.burst_beats} or more")

    # The parts

    @property
    def rate(self) -> RateShape:
        """A word of memory at a time; beats of outputs as wide as the smaller of word and 16."""
        macs = self.shape.data_bits // FP16.bits
        lanes = min(macs, 16)
        return RateShape(
            macs=macs, keys=1, queries=self.shape.queries, window_macs=lanes, lanes=lanes
        )

    @property
    def values(self) -> MillionDecodeValuesConfig:
        """The configuration of the channels of a pass."""
        return MillionDecodeValuesConfig(
            pq=self.shape.part, rate=self.rate, max_keys=self.shape.max_tokens
        )

    @property
    def sums(self) -> VqRowSumsConfig:
        """Rows are tokens, columns are channels."""
        return VqRowSumsConfig(
            macs=self.shape.part.head_dim,
            largest=1,
            batch=self.shape.queries,
            columns=self.shape.pq.head_dim,
            rows=self.shape.max_tokens,
        )

    @property
    def finish(self) -> VqRowFinishConfig:
        return VqRowFinishConfig(sums=self.sums)

    @property
    def _head(self) -> MillionConfig:
        """A KV head without exact keys."""
        return MillionConfig(
            pq=self.shape.pq,
            head=HeadShape(heads=1, group=self.shape.queries),
            window=WindowShape(sinks=0, keep=0, block=0),
            max_tokens=self.shape.max_tokens,
        )

    @property
    def weights(self) -> AttentionWeightsConfig:
        return weights_config(self._head, self.rate)

    @property
    def output(self) -> MillionOutputConfig:
        return MillionOutputConfig(cache=self._head, rate=self.rate, exact=False)

    @property
    def port(self) -> AxiReadPortConfig:
        return AxiReadPortConfig(
            address_bits=self.address_bits,
            data_bits=self.shape.data_bits,
            burst_beats=self.burst_beats,
            outstanding=self.outstanding,
            responses=True,
        )

    # Ports

    @property
    def tokens(self) -> range:
        return range(self.shape.max_tokens + 1)

    @property
    def book_parts(self) -> dict:
        return {
            "entries": (range(self.shape.pq.entries + 1), "entries of each codebook", NUMBER),
            "exponent_k": (EXPONENT_SHAPE, "log2 of the scale of K's codebooks, -8..15"),
            "exponent_v": (EXPONENT_SHAPE, "log2 of the scale of V's codebooks, -8..15"),
            "books_k": (self.address_bits, "address of K's codebooks", index_of("bytes")),
            "books_v": (self.address_bits, "address of V's codebooks", index_of("bytes")),
        }

    @property
    def codes_parts(self) -> dict:
        return {
            "codes_k": (self.address_bits, "address of K's codes", index_of("bytes")),
            "codes_v": (self.address_bits, "address of V's codes", index_of("bytes")),
            "stride": (_STRIDE_BITS, "bytes from the codes of a pass to the next", NUMBER),
        }

    @property
    def book_layout(self) -> Payload:
        return Payload(place=(8, "which of the books", index_of("books")), **self.book_parts)

    @property
    def request_layout(self) -> Payload:
        return Payload(
            tag=(8, "comes back with the status", BITS),
            place=(8, "which of the books", index_of("books")),
            queries=(4, "queries of the KV head", NUMBER),
            tokens=(16, "tokens of the context", NUMBER),
            **self.codes_parts,
        )

    @property
    def q_layout(self) -> Payload:
        words = data.ArrayLayout(FP16.bits, self.sums.macs)
        return Payload(word=(words, "channels of a pass times 1/sqrt(head_dim), FP16", FP16),
                       last=BEAT_LAST)  # fmt: skip

    @property
    def output_layout(self) -> data.StructLayout:
        return beat_layout(self.rate.lanes)

    @property
    def status_layout(self) -> Payload:
        return Payload(
            tag=(8, "tag of the request", BITS),
            status=(4, "golden.million.format.Status", Status),
        )

    # Between the parts

    @property
    def gate_layout(self) -> data.StructLayout:
        """Queries of a request that pass, or that are discarded."""
        return Payload(queries=4, discard=1)

    @property
    def fetch_layout(self) -> data.StructLayout:
        names = ("entries", "books_k", "books_v")
        parts = {name: self.book_parts[name] for name in names}
        return Payload(tokens=self.tokens, **parts, **self.codes_parts)

    @property
    def work_layout(self) -> data.StructLayout:
        """A request, judged: with a status but OK it has no outputs."""
        names = ("entries", "exponent_k", "exponent_v")
        return Payload(
            tag=8, status=(4, "how it is refused", Status), queries=4, tokens=self.tokens,
            **{name: self.book_parts[name] for name in names},
        )  # fmt: skip

    @property
    def word_layout(self) -> data.StructLayout:
        """A word of memory."""
        return Payload(
            data=(self.shape.data_bits, "the word", BITS),
            resp=(2, "response of the bus", Resp),
            last=LAST,
        )

    @property
    def special_layout(self) -> data.StructLayout:
        mask = mask_of("queries")
        return Payload(mask=(self.shape.queries, "queries with a NaN or an infinity", mask))

    @property
    def kept_parts(self) -> dict:
        """The fields of a request that its end needs."""
        return {name: self.work_layout.parts[name]
                for name in ("tag", "status", "queries", "exponent_v")}  # fmt: skip

    @property
    def end_layout(self) -> data.StructLayout:
        return Payload(**self.kept_parts, **self.fault_layout.parts)

    @property
    def fault_layout(self) -> data.StructLayout:
        """The faults that a request has suffered."""
        return Payload(
            resp=(2, "the worst response", Resp),
            large=(1, "an entry is finite and above 1"),
            nonfinite=(1, "an entry is NaN or infinite"),
            beyond=(1, "a code lies beyond the entries"),
        )


SMALL_PQ = PqShape(head_dim=32, subspaces=8, bits=4)
