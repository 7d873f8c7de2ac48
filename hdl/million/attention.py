"""Attention over a product-quantized KV cache in the memory of one AXI4 port
(docs/blocks/million_attention.md)."""

from typing import ClassVar, NamedTuple

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.million.config import HeadShape, MillionConfig, WindowShape
from golden.paging.format import Kv
from golden.paging.format import Op as PagingOp
from golden.timing import Timing
from hdl.attention.weights import AttentionWeights
from hdl.axi.signature import pass_channels
from hdl.block import Block
from hdl.children import add
from hdl.index.codebook_store import IndexCodebookStore
from hdl.kinds import index_of
from hdl.million.attend_control import MillionAttendControl
from hdl.million.attention_config import MillionAttentionConfig
from hdl.million.code_reader import MillionCodeReader
from hdl.million.control import MillionControl
from hdl.million.encode_control import MillionEncodeControl
from hdl.million.kv_writer import MillionKvWriter
from hdl.million.layouts import REQUEST_LAYOUT, STATUS_LAYOUT, beat_layout, query_layout
from hdl.million.loader import MillionLoader
from hdl.million.output import MillionOutput
from hdl.million.pq_encoder import MillionPqEncoder
from hdl.million.query_splitter import MillionQuerySplitter
from hdl.million.record_writer import MillionRecordWriter
from hdl.million.restorer import MillionRestorer
from hdl.million.score_engine import MillionScoreEngine
from hdl.million.shapes import SMALL, SMALL_RATE, SMOLLM2_CACHE, SMOLLM2_RATE
from hdl.million.table_builder import MillionTableBuilder
from hdl.million.value_engine import MillionValueEngine
from hdl.million.verdict import (
    BEGUN_LAYOUT,
    MillionVerdict,
    weights_config,
)
from hdl.million.window import MillionWindow
from hdl.paging.layouts import REQUEST_LAYOUT as PAGING_REQUEST_LAYOUT
from hdl.paging.layouts import STATUS_LAYOUT as PAGING_STATUS_LAYOUT
from hdl.paging.mmu import PagingMmu
from hdl.ports import In, Out
from hdl.stream.arbiter import arbiter
from hdl.stream.fork import fork
from hdl.stream.link import link, link_members
from hdl.stream.queue import queue
from hdl.stream.skid import skid

__all__ = ["MillionAttention", "MillionAttentionConfig"]

_ATTENDS = 4  # that wait for their groups, and for their end
_GROUPS = 4  # that wait for each engine
_UNDER_WAY = 8  # groups between their queries and their outputs
_READ_ENDS = 16  # reads of _UNDER_WAY groups: their statuses never keep an APPEND's back
_COUNT_BITS = 8  # of requests without a status: the queues hold fewer


class _Engines(NamedTuple):
    """Parts that more than one method of MillionAttention connects."""

    attend: MillionAttendControl
    mmu: PagingMmu
    encode: MillionEncodeControl
    window: MillionWindow
    builder: MillionTableBuilder
    scores: MillionScoreEngine
    weights: AttentionWeights
    values: MillionValueEngine
    verdict: MillionVerdict
    output: MillionOutput


