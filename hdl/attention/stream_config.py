"""Sizes and payloads that the parts of attention_stream share."""

import dataclasses

from amaranth import signed
from amaranth.lib import data

from golden.attention.format import PRODUCT_BITS, PRODUCT_GRID, Status, score_bits, value_bits
from golden.attention.timing import StreamShape
from golden.config import Config, bounded, choice, flag
from golden.fp16.format import FP16
from hdl.attention.cap import CAP_BITS, CAP_TEXT
from hdl.attention.weights import QUERIES_MAX, AttentionWeightsConfig
from hdl.kinds import BITS, NUMBER, fixed, mask_of
from hdl.ports import In, Out, Payload

ROWS_BITS = 16  # of a number of rows; what is beyond the configuration must arrive to be refused
TAG = (8, "tag of the job", BITS)
JOBS = 4  # jobs between their order and their output; three suffice for K, K and V under way
TERM_BITS = PRODUCT_BITS + 1

# What a term is, a transfer of terms or of their signs at a time.
FLAGS = data.StructLayout(
    {
        "is_key": 1,  # products of K count
        "is_value": 1,  # products of V count
        "last": 1,  # the head's last beat
        "row_last": 1,  # the last queries of the row's last head
        "phase_last": 1,  # the last beat of all rows
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionStreamConfig(Config):
    """Size of a KV head, and what moves and is multiplied per cycle."""

    heads: int = bounded(1, 1, 16, "KV heads of a row, one after another")
    head_dim: int = bounded(128, 16, 256, "elements of a head, a multiple of lanes")
    queries: int = bounded(1, 1, 8, "L: query heads that share a KV head")
    lanes: int = choice(64, (16, 32, 64, 128), "elements of a row per beat")
    macs: int = bounded(64, 16, 512, "products per cycle: lanes times a divisor of queries")
    width: int = choice(16, (4, 8, 16), "words per beat of q and o")
    max_rows: int = bounded(4096, 1, 32768, "most rows of a job")
    caps: bool = flag(False, "a job may have a soft cap of its scores")
    sinks: bool = flag(False, "each query has a sink: a score that has no value")

    def __post_init__(self) -> None:
        if self.head_dim % self.lanes:
            self._refuse("head_dim", f"a multiple of lanes = {self.lanes}")
        if self.macs % self.lanes or self.queries % (self.macs // self.lanes):
            self._refuse(
                "macs", f"lanes = {self.lanes} times a divisor of queries = {self.queries}"
            )
        if self.results > QUERIES_MAX:
            most = QUERIES_MAX // self.queries
            self._refuse("heads", f"at most {most} with queries = {self.queries}")

    @property
    def results(self) -> int:
        """Queries of all heads, those of head 0 first."""
        return self.heads * self.queries

    @property
    def engines(self) -> int:
        """Queries that are multiplied at the same time."""
        return self.macs // self.lanes

    @property
    def turns(self) -> int:
        """Cycles of a beat: query ``turn * engines + engine`` in each."""
        return self.queries // self.engines

    @property
    def steps(self) -> int:
        """Beats of a head."""
        return self.head_dim // self.lanes

    @property
    def words(self) -> int:
        """Cycles of a row: ``macs`` products in each."""
        return self.heads * self.steps * self.turns

    @property
    def sink_beats(self) -> int:
        """Beats of q that bring the sinks of a job, before its queries."""
        return -(-self.results // self.width) if self.sinks else 0

    @property
    def shape(self) -> StreamShape:
        return StreamShape(
            lanes=self.lanes,
            beats=self.heads * self.steps,
            turns=self.turns,
            queries=self.results,
            cells=self.macs // self.width,
            max_rows=self.max_rows,
            sinks=self.sink_beats,
            caps=self.caps,
        )

    @property
    def score_bits(self) -> int:
        return score_bits(self.head_dim)

    @property
    def value_bits(self) -> int:
        return value_bits(self.max_rows)

    @property
    def weights(self) -> AttentionWeightsConfig:
        """The softmax. Rows come as past keys. A sink is an exact key; there are no others."""
        return AttentionWeightsConfig(keys=1, queries=self.results, past=self.max_rows, window=1)

    @property
    def job_layout(self) -> Payload:
        return Payload(
            rows=(ROWS_BITS, "rows of K, and as many of V: 1..max_rows", NUMBER),
            tag=TAG,
            last=(1, "ends a run: V of this job follows its K"),
            **self._cap,
        )

    @property
    def _cap(self) -> dict:
        return {"cap": (CAP_BITS, f"cap of its scores: {CAP_TEXT}", BITS)} if self.caps else {}

    @property
    def q_layout(self) -> Payload:
        words = data.ArrayLayout(FP16.bits, self.width)
        text = "elements of a query, or sinks, FP16" if self.sinks else "elements of a query, FP16"
        return Payload(word=(words, text, FP16))

    @property
    def rows_layout(self) -> Payload:
        words = data.ArrayLayout(FP16.bits, self.lanes)
        return Payload(
            x=(words, "elements of a row, FP16", FP16),
            error=(1, "the row was decoded from bad data"),
        )

    @property
    def o_layout(self) -> Payload:
        words = data.ArrayLayout(FP16.bits, self.width)
        return Payload(
            word=(words, "elements of an output, FP16", FP16),
            last=(1, "final beat of the job"),
        )

    @property
    def status_layout(self) -> Payload:
        return Payload(
            tag=TAG,
            status=(3, "golden.attention.format.Status", Status),
            bad=(self.results, "queries without a result", mask_of("queries")),
        )

    @property
    def phase_layout(self) -> Payload:
        """A stretch of rows."""
        cap = {"cap": CAP_BITS} if self.caps else {}
        return Payload(rows=ROWS_BITS, is_value=1, is_refused=1, **cap)

    @property
    def end_layout(self) -> Payload:
        """A job whose output is due."""
        return Payload(tag=TAG, is_refused=1)

    @property
    def fault_layout(self) -> Payload:
        """The faults in the words of a stretch of rows, and queries that are ``bad``."""
        return Payload(nonfinite=1, error=1, bad=self.results)

    @property
    def sum_layout(self) -> Payload:
        values = data.ArrayLayout(signed(self.value_bits), self.width)
        return Payload(value=(values, "exact sums, in units of 2**-48", fixed(PRODUCT_GRID)))


def term_ports(config: AttentionStreamConfig, way: type[In] | type[Out]) -> dict:
    """The products of a cycle, between the parts: without ready, because none of them waits."""
    terms = data.ArrayLayout(signed(TERM_BITS), config.macs)
    return {
        "flags": way(FLAGS, "What the terms are."),
        "term": way(terms, "Products in units of 2**-48; a negative one lacks a one."),
        "sign": way(config.macs, "Signs of the terms of the next cycle."),
    }
