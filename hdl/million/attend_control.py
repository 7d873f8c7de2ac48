"""ATTENDs to groups of queries and reads of codes."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.million.format import DISTANCE_BITS
from golden.paging.format import Kv
from golden.paging.format import Op as PagingOp
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import NUMBER, index_of
from hdl.million.layouts import (
    ENTRIES_BITS,
    EXPONENT_SHAPE,
    KEYS_BITS,
    RECENT_BITS,
    RING_BITS,
    SINKS_BITS,
    slopes_layout,
    slot_bits,
)
from hdl.million.query_splitter import MillionQuerySplitterConfig
from hdl.million.shapes import SMALL_CACHE, SMALL_RATE, SMOLLM2_CACHE, SMOLLM2_RATE, LayerConfig
from hdl.paging.layouts import REQUEST_LAYOUT as PAGING_REQUEST_LAYOUT
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionAttendControlConfig(LayerConfig):
    """Heads of a layer, and queries side by side."""

    @property
    def splitter(self) -> MillionQuerySplitterConfig:
        return MillionQuerySplitterConfig(pq=self.cache.pq, rate=self.rate)

    @property
    def passes(self) -> int:
        """Groups of queries of one KV head."""
        return -(-self.cache.head.group // self.rate.queries)

    @property
    def tokens_parts(self) -> dict:
        """The tokens of its (sequence, layer) that one ATTEND sees."""
        return {
            "keys": (KEYS_BITS, "tokens that are attended as codes", NUMBER),
            "sinks": (SINKS_BITS, "first tokens that are exact", NUMBER),
            "start": (RING_BITS, "place of the oldest recent token", index_of("places")),
            "recent": (RECENT_BITS, "recent tokens, exact", NUMBER),
            "distance": (DISTANCE_BITS, "from the first token to the newest", NUMBER),
        }

    @property
    def codebook_parts(self) -> dict:
        return {
            "entries": (ENTRIES_BITS, "entries of each codebook", NUMBER),
            "exponent_k": (EXPONENT_SHAPE, "log2 of the scale of K's codebooks"),
            "exponent_v": (EXPONENT_SHAPE, "log2 of the scale of V's codebooks"),
        }

    @property
    def job_layout(self) -> Payload:
        return Payload(
            discard=(1, "the ATTEND is refused: its queries are discarded"),
            sequence=(8, "number of the sequence", index_of("sequences")),
            layer=(8, "layer of the model", index_of("layers")),
            slot=(slot_bits(self.cache), "window of KV head 0", index_of("slots")),
            **self.tokens_parts,
            **self.codebook_parts,
        )

    @property
    def group_layout(self) -> Payload:
        head = range(max(2, self.cache.head.heads))
        return Payload(
            head=(head, "KV head", index_of("heads")),
            queries=(range(self.rate.queries + 1), "queries of the group", NUMBER),
            slot=(slot_bits(self.cache), "window of the KV head", index_of("slots")),
            **self.tokens_parts,
            **self.codebook_parts,
            **slopes_layout(self.rate.queries).parts,
            last=(1, "last group of the ATTEND"),
        )


class MillionAttendControl(Block):
    """One ``group`` per KV head and ``queries`` queries, and the reads of its codes.

    The groups of a head follow one another; heads ascend. A group comes when its queries have
    passed the splitter, with their slopes. Each group reads the K and the V codes of its head.
    ``read`` requests the K codes of a group before the V codes of the previous group. So the
    scores of one group and the values of another overlap. The V codes of the last group come
    last. Without tokens in codes there is no read. The tag of a read is K or V
    (golden.paging.format.Kv).

    A job with ``discard`` gives jobs to the splitter alone.

    A group takes 5 cycles where no port stalls, a group of a refused ATTEND 3. Each ATTEND takes 2
    more. ``group`` comes one cycle after ``slopes``. No combinational path leads from an input to
    an output.
    Golden: golden.million.groups.groups, reads.
    """

    tier = Tier.PART
    golden = "golden.million.groups:groups"
    default = MillionAttendControlConfig()
    configs: ClassVar = {
        "smollm2": MillionAttendControlConfig(cache=SMOLLM2_CACHE, rate=SMOLLM2_RATE),
        "small": MillionAttendControlConfig(cache=SMALL_CACHE, rate=SMALL_RATE),
    }

    def __init__(self, config: MillionAttendControlConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "ATTENDs."),
                "split": Out(
                    stream.Signature(config.splitter.job_layout), "Queries of the next group."
                ),
                "slopes": In(
                    stream.Signature(slopes_layout(config.rate.queries)),
                    "What passed the splitter.",
                ),
                "group": Out(stream.Signature(config.group_layout), "Groups of queries."),
                "read": Out(stream.Signature(PAGING_REQUEST_LAYOUT), "Reads of codes."),
            },
        )

    # A group: split, read of K, read of V, slopes, group, a cycle each.
    timing = Timing(
        latency=5,
        interval=Fraction(5),
        start="job",
        end="group",
        unit="group",
        delays=(
            ("from slopes to group", 1),
            ("per refused group", 3),
            ("per ATTEND in addition", 2),
        ),
    )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        heads, passes = config.cache.head.heads, config.passes
        job = Signal(config.job_layout, reset_less=True)
        slopes = Signal(slopes_layout(config.rate.queries), reset_less=True)
        head = Signal(range(max(2, heads)))
        group = Signal(range(max(2, passes)))
        slot = Signal(slot_bits(config.cache), reset_less=True)
        before = Signal(range(max(2, heads)))  # head whose V codes are still to be read
        is_last_pass = Signal()
        is_last = Signal()
        is_first = Signal()
        has_codes = Signal()
        rest = config.cache.head.group - (passes - 1) * config.rate.queries
        m.d.comb += [
            is_last_pass.eq(group == passes - 1),
            is_last.eq(is_last_pass & (head == heads - 1)),
            has_codes.eq((job.keys != 0) & ~job.discard),
            self.split.p.queries.eq(Mux(is_last_pass, rest, config.rate.queries)),
            self.split.p.discard.eq(job.discard),
            self.group.p.head.eq(head),
            self.group.p.queries.eq(self.split.p.queries),
            self.group.p.slot.eq(slot),
            self.group.p.last.eq(is_last),
            *(
                self.group.p[name].eq(job[name])
                for name in (*config.tokens_parts, *config.codebook_parts)
            ),
            *(self.group.p[name].eq(slopes[name]) for name in ("slope", "bad")),
        ]
        read = self.read.p
        m.d.comb += [
            read.op.eq(PagingOp.READ),
            read.sequence.eq(job.sequence),
            read.layer.eq(job.layer),
            read.heads.eq(1),
            read.token.eq(job.keys),
        ]

        def next_group() -> None:
            """Goes to the group after this one, whose V codes are then still to be read."""
            m.d.sync += [before.eq(head), is_first.eq(0)]
            with m.If(is_last_pass):
                m.d.sync += [group.eq(0), head.eq(head + 1), slot.eq(slot + 1)]
            with m.Else():
                m.d.sync += group.eq(group + 1)
            m.next = "SPLIT"
            with m.If(is_last):
                m.next = "LAST_VALUES"

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.job.ready.eq(1)
                m.d.sync += [head.eq(0), group.eq(0), is_first.eq(1)]
                with m.If(self.job.valid):
                    m.d.sync += [job.eq(self.job.p), slot.eq(self.job.p.slot)]
                    m.next = "SPLIT"
            with m.State("SPLIT"):
                m.d.comb += self.split.valid.eq(1)
                with m.If(self.split.ready):
                    m.next = "KEYS"
            with m.State("KEYS"):
                m.d.comb += [
                    self.read.valid.eq(has_codes),
                    read.tag.eq(Kv.K),
                    read.kv.eq(Kv.K),
                    read.head.eq(head),
                ]
                with m.If(~has_codes | self.read.ready):
                    m.next = "VALUES"
            with m.State("VALUES"):
                m.d.comb += [
                    self.read.valid.eq(has_codes & ~is_first),
                    read.tag.eq(Kv.V),
                    read.kv.eq(Kv.V),
                    read.head.eq(before),
                ]
                with m.If(~has_codes | is_first | self.read.ready):
                    with m.If(job.discard):
                        next_group()
                    with m.Else():
                        m.next = "SLOPES"
            with m.State("SLOPES"):
                m.d.comb += self.slopes.ready.eq(1)
                m.d.sync += slopes.eq(self.slopes.p)
                with m.If(self.slopes.valid):
                    m.next = "GROUP"
            with m.State("GROUP"):
                m.d.comb += self.group.valid.eq(1)
                with m.If(self.group.ready):
                    next_group()
            with m.State("LAST_VALUES"):
                m.d.comb += [
                    self.read.valid.eq(has_codes),
                    read.tag.eq(Kv.V),
                    read.kv.eq(Kv.V),
                    read.head.eq(before),
                ]
                with m.If(~has_codes | self.read.ready):
                    m.next = "IDLE"
        return m