class MillionAttention(Block):
    """Keeps K and V as product-quantized codes in memory, and attends them without decoding.

        s = rne16(sum_m T[m][code_m] + slope * distance)     T[m][j] = rne16(q_m . C_K[m][j])
        s = rne16(q . k + slope * distance)                  of an exact row
        w = exp(rne16(s - max s));  S = sum w
        o = rne16(rne32(sum_j H[m][j] * C_V[m][j] + sum w * v) * rne32(1 / rne32(S)))

    H[m][j] is the sum of the weights of the keys with code j. The first tokens and the recent ones
    are exact rows on chip, the others codes in the paged memory (golden.million.config).

    - One status per request; those of one op in order, others may overtake.
    - PREFILL and APPEND take ``2 * heads * head_dim`` words of ``kv``, K of all heads first, with
      any status. A later request sees the token. Tokens that leave the window are encoded in the
      background.
    - RESTORE takes the records of a token from ``restored`` with any status: codes that the host
      has. ``2 * heads`` records of ceil(M * nbits / data_bits) words.
    - ATTEND takes ``heads * group * head_dim`` words of ``query`` with any status. If it is not
      refused, it puts as many words on ``o``, and its status follows the last of them. So ``o``
      must not wait for a status. A query without a result is NaN (0x7E00).
    - LOAD takes the words of its codebooks from ``codebook``, unless it is a BAD_REQUEST by its
      fields. The codebooks are in use from the next request on that they serve. ATTENDs go on
      meanwhile.

    Up to 4 ATTENDs wait while others are carried out. Tables, scores, bins and sums have two
    buffers each, so the groups of queries overlap, also from one ATTEND to the next. A group takes
    about the largest of: building its tables, scoring, counting, finishing, and the reads of its
    codes (golden.million.bounds). Memory words wider than a beat of codes do not
    make the reads faster.

    Rounding points: those of the formulas. Source: MILLION, sections III and IV.
    Golden: golden.million.cache.Cache.
    """

    golden = "golden.million.cache:Cache"
    reference = "tests/million/test_cache.py: test_requests_of_a_layer"
    default = MillionAttentionConfig()
    configs: ClassVar = {
        "smollm2": MillionAttentionConfig(cache=SMOLLM2_CACHE, rate=SMOLLM2_RATE),
        "llama": MillionAttentionConfig(
            cache=MillionConfig(head=HeadShape(heads=2, group=4), layers=32)
        ),
        "small": MillionAttentionConfig(
            cache=MillionConfig(
                pq=SMALL,
                head=HeadShape(heads=2, group=3),
                window=WindowShape(sinks=2, keep=3, block=4),
                sequences=2,
                layers=2,
                max_tokens=48,
                pages=40,
                page_bytes=256,
            ),
            rate=SMALL_RATE,
            data_bits=64,
            burst_beats=4,
            outstanding=4,
            reads=4,
            beats=16,
        ),
    }
    checked = "small"

    def __init__(self, config: MillionAttentionConfig):
        mmu, rate = config.mmu, config.rate
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(REQUEST_LAYOUT),
                    "What to do; fields that an op does not use are ignored.",
                ),
                "kv": In(
                    stream.Signature(config.control.writer.kv_layout),
                    "PREFILL, APPEND: K of all KV heads, then V, head_dim / lanes beats each.",
                ),
                "query": In(
                    stream.Signature(query_layout(rate.lanes)),
                    "ATTEND: all query heads, those of KV head 0 first, head_dim / lanes beats.",
                ),
                "codebook": In(
                    stream.Signature(config.loader.codebook_layout),
                    "LOAD: codebooks row by row, those of K first.",
                ),
                "restored": In(
                    stream.Signature(config.restorer.restored_layout),
                    "RESTORE: records of K, then of V, KV heads ascending.",
                ),
                "o": Out(
                    stream.Signature(beat_layout(rate.lanes)),
                    "Outputs of the ATTENDs, query by query; last ends those of a group.",
                ),
                "status": Out(
                    stream.Signature(STATUS_LAYOUT),
                    "How a request ended; those of one op in order.",
                ),
                "base": In(
                    mmu.address_bits,
                    "Byte address of page 0, a multiple of page_bytes; constant while running.",
                    index_of("bytes"),
                ),
                "free_pages": Out(range(mmu.cache.pages + 1), "Pages that no stream owns."),
                "idle": Out(1, "Every request has its status, and no token is being encoded."),
                "axi": Out(mmu.axi_signature, "AXI4 manager: the memory that holds the pages."),
            },
        )

    @property
    def timing(self) -> Timing:
        """The slowest of the stages decides."""
        return Timing(
            latency=3,
            interval=max(self.config.stages.values()),
            start="the last o of an ATTEND",
            end="its status",
            unit="group",
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        mmu = add(m, "mmu", PagingMmu(config.mmu))
        control = add(m, "control", MillionControl(config.control))
        engines = _Engines(
            attend=add(m, "attend", MillionAttendControl(config.control.attend)),
            mmu=mmu,
            encode=add(m, "encode", MillionEncodeControl(config.control.encode)),
            window=add(m, "window", MillionWindow(config.window)),
            builder=add(m, "builder", MillionTableBuilder(config.table_builder)),
            scores=add(m, "scores", MillionScoreEngine(config.score_engine)),
            weights=add(m, "weights", AttentionWeights(weights_config(config.cache, config.rate))),
            values=add(m, "values", MillionValueEngine(config.value_engine)),
            verdict=add(m, "verdict", MillionVerdict(config.verdict)),
            output=add(m, "output", MillionOutput(config.output)),
        )
        m.d.comb += [mmu.base.eq(self.base), self.free_pages.eq(mmu.free_pages)]
        pass_channels(m, mmu.axi, self.axi)
        link(m, self.request, control.request)

        loader = self._load(m, control, engines)
        self._write(m, control, engines)
        self._queries(m, control, engines)
        self._groups(m, engines)
        self._codes(m, engines)
        self._results(m, control, engines)
        self._memory(m, control, engines)

        # Statuses in turn; each part has those of its ops in order.
        ends = arbiter(m, "ends", STATUS_LAYOUT, 3)
        for part, sink in zip((control, loader, engines.verdict), ends.i, strict=True):
            link(m, part.status, sink)
        exit_ = skid(m, "exit", STATUS_LAYOUT)
        link(m, ends.o, exit_.i)
        link(m, exit_.o, self.status)
        count = Signal(_COUNT_BITS)
        m.d.sync += count.eq(
            count
            + (self.request.valid & self.request.ready)
            - (self.status.valid & self.status.ready)
        )
        m.d.comb += self.idle.eq((count == 0) & engines.encode.idle & mmu.idle)
        return m

    def _load(self, m: Module, control: MillionControl, engines: _Engines) -> MillionLoader:
        """LOADs to the stores of K and V, and the readers of both stores."""
        config, builder, values = self.config, engines.builder, engines.values
        loader = add(m, "loader", MillionLoader(config.loader))
        stores = [add(m, name, IndexCodebookStore(config.store)) for name in ("books_k", "books_v")]
        link(m, control.load, loader.load)
        link(m, self.codebook, loader.codebook)
        for store, info, word in zip(stores, loader.info, loader.word, strict=True):
            m.d.comb += [
                store.load_info.valid.eq(info.valid),
                store.load_info.p.entries.eq(info.p.entries),
                store.load_info.p.exponent.eq(info.p.exponent),
                info.ready.eq(store.load_info.ready),
                store.swap.eq(control.swap),
            ]
            link(m, word, store.load)
        books_k, books_v = stores
        m.d.comb += [
            loader.faults_k.eq(books_k.load_fault),
            loader.faults_v.eq(books_v.load_fault),
            control.loaded.eq(books_k.loaded & books_v.loaded),
            control.load_idle.eq(loader.idle),
        ]
        for store, reader in ((books_k, builder), (books_v, values)):
            m.d.comb += [
                store.scan_en.eq(reader.read_en),
                store.scan_addr.eq(reader.read_addr),
                reader.read_data.eq(store.scan_data),
            ]
        self._encode(m, engines, stores)
        return loader

    def _encode(self, m: Module, engines: _Engines, stores) -> None:
        """Rows of the window to codes, in the cycles that the engines leave the codebooks."""
        config, encode, mmu = self.config, engines.encode, engines.mmu
        encoder = add(m, "encoder", MillionPqEncoder(config.encoder))
        writer = add(m, "record_writer", MillionRecordWriter(config.record_writer))
        restorer = add(m, "restorer", MillionRestorer(config.restorer))
        books_k, books_v = stores
        was_v = Signal()
        m.d.comb += [
            books_k.low_en.eq(encoder.read_en & ~encoder.read_kv),
            books_v.low_en.eq(encoder.read_en & encoder.read_kv),
            *(store.low_addr.eq(encoder.read_addr) for store in stores),
            encoder.read_grant.eq(books_k.low_grant | books_v.low_grant),
            encoder.read_data.eq(Mux(was_v, books_v.low_data, books_k.low_data)),
        ]
        m.d.sync += was_v.eq(encoder.read_kv)
        link(m, encode.fetch, engines.window.fetch)
        link(m, engines.window.vector, encoder.x)
        job = encode.encode
        m.d.comb += [
            encoder.job.valid.eq(job.valid),
            job.ready.eq(encoder.job.ready),
            encoder.job.p.kv.eq(job.p.kv),
            encoder.job.p.book.eq(job.p.head if config.cache.scope_heads else 0),
            encoder.job.p.entries.eq(job.p.entries),
            encoder.job.p.exponent.eq(job.p.exponent),
        ]
        link(m, encoder.code, writer.code, discard=("bad",))  # rows are finite
        link(m, writer.record, restorer.encoded_record)
        link(m, writer.w, restorer.encoded_w)
        link(m, encode.restore, restorer.job)
        link(m, self.restored, restorer.restored)
        link_members(m, restorer, mmu, ("record", "w"))

    def _write(self, m: Module, control: MillionControl, engines: _Engines) -> None:
        """K and V of a token to its rows."""
        writer = add(m, "writer", MillionKvWriter(self.config.control.writer))
        link(m, control.write, writer.job)
        link(m, self.kv, writer.kv)
        link(m, writer.done, control.written)
        link(m, writer.row, engines.window.write)
        link(m, writer.x, engines.window.x)
        link(m, control.encode, engines.encode.job)
        link(m, engines.encode.done, control.encoded)
        m.d.comb += control.encode_idle.eq(engines.encode.idle)

    def _queries(self, m: Module, control: MillionControl, engines: _Engines) -> None:
        """ATTENDs to groups, and their queries to the tables and to the window."""
        splitter = add(m, "splitter", MillionQuerySplitter(self.config.control.attend.splitter))
        waiting = queue(m, "attends", control.attend.p.shape(), _ATTENDS)
        link(m, control.attend, waiting.i)
        link(m, waiting.o, engines.attend.job)
        link(m, engines.attend.split, splitter.job)
        link(m, splitter.slopes, engines.attend.slopes)
        link(m, self.query, splitter.query)
        to_tables, to_window = fork(m, "q", splitter.q, 2)
        link(m, to_tables, engines.builder.q)
        link(m, to_window, engines.window.q)

    def _groups(self, m: Module, engines: _Engines) -> None:
        """Each group to every part that works on it, which takes it when it gets there."""
        cache, parts = self.config.cache, engines
        sinks = {
            "tables": (parts.builder.job, 2),
            "scores": (parts.scores.job, _GROUPS),
            "rows": (parts.weights.row, _GROUPS),
            "values": (parts.values.job, _GROUPS),
            "exact": (parts.window.job, _GROUPS),
            "verdicts": (parts.verdict.group, _UNDER_WAY),
        }
        views = fork(m, "groups", parts.attend.group, len(sinks))
        for view, (name, (sink, depth)) in zip(views, sinks.items(), strict=True):
            waiting = queue(m, f"{name}_waiting", sink.p.shape(), depth)
            m.d.comb += [waiting.i.valid.eq(view.valid), view.ready.eq(waiting.i.ready)]
            group, job = view.p, waiting.i.p
            given = {
                "book": group.head if cache.scope_heads else 0,
                "exponent": group.exponent_k if name == "tables" else group.exponent_v,
                # Of the first key of codes, which follows the sinks; of row 0 in the window.
                "distance": group.distance - (group.sinks if name == "scores" else 0),
                "past": group.keys,
                "window": group.sinks + group.recent,
                "has_codes": group.keys != 0,
            }
            for field in job.shape().members:
                m.d.comb += job[field].eq(given[field] if field in given else group[field])
            link(m, waiting.o, sink)

    def _codes(self, m: Module, engines: _Engines) -> None:
        """Codes of K to the scores and of V to the values, as the reads were requested."""
        mmu, config = engines.mmu, self.config
        sinks = engines.scores.code, engines.values.code
        if config.kv_apart:
            m.d.comb += mmu.info.ready.eq(1)
            for kv, sink in zip(("k", "v"), sinks, strict=True):
                reader = add(m, f"code_reader_{kv}", MillionCodeReader(config.code_reader))
                link(m, getattr(mmu, f"codes_{kv}"), reader.word)
                link(m, reader.code, sink, discard=("error",))
            return
        reader = add(m, "code_reader", MillionCodeReader(config.code_reader))
        kinds = queue(m, "kinds", 1, config.reads)
        m.d.comb += [
            kinds.i.valid.eq(mmu.info.valid),
            kinds.i.p.eq(mmu.info.p.tag == Kv.V),
            mmu.info.ready.eq(kinds.i.ready),
        ]
        link(m, mmu.codes, reader.word)
        code, is_v = reader.code, kinds.o.p
        for sink, is_its in zip(sinks, (~is_v, is_v), strict=True):
            m.d.comb += [
                sink.valid.eq(code.valid & kinds.o.valid & is_its),
                sink.p.code.eq(code.p.code),
                sink.p.last.eq(code.p.last),
            ]
        scores, values = sinks
        m.d.comb += [
            code.ready.eq(kinds.o.valid & Mux(is_v, values.ready, scores.ready)),
            kinds.o.ready.eq(code.valid & code.ready & code.p.last),
        ]

    def _results(self, m: Module, control: MillionControl, engines: _Engines) -> None:
        """Tables to scores, weights, sums and outputs; how ATTENDs end."""
        parts, verdict, output = engines, engines.verdict, engines.output
        link(m, parts.builder.entry, parts.scores.entry)
        link(m, parts.scores.score, parts.weights.past_score)
        link(m, parts.window.window_score, parts.weights.window_score)
        link(m, parts.weights.past_weight, parts.values.weight)
        link(m, parts.weights.window_weight, parts.window.window_weight)
        link(m, parts.weights.total, verdict.total)
        link(m, parts.scores.end, verdict.score_end)
        link(m, parts.values.end, verdict.value_end)
        begun = queue(m, "begun", BEGUN_LAYOUT, _ATTENDS)
        link(m, control.begun, begun.i)
        link(m, begun.o, verdict.begun)
        results = queue(m, "results", verdict.result.p.shape(), 2)
        link(m, verdict.result, results.i)
        link(m, results.o, output.total)
        link(m, parts.values.sum, output.past)
        link(m, parts.window.sum, output.window)
        link(m, output.o, self.o)
        m.d.comb += [
            verdict.given.eq(self.o.valid & self.o.ready & self.o.p.last),
            control.attended.eq(verdict.attended),
        ]

    def _memory(self, m: Module, control: MillionControl, engines: _Engines) -> None:
        """Requests to the paged memory; their statuses to who requested them."""
        mmu, encode, attend = engines.mmu, engines.encode, engines.attend
        requests = arbiter(m, "requests", PAGING_REQUEST_LAYOUT, 3)
        for source, sink in zip(
            (control.page, encode.append, attend.read), requests.i, strict=True
        ):
            link(m, source, sink)
        link(m, requests.o, mmu.request)
        ended = skid(m, "ended", PAGING_STATUS_LAYOUT)
        link(m, mmu.status, ended.i)
        read_ends = queue(m, "read_ends", PAGING_STATUS_LAYOUT, _READ_ENDS)
        link(m, read_ends.o, engines.verdict.read_end)
        op = ended.o.p.op
        with m.Switch(op):
            for case, sink in (
                (PagingOp.READ, read_ends.i),
                (PagingOp.APPEND, encode.ended),
                (None, control.paged),
            ):
                with m.Case(case) if case is not None else m.Default():
                    m.d.comb += [sink.valid.eq(ended.o.valid), ended.o.ready.eq(sink.ready)]
        for sink in (read_ends.i, encode.ended, control.paged):
            m.d.comb += sink.p.eq(ended.o.p)
