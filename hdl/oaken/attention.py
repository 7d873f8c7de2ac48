"""Attention on a paged cache of quantized vectors (docs/blocks/oaken_attention.md)."""

from typing import ClassVar

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.oaken.config import CacheConfig, KvShape
from golden.paging.format import Op, Status
from golden.timing import Timing
from hdl.attention.stream import AttentionStream
from hdl.axi.signature import pass_channels
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.kinds import index_of
from hdl.oaken.attention_config import (
    JOBS,
    STATUS_BITS,
    OakenAttentionConfig,
    attended_layout,
)
from hdl.oaken.attention_output import OakenAttentionOutput
from hdl.oaken.attention_reads import OakenAttentionReads
from hdl.oaken.attention_rows import OakenAttentionRows
from hdl.oaken.kv_engine import OakenKvEngine, OakenKvEngineConfig
from hdl.oaken.mmu import PagingMmuConfig
from hdl.paging.layouts import STATUS_LAYOUT
from hdl.ports import In, Out
from hdl.stream.arbiter import arbiter
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.stream.skid import skid

__all__ = ["OakenAttention", "OakenAttentionConfig"]

_COUNT_BITS = 12  # of requests under way


class OakenAttention(Block):
    """Attends on the tokens of a sequence: o = softmax(q K^T) V, with K and V in Oaken's pages.

    ``request``, ``kv`` and ``status`` are those of oaken_kv_engine, whose rules hold. A READ on
    ``request`` is refused with BAD_REQUEST. ``attend`` names a sequence, a layer and one past the
    last token. With ``windows`` it may name how many tokens it sees at most: the latest ones, of
    those that its READ gives. All are read. With ``caps`` it may name a soft cap of its scores.
    Each of its ``groups`` of KV heads is a job of attention_stream, in order: ``q`` brings its
    queries, ``o`` gives its outputs. With ``sinks`` those of the job come before its queries.
    ``attended`` follows the last word of ``o``.

    A run of attends ends with ``last``. Its K and V are read in the order K0 K1 V0 K2 V1 ... V,
    ahead of their use. V of an attend waits for the next attend, so a run must be given to its end.
    An attend sees what was complete when it came: wait for the status of what it needs. The number
    of its rows is what its READ of K gives, which is less than ``token`` after a TRIM.

        condition                                          words of the group        status
        READ of K refused: V is not read                   NaN, ``void``             that of K
        READ of V refused                                  NaN, ``void``             that of V
        a READ ends SLAVE_ERROR, DECODE_ERROR, MALFORMED     NaN                       that of it
        V has another number of rows than K                NaN                       OK, result DATA

    The last needs a TRIM or FREE between the two READs. ``status`` of an attend is the first that
    is not OK, K of all groups before V. ``result`` is the least of its jobs that is not OK, and OK
    if ``status`` is not. ``o`` waits for both statuses of its job: ``status`` must not wait for it.

    All sums are exact; rounding points are those of the quantization engine, of the dequantization
    engine and of attention_stream. Golden: golden.oaken.attention.Attention.
    """

    golden = "golden.oaken.attention:Attention"
    reference = "tests/oaken/test_attention.py: test_attention_follows_its_definition"
    default = OakenAttentionConfig()
    configs: ClassVar = {
        "llama2": OakenAttentionConfig(),
        "smollm2": OakenAttentionConfig(
            engine=OakenKvEngineConfig(
                mmu=PagingMmuConfig(
                    cache=CacheConfig(
                        kv=KvShape(heads=3, head_dim=64, order="token"),
                        sequences=8,
                        layers=30,
                        pages=65536,
                        max_tokens=512,
                    ),
                    data_bits=512,
                ),
                lanes=64,
            ),
            queries=3,
            macs=192,
        ),
        "small": OakenAttentionConfig(
            engine=OakenKvEngineConfig(
                mmu=PagingMmuConfig(
                    cache=CacheConfig(
                        kv=KvShape(heads=2, head_dim=32, block=16, order="token"),
                        sequences=3,
                        layers=2,
                        pages=48,
                        page_bytes=512,
                        max_tokens=40,
                    ),
                    data_bits=128,
                    burst_beats=8,
                    outstanding=4,
                    reads=4,
                    appends=2,
                    token_beats=16,
                ),
                lanes=16,
            ),
            queries=2,
            macs=16,
            width=8,
        ),
    }

    def __init__(self, config: OakenAttentionConfig):
        mmu = config.engine.mmu
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(config.request_layout),
                    "OPEN, APPEND, TRIM, FREE, THRESHOLDS or FORK, as oaken_kv_engine takes them.",
                ),
                "kv": In(stream.Signature(config.kv_layout), "One vector per APPEND, in order."),
                "attend": In(stream.Signature(config.attend_layout), "Attends, in runs."),
                "q": In(
                    stream.Signature(config.q_layout),
                    "Queries of each attend, group by group; a group as attention_stream's q.",
                ),
                "o": Out(stream.Signature(config.o_layout), "Outputs, in the same order."),
                "status": Out(
                    stream.Signature(config.status_layout),
                    "How a request ended; those of one op in order.",
                ),
                "attended": Out(
                    stream.Signature(attended_layout),
                    "How an attend ended, after its last word of o.",
                ),
                "base": In(
                    mmu.address_bits,
                    "Byte address of page 0, a multiple of page_bytes; constant while running.",
                    index_of("bytes"),
                ),
                "free_pages": Out(range(mmu.cache.pages + 1), "Pages that no stream owns."),
                "idle": Out(1, "No request and no attend is under way."),
                "axi": Out(mmu.axi_signature, "AXI4 manager: the memory that holds the pages."),
            },
        )

    @property
    def timing(self) -> Timing:
        """The memory answers in the next cycle, and brings each beat in time."""
        return self.config.timing

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        engine = add(m, "engine", OakenKvEngine(config.cache_engine))
        attention = add(m, "attention", AttentionStream(config.stream))
        reads = add(m, "reads", OakenAttentionReads(config))
        rows = add(m, "rows", OakenAttentionRows(config))
        output = add(m, "output", OakenAttentionOutput(config))
        m.d.comb += [engine.base.eq(self.base), self.free_pages.eq(engine.free_pages)]
        pass_channels(m, engine.axi, self.axi)
        link(m, self.kv, engine.kv)
        link(m, self.q, attention.q)

        attends = skid(m, "attends", config.attend_layout)
        link(m, self.attend, attends.i)
        link(m, attends.o, reads.attend)
        link(m, engine.begun, reads.begun)
        refusals = self._requests(m, engine, reads)
        self._statuses(m, engine, reads, refusals)

        jobs = queue(m, "jobs", config.stream.job_layout, 2)
        stretches = queue(m, "stretches", config.stretch_layout, 2)
        link(m, reads.job, jobs.i)
        link(m, jobs.o, attention.job)
        link(m, reads.stretch, stretches.i)
        link(m, stretches.o, rows.stretch)
        link(m, engine.o, rows.i)
        link(m, rows.rows, attention.rows)

        key_ends = queue(m, "key_ends", STATUS_BITS, JOBS)
        value_ends = queue(m, "value_ends", STATUS_BITS, JOBS)
        for ends, name in ((key_ends, "key_end"), (value_ends, "value_end")):
            link(m, getattr(reads, name), ends.i)
            link(m, ends.o, getattr(output, name))
        link(m, reads.task, output.task)
        link(m, attention.o, output.i)
        link(m, attention.status, output.result)
        link(m, output.o, self.o)
        link(m, output.attended, self.attended)
        m.d.comb += reads.done.eq(output.done)
        self._count(m, engine, reads, attends.o.valid)
        return m

    def _requests(self, m: Module, engine, reads):
        """Requests and READs of attends in turn to the engine; returns the READs refused."""
        config = self.config
        entry = skid(m, "entry", config.request_layout)
        link(m, self.request, entry.i)
        turns = arbiter(m, "turns", config.request_layout, 2)
        refusals = queue(m, "refusals", STATUS_LAYOUT, 2)
        host, own = turns.i
        is_read = let(m, "is_read", entry.o.p.op == Op.READ)
        m.d.comb += [
            host.p.eq(entry.o.p),
            host.valid.eq(entry.o.valid & ~is_read),
            refusals.i.valid.eq(entry.o.valid & is_read),
            entry.o.ready.eq(Mux(is_read, refusals.i.ready, host.ready)),
            own.valid.eq(reads.request.valid),
            reads.request.ready.eq(own.ready),
            # The request's own fields are the first of those of the engine's requests.
            Value.cast(own.p).eq(Value.cast(reads.request.p)),
            refusals.i.p.status.eq(Status.BAD_REQUEST),
            *(refusals.i.p[name].eq(entry.o.p[name]) for name in ("op", "tag", "sequence")),
        ]
        link(m, turns.o, engine.request)
        return refusals.o

    def _statuses(self, m: Module, engine, reads, refusals) -> None:
        """Statuses of READs to ``reads``, and all others to the user."""
        ends = queue(m, "read_ends", STATUS_BITS, self.config.ahead)
        turns = arbiter(m, "ends", STATUS_LAYOUT, 2)
        found = engine.status
        is_read = let(m, "is_own", found.p.op == Op.READ)
        m.d.comb += [
            ends.i.valid.eq(found.valid & is_read),
            ends.i.p.eq(found.p.status),
            turns.i[0].valid.eq(found.valid & ~is_read),
            turns.i[0].p.eq(found.p),
            found.ready.eq(Mux(is_read, ends.i.ready, turns.i[0].ready)),
        ]
        link(m, ends.o, reads.end)
        link(m, refusals, turns.i[1])
        link(m, turns.o, self.status)

    def _count(self, m: Module, engine, reads, attends) -> None:
        """``idle``."""
        count = Signal(_COUNT_BITS)
        taken = self.request.valid & self.request.ready
        m.d.sync += count.eq(count + taken - (self.status.valid & self.status.ready))
        m.d.comb += self.idle.eq((count == 0) & engine.idle & reads.idle & ~attends)
