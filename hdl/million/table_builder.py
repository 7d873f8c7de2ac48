"""Tables of the products of queries with a codebook."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.index.timing import TABLE_ROUNDING, table_lane
from golden.million.config import NAMED
from golden.million.format import EXPONENTS
from golden.timing import Timing
from hdl.bits import any_of
from hdl.block import Block, Tier
from hdl.children import add
from hdl.index.stages import delay
from hdl.index.table_lane import IndexTableLane, IndexTableLaneConfig
from hdl.kinds import index_of
from hdl.million.codebook_walk import CodebookReaderConfig, Walk, waiting_jobs
from hdl.million.layouts import beat_layout, entry_layout
from hdl.million.shapes import SMALL, SMALL_RATE, SMOLLM2_RATE
from hdl.million.vector_buffer import MillionVectorBuffer, MillionVectorBufferConfig
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionTableBuilderConfig(CodebookReaderConfig):
    """Codebooks and products per cycle."""

    @property
    def buffer(self) -> MillionVectorBufferConfig:
        return MillionVectorBufferConfig(pq=self.pq, rate=self.rate, vectors=self.rate.queries)

    @property
    def job_layout(self) -> Payload:
        return Payload(**self.book_parts)

    @property
    def entry_layout(self) -> Payload:
        return entry_layout(self.pq, self.rate)

    @property
    def flags_layout(self) -> data.StructLayout:
        """The flags that go with an entry through the pipeline."""
        return data.StructLayout(
            {
                "place": self.buffer.address_bits,
                "query": range(max(2, self.rate.queries)),
                "grid": range(len(EXPONENTS)),
                "end": 1,
                "last": 1,
                "bad": self.rate.queries,
            }
        )


def _depth(sub: int) -> int:
    """Cycles from a codebook word's request to its entries: read, row, products, sum, rounding."""
    return 1 + 1 + 1 + table_lane(sub)


