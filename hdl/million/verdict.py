"""The end of groups of queries, and of ATTENDs."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream

from golden.config import Config, nested
from golden.million.config import MillionConfig, RateShape
from golden.million.format import Op, Status
from golden.timing import Timing
from hdl.attention.weights import AttentionWeightsConfig
from hdl.block import Block, Tier
from hdl.kinds import BITS, NUMBER, fixed, index_of, mask_of
from hdl.million.encode_control import million_status
from hdl.million.layouts import EXPONENT_SHAPE, STATUS_LAYOUT
from hdl.million.shapes import SMALL_CACHE, SMALL_RATE, SMOLLM2_CACHE, SMOLLM2_RATE
from hdl.paging.layouts import STATUS_LAYOUT as PAGING_STATUS_LAYOUT
from hdl.ports import In, Out, Payload

BEGUN_LAYOUT = Payload(
    tag=(8, "tag of the request", BITS),
    sequence=(8, "number of the sequence", index_of("sequences")),
    refused=(4, "golden.million.format.Status: not OK if it has no groups", Status),
)


def weights_config(cache: MillionConfig, rate: RateShape) -> AttentionWeightsConfig:
    """The weights of codes and exact rows."""
    return AttentionWeightsConfig(
        keys=rate.keys,
        queries=rate.queries,
        past=cache.max_tokens,
        window=max(1, cache.window.rows),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionVerdictConfig(Config):
    """Queries side by side, and what is attended."""

    cache: MillionConfig = nested(MillionConfig)
    rate: RateShape = nested(RateShape)

    @property
    def total_layout(self) -> data.StructLayout:
        return weights_config(self.cache, self.rate).total_layout

    @property
    def group_layout(self) -> Payload:
        return Payload(
            bad=(self.rate.queries, "queries with a NaN or an infinity", mask_of("queries")),
            queries=(range(self.rate.queries + 1), "queries of the group", NUMBER),
            exponent=(EXPONENT_SHAPE, "log2 of the scale of V's codebooks"),
            has_codes=(1, "codes are read: K and V"),
            last=(1, "last group of the ATTEND"),
        )

    @property
    def result_layout(self) -> Payload:
        sum_bits = weights_config(self.cache, self.rate).sum_bits
        sums = data.ArrayLayout(unsigned(sum_bits), self.rate.queries)
        return Payload(
            sum=(sums, "sums of the weights in units of 2**-24", fixed(-24)),
            bad=(self.rate.queries, "queries without a result", mask_of("queries")),
            queries=(range(self.rate.queries + 1), "queries of the group", NUMBER),
            exponent=(EXPONENT_SHAPE, "log2 of the scale of V's codebooks"),
        )


class MillionVerdict(Block):
    """Joins what each part found in a group of queries; one status per ATTEND.

    A ``result`` follows when ``group``, ``score_end``, ``value_end`` and ``total`` have come. A
    query is bad if any of them says so, and all queries of the group after a code beyond the
    entries. The status is the first that applies, over all groups and reads:

        what                                             status
        a query, or a slope, is NaN or infinite          NONFINITE
        a read of codes failed                           that of the read
        a code beyond the entries of its codebook        BAD_CODE
        a query is bad otherwise                         OVERFLOW

    ``status`` follows the last ``given`` and the last ``read_end`` of the ATTEND. ``attended`` is 1
    in the cycle in which it is taken. A refused ATTEND has its status at once.
    A group with codes has two reads, and their ends are taken after its ``result``.

    ``result`` comes in the cycle of the last of its four sources, whose ``ready`` depends on each
    other and on ``result.ready``. No other combinational path but from ``status.ready`` to
    ``attended``. Golden: golden.million.verdicts.attend_status, part_bad.

    A failed read that this room has no status for is a BAD_REQUEST. The order is that of
    golden.million.format.Status, so a failed read may also come before NONFINITE. ``status`` comes
    two cycles after the last ``given`` or ``read_end``.
    """

    tier = Tier.PART
    golden = "golden.million.verdicts:attend_status"
    default = MillionVerdictConfig()
    configs: ClassVar = {
        "smollm2": MillionVerdictConfig(cache=SMOLLM2_CACHE, rate=SMOLLM2_RATE),
        "small": MillionVerdictConfig(cache=SMALL_CACHE, rate=SMALL_RATE),
    }

    def __init__(self, config: MillionVerdictConfig):
        queries = config.rate.queries
        code = Payload(bad_code=(1, "a key has a code beyond the entries"))
        score = Payload(**code.parts, bad=(queries, "queries without scores", mask_of("queries")))
        super().__init__(
            config,
            {
                "begun": In(stream.Signature(BEGUN_LAYOUT), "ATTENDs."),
                "group": In(stream.Signature(config.group_layout), "Groups of the ATTENDs."),
                "score_end": In(stream.Signature(score), "Ends of the scores of groups."),
                "value_end": In(stream.Signature(code), "Ends of the values of groups."),
                "total": In(stream.Signature(config.total_layout), "Sums of the weights."),
                "read_end": In(stream.Signature(PAGING_STATUS_LAYOUT), "Ends of reads of codes."),
                "given": In(1, "The last output of a group has been taken."),
                "result": Out(stream.Signature(config.result_layout), "For the outputs."),
                "status": Out(stream.Signature(STATUS_LAYOUT), "How ATTENDs ended."),
                "attended": Out(1, "An ATTEND has ended."),
            },
        )

    timing = Timing(
        latency=0,
        start="total",
        end="result",
        unit="group",
        delays=(
            ("from begun to the first result", 1),
            ("from begun to the status of a refused ATTEND", 1),
            ("from the last of given and read_end to status", 2),
        ),
    )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        begun = Signal(BEGUN_LAYOUT, reset_less=True)
        worst = Signal(4)
        # whose ends are outstanding
        reads = Signal(16)
        groups = Signal(16)
        joins = Signal()
        is_open = Signal()
        bad_code = Signal()
        failed = Signal(config.rate.queries)
        group, total = self.group.p, self.total.p
        m.d.comb += [
            bad_code.eq(self.score_end.p.bad_code | self.value_end.p.bad_code),
            failed.eq(
                group.bad | total.bad | self.score_end.p.bad | bad_code.replicate(len(failed))
            ),
            self.result.valid.eq(
                is_open
                & self.group.valid
                & self.score_end.valid
                & self.value_end.valid
                & self.total.valid
            ),
            joins.eq(self.result.valid & self.result.ready),
            *(each.ready.eq(joins) for each in (self.group, self.score_end, self.value_end)),
            self.total.ready.eq(joins),
            self.result.p.sum.eq(total.sum),
            self.result.p.bad.eq(failed),
            self.result.p.queries.eq(group.queries),
            self.result.p.exponent.eq(group.exponent),
            self.read_end.ready.eq(reads != 0),
            self.status.p.tag.eq(begun.tag),
            self.status.p.op.eq(Op.ATTEND),
            self.status.p.sequence.eq(begun.sequence),
            self.status.p.status.eq(worst),
            self.attended.eq(self.status.valid & self.status.ready),
        ]

        found = Signal(4)
        with m.If(group.bad.any()):
            m.d.comb += found.eq(Status.NONFINITE)
        with m.Elif(bad_code):
            m.d.comb += found.eq(Status.BAD_CODE)
        with m.Elif(failed.any()):
            m.d.comb += found.eq(Status.OVERFLOW)
        read_found = million_status(m, "read_found", self.read_end.p.status)
        read_ends = self.read_end.valid & self.read_end.ready
        first = _first(Mux(joins, found, 0), Mux(read_ends, read_found, 0))
        m.d.sync += [
            worst.eq(_first(worst, first)),
            reads.eq(reads + Mux(joins & group.has_codes, 2, 0) - read_ends),
            groups.eq(groups + joins - self.given),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.begun.ready.eq(1)
                m.d.sync += [begun.eq(self.begun.p), worst.eq(self.begun.p.refused)]
                with m.If(self.begun.valid):
                    m.next = "GROUPS"
                    with m.If(self.begun.p.refused != Status.OK):
                        m.next = "STATUS"
            with m.State("GROUPS"):
                m.d.comb += is_open.eq(1)
                with m.If(joins & group.last):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                with m.If((reads == 0) & (groups == 0)):
                    m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += self.status.valid.eq(1)
                with m.If(self.status.ready):
                    m.next = "IDLE"
        return m


def _first(a, b):
    """The lower of two statuses that is not OK."""
    return Mux((a == Status.OK) | ((b != Status.OK) & (b < a)), b, a)