class MillionTableBuilder(Block):
    """``T[m][j] = rne16(2**exponent * sum_i q[m][i] * C[m][j][i])`` of L queries.

    The sum is exact, on the grid 2**-48, and is rounded once. A transfer of ``entry`` has the
    entries of the subspaces of a part, for each part, for each row j, for each query. A job takes L
    vectors from ``q`` and gives L * entries * parts transfers. The block counts the words of q: it
    does not look at ``q.last``.

    ``bad`` of the last transfer: the query has an infinite entry, or an element that is NaN or
    infinite. Such an element counts as a number of the binade above the largest.

    A codebook word is requested once per L transfers. ``read_data`` is looked at in the cycle
    after ``read_en`` alone. The word has element 0 of the part in its low bits; word (row, part)
    of a book is at (book * 2**bits + row) * parts + part.

    Contract: 1 <= entries; |C| <= 1; the codebook stays as it is from the job to its last entry.

    Latency: ``timing``, from the last beat of q, if the job is there. One
    transfer per cycle, jobs without a pause: q of the next job is taken meanwhile. Nothing stalls
    within: the block begins an entry when its queue has a place for it. No combinational path
    leads from an input to an output. Source: MILLION, section IV.
    Golden: golden.index.tables.tables.

    The parent sends zeros for queries that a group lacks. A beat of more than ``macs`` words takes
    lanes / macs cycles. An entry beyond FP16 is an infinity of its sign.
    """

    tier = Tier.PART
    golden = "golden.index.tables:tables"
    default = MillionTableBuilderConfig()
    configs: ClassVar = {
        "smollm2": MillionTableBuilderConfig(pq=NAMED["4b_64"], rate=SMOLLM2_RATE),
        "small": MillionTableBuilderConfig(pq=SMALL, rate=SMALL_RATE, books=2),
    }

    def __init__(self, config: MillionTableBuilderConfig):
        rate = config.rate
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Begins a job."),
                "q": In(stream.Signature(beat_layout(rate.lanes)), "L queries, one after another."),
                "read_en": Out(1, "Read word read_addr of the codebooks."),
                "read_addr": Out(config.address, "Its address.", index_of("words")),
                "read_data": In(FP16.bits * rate.macs, "The word, one cycle later.", FP16),
                "entry": Out(stream.Signature(config.entry_layout), "Tables of the queries."),
            },
        )

    @property
    def timing(self) -> Timing:
        """The queries are written, the entries wait in a RAM: 1 and 2 cycles more."""
        return Timing(
            latency=1 + _depth(self.config.pq.sub) + 2, start="q", end="entry", unit="entry"
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        queries, parts = config.rate.queries, config.parts
        depth = _depth(config.pq.sub)
        jobs = waiting_jobs(m, config, self.job, {})
        buffer = add(m, "buffer", MillionVectorBuffer(config.buffer))
        link(m, self.q, buffer.x)

        # Which entry begins in this cycle
        room = Signal()
        begins = Signal()
        now = Signal(config.flags_layout)
        query = Signal(range(max(2, queries)))
        last_query = query == queries - 1
        walk = Walk(m, config, jobs.p, begins & last_query)
        m.d.comb += [
            begins.eq(jobs.valid & buffer.full & room),
            now.place.eq(Cat(_place(query, walk.part, queries, parts), buffer.buffer)),
            now.query.eq(query),
            now.grid.eq(jobs.p.grid),
            now.end.eq(last_query & walk.last_row),
            now.last.eq(last_query & walk.last),
            now.bad.eq(buffer.bad),
            jobs.ready.eq(begins & now.last),
            buffer.take.eq(begins & now.last),
        ]
        with m.If(begins):
            m.d.sync += query.eq(Mux(last_query, 0, query + 1))
        m.d.sync += [
            self.read_en.eq(begins & (query == 0)),
            self.read_addr.eq(walk.address),
        ]

        stages = delay(m, begins, now, depth)  # stages[k]: k + 1 cycles after the entry began

        # The word of the codebook is there in the second cycle, row and query in the third.
        read, out = stages[1], stages[-1]
        words = Signal(FP16.bits * config.rate.macs, reset_less=True)
        with m.If(read.valid & (read.flags.query == 0)):
            m.d.sync += words.eq(self.read_data)
        m.d.comb += [
            buffer.read_en.eq(read.valid),
            buffer.read_addr.eq(read.flags.place),
            buffer.give_back.eq(read.valid & read.flags.last),
        ]
        entries = []
        bits = FP16.bits * config.pq.sub
        for k in range(config.group):
            lane_config = IndexTableLaneConfig(sub=config.pq.sub)
            lane = add(m, f"lane_{k}", IndexTableLane(lane_config))
            m.d.comb += [
                Value.cast(lane.x).eq(buffer.read_data.word_select(k, bits)),
                Value.cast(lane.c).eq(words.word_select(k, bits)),
                lane.grid.eq(stages[-1 - TABLE_ROUNDING].flags.grid),
            ]
            entries.append(lane.y)

        shape = config.entry_layout
        given = queue(m, "entries", shape, depth + 3, storage="memory")
        link(m, given.o, self.entry)
        held = Signal(range(depth + 4))  # entries that have begun and not left
        m.d.comb += room.eq(held != depth + 3)
        m.d.sync += held.eq(held + begins - (self.entry.valid & self.entry.ready))
        m.d.comb += [
            given.i.valid.eq(out.valid),
            Value.cast(given.i.p.word).eq(Cat(entries)),
            given.i.p.end.eq(out.flags.end),
            given.i.p.last.eq(out.flags.last),
            given.i.p.bad.eq(_bad(m, entries, out.valid, out.flags)),
        ]
        return m


def _place(query: Signal, part: Signal, queries: int, parts: int) -> Value:
    """Address of a part of a query within a buffer."""
    low = part[: (parts - 1).bit_length()]
    return Cat(low, query[: (queries - 1).bit_length()])


def _bad(m: Module, entries: list[Value], valid: Signal, flags) -> Value:
    """The bad queries of the tables, with their last entry; before it 0."""
    found, now = Signal.like(flags.bad, name="found"), Signal.like(flags.bad, name="now_bad")
    infinite = any_of(entry[: FP16.bits - 1] == FP16.infinity for entry in entries)
    m.d.comb += now.eq(found | (infinite << flags.query))
    with m.If(valid):
        m.d.sync += found.eq(Mux(flags.last, 0, now))
    return Mux(flags.last, now | flags.bad, 0)
