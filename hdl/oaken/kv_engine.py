"""The KV cache: vectors in, quantized records in memory, decoded vectors out
(docs/blocks/oaken_kv_engine.md)."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, flag, nested, power_of_two
from golden.fp16.format import FP16
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.format import Threshold, record_bytes
from golden.oaken.timing import kv_read_cycles, kv_token_read_cycles
from golden.paging.format import Op, Status
from golden.timing import Timing
from hdl.axi.signature import pass_channels
from hdl.block import Block
from hdl.children import add
from hdl.kinds import BITS, NUMBER, index_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.oaken.kv_reader import OakenKvReader, OakenKvReaderConfig, serve
from hdl.oaken.kv_reads import OakenKvReads, OakenKvReadsConfig
from hdl.oaken.kv_writer import OakenKvWriter, OakenKvWriterConfig
from hdl.oaken.layouts import FP16_BITS, KV_REQUEST_LAYOUT, SCALE_LAYOUT, THRESHOLD_LAYOUT
from hdl.oaken.mmu import PagingMmuConfig
from hdl.oaken.quant_engine import OakenQuantEngine, OakenQuantEngineConfig
from hdl.oaken.token_reader import OakenTokenReader, OakenTokenReaderConfig
from hdl.oaken.token_writer import OakenTokenWriter, OakenTokenWriterConfig
from hdl.paging.layouts import REQUEST_LAYOUT, STATUS_LAYOUT, TOKEN_BITS
from hdl.paging.mmu import PagingMmu
from hdl.ports import In, Out, Payload
from hdl.stream.arbiter import arbiter
from hdl.stream.link import link, link_members
from hdl.stream.queue import queue
from hdl.stream.skid import skid

_VECTORS = 4  # vectors in the quantization engine and just after it
_HELD = _VECTORS + 2  # most requests of one kind between their queue and the MMU
_COUNT_BITS = 12  # of requests under way: those in all queues together are fewer than 4096


def _mmu() -> PagingMmuConfig:
    return PagingMmuConfig(cache=CacheConfig())


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenKvEngineConfig(Config):
    """The cache, its memory port, and the queues and engines that use them."""

    mmu: PagingMmuConfig = nested(_mmu, "cache and port", PagingMmuConfig)
    lanes: int = power_of_two(32, 8, 64, "elements per beat of kv and o, at most block")
    scale_tokens: int = bounded(1024, 4, 65536, "order head: tokens of a READ of several heads")
    queue: int = bounded(4, 2, 64, "requests of each kind (APPEND, READ, the others) that wait")
    tells: bool = flag(False, "a stream begun says how many tokens each part of a READ has")

    def __post_init__(self) -> None:
        if self.lanes > self.cache.kv.block:
            self._refuse("lanes", f"at most block = {self.cache.kv.block}")
        # What the parts refuse is refused here, before elaboration.
        self.check_parts()

    @property
    def cache(self) -> CacheConfig:
        return self.mmu.cache

    @property
    def quantizer(self) -> OakenQuantEngineConfig:
        kv = self.cache.kv
        return OakenQuantEngineConfig(lanes=self.lanes, block=kv.block, elements_max=kv.elements)

    @property
    def writer(self) -> OakenKvWriterConfig:
        make = OakenTokenWriterConfig if self.cache.kv.is_by_token else OakenKvWriterConfig
        return make(kv=self.cache.kv, lanes=self.lanes, data_bits=self.mmu.data_bits)

    @property
    def reader(self) -> OakenKvReaderConfig:
        make = OakenTokenReaderConfig if self.cache.kv.is_by_token else OakenKvReaderConfig
        return make(
            kv=self.cache.kv,
            lanes=self.lanes,
            data_bits=self.mmu.data_bits,
            scale_tokens=self.scale_tokens,
        )

    @property
    def reads(self) -> OakenKvReadsConfig:
        return OakenKvReadsConfig(reader=self.reader, reads=self.mmu.reads)

    def read_cycles(self, memory: int) -> int:
        """Cycles from a READ of one token of one part to its first beat, without outliers."""
        kv, decoder = self.cache.kv, self.reader.decoder
        stages = decoder.scale_stages, decoder.stages
        if not isinstance(self.reader, OakenTokenReaderConfig):
            return kv_read_cycles(*stages, self.mmu.sparse_beats, memory)
        pieces = -(-record_bytes(1, kv.block, 0) // self.reader.split.chunk_bytes)
        return kv_token_read_cycles(kv, *stages, self.mmu.token_beats, pieces, memory)

    @property
    def request_layout(self) -> data.StructLayout:
        return KV_REQUEST_LAYOUT

    @property
    def status_layout(self) -> data.StructLayout:
        return STATUS_LAYOUT

    @property
    def kv_layout(self) -> data.StructLayout:
        return Payload(
            x=(data.ArrayLayout(FP16_BITS, self.lanes), "elements, FP16", FP16),
            last=(1, "final beat of the vector"),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        return self.reader.o_layout

    @property
    def begun_layout(self) -> data.StructLayout:
        return Payload(
            tag=(8, "tag of the READ", BITS),
            tokens=(TOKEN_BITS, "tokens whose words follow on o", NUMBER),
        )


class OakenKvEngine(Block):
    """Writes quantized K and V vectors to a paged cache and reads them back decoded.

    One status per request; those of one op in order, others may overtake. A request sees what was
    complete before it: wait for the status of what it needs.

    - APPEND takes the next vector of ``kv``, whatever its status.
    - READ, if it goes ahead, puts ``heads * (token - start) * head_dim`` words on ``o``, head by
      head and token by token. Its status comes after the last of them, so ``o`` must not wait for a
      status. No READ waits for the vectors of up to ``queue`` + 1 APPENDs. A READ of several
      heads and of more than ``scale_tokens`` tokens is split into heads. Each of these reads the
      scales again.
    - TRIM and FREE wait for the APPENDs and READs that came before them, and for none that came
      after them. So does FORK, where the cache has ``forks``: a new sequence has the tokens of
      another.
    - THRESHOLDS wait until no APPEND and no READ waits. THRESHOLDS(layer, kv) holds until the next
      one. It is refused unless all thresholds are finite, no sequence is open, and
      OUTER_LOW < INNER_LOW <= 0 <= INNER_HIGH < OUTER_HIGH.

    With ``tells``, ``begun`` has the tokens of each part (head, or group) of a READ that goes
    ahead, before its first word. Words of later parts wait until it is taken.

    Status.MALFORMED: memory returned something that is no sparse record. ``error`` is set when a
    word of this head was decoded from bad data, and stays set until the head ends. Errors after the
    last record are reported only in the status.

    Nothing else is rounded or reordered here: the arithmetic is that of the quantization and the
    dequantization engine. Source: Oaken, sections 4 and 5. Golden: golden.oaken.kv_engine.KvEngine.
    """

    golden = "golden.oaken.kv_engine:KvEngine"
    reference = "tests/oaken/test_kv_engine.py: test_what_is_read_is_what_the_arithmetic_gives"
    default = OakenKvEngineConfig()
    configs: ClassVar = {
        "smollm2": OakenKvEngineConfig(
            mmu=PagingMmuConfig(
                cache=CacheConfig(kv=KvShape(heads=3, head_dim=64), layers=30, pages=8192)
            ),
            lanes=16,
        ),
        "smollm2_token": OakenKvEngineConfig(
            mmu=PagingMmuConfig(
                cache=CacheConfig(
                    kv=KvShape(heads=3, head_dim=64, order="token"), layers=30, pages=8192
                ),
                data_bits=512,
            ),
            lanes=64,
        ),
        "small": OakenKvEngineConfig(
            mmu=PagingMmuConfig(
                cache=CacheConfig(
                    kv=KvShape(heads=1, head_dim=16, block=16),
                    sequences=3,
                    layers=1,
                    pages=8,
                    page_bytes=256,
                    max_tokens=40,
                ),
                data_bits=64,
                burst_beats=4,
                outstanding=2,
                reads=2,
                appends=1,
                dense_beats=8,
                sparse_beats=8,
                scale_beats=8,
            ),
            lanes=8,
            scale_tokens=4,
            queue=2,
        ),
    }

    def __init__(self, config: OakenKvEngineConfig):
        mmu = config.mmu
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(config.request_layout),
                    "What to do; fields that an op does not use are ignored.",
                ),
                "kv": In(
                    stream.Signature(config.kv_layout),
                    "One vector per APPEND, in order: all heads of one token's K or V.",
                ),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Decoded heads of the READs, in order.",
                ),
                "status": Out(
                    stream.Signature(STATUS_LAYOUT),
                    "How a request ended; those of one op in order.",
                ),
                **(
                    {
                        "begun": Out(
                            stream.Signature(config.begun_layout),
                            "Parts of the READs that go ahead, in order.",
                        )
                    }
                    if config.tells
                    else {}
                ),
                "base": In(
                    mmu.address_bits,
                    "Byte address of page 0, a multiple of page_bytes; constant while running.",
                    index_of("bytes"),
                ),
                "free_pages": Out(range(mmu.cache.pages + 1), "Pages that no stream owns."),
                "idle": Out(1, "No request is under way."),
                "axi": Out(mmu.axi_signature, "AXI4 manager: the memory that holds the pages."),
            },
        )

    @property
    def timing(self) -> Timing:
        """The memory answers in the next cycle. Beats of ``o`` follow at full rate.

        So they do from one head to the next, if each head has ``kv_head_cycles()`` of them.
        """
        return Timing(
            latency=self.config.read_cycles(1),
            start="a READ",
            end="its first beat of o",
            unit="beat",
            delays=(("from a READ's last beat to its status", 3),),
        )

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        mmu = add(m, "mmu", PagingMmu(config.mmu))
        m.d.comb += [mmu.base.eq(self.base), self.free_pages.eq(mmu.free_pages)]
        pass_channels(m, mmu.axi, self.axi)

        appends, reads, controls = self._sort(m)
        table = _Table(m, config.cache.layers, ("append", "read"))
        # To the MMU: vectors that have been looked at, heads to read, and everything else.
        requests = arbiter(m, "requests", REQUEST_LAYOUT, 3)
        link(m, requests.o, mmu.request)

        # From the MMU: READs are not complete before their last beat; the others are.
        statuses = skid(m, "statuses", STATUS_LAYOUT)
        link(m, mmu.status, statuses.i)
        ended = statuses.o.p
        read_ends = queue(m, "read_ends", STATUS_LAYOUT, max(config.mmu.reads, 2))
        other_ends = queue(m, "other_ends", STATUS_LAYOUT, 2)
        own_ends = queue(m, "own_ends", STATUS_LAYOUT, 2)

        given, appending = self._append(m, appends, table, requests.i[0], mmu)
        starts = _Starts(config.cache.sequences)
        tracker, reading = self._read(m, reads, table, starts, requests.i[1], mmu)
        link(m, read_ends.o, tracker.ends)
        closed = (
            statuses.o.valid
            & statuses.o.ready
            & (
                ((ended.op == Op.OPEN) & (ended.status != Status.OK))
                | ((ended.op == Op.FREE) & (ended.status == Status.OK))
            )
        )
        gate = _Gate(
            is_after=_Before(m, controls, config.queue, (appending, reading)).any,
            is_quiet=~Cat(each.count != 0 for each in (appending, reading)).any(),
            is_split=tracker.is_split,
            closed=closed,
            forked=statuses.o.valid
            & statuses.o.ready
            & (ended.op == Op.FORK)
            & (ended.status == Status.OK),
        )
        trims, parents, is_changing = self._control(
            m, controls, table, gate, requests.i[2], own_ends
        )
        m.d.comb += tracker.is_changing.eq(is_changing)

        is_read = Signal()
        other = Signal(STATUS_LAYOUT)
        taken = Signal()
        m.d.comb += [
            is_read.eq(ended.op == Op.READ),
            taken.eq(statuses.o.valid & statuses.o.ready),
            read_ends.i.valid.eq(statuses.o.valid & is_read),
            other_ends.i.valid.eq(statuses.o.valid & ~is_read),
            statuses.o.ready.eq(Mux(is_read, read_ends.i.ready, other_ends.i.ready)),
            read_ends.i.p.eq(ended),
            other.eq(ended),
            other_ends.i.p.eq(other),
        ]
        # The MMU's status of a request has priority over what was found in its vector, but for
        # VECTOR_LENGTH, which is what it says of records of 0 bytes.
        with m.If(ended.op == Op.APPEND):
            own = given.o.p
            with m.If(
                (own != Status.OK)
                & ((ended.status >= own) | (ended.status >= Status.VECTOR_LENGTH))
            ):
                m.d.comb += other.status.eq(own)
            m.d.comb += given.o.ready.eq(taken)
        with m.If(ended.op == Op.TRIM):
            m.d.comb += trims.o.ready.eq(taken)
        with m.If(taken & (ended.status == Status.OK)):
            starts.follow(m, ended, trims.o.p)
        if parents:
            with m.If(ended.op == Op.FORK):
                m.d.comb += parents.o.ready.eq(taken)
                with m.If(taken & (ended.status == Status.OK)):
                    starts.copy(m, ended.sequence, parents.o.p)

        ends = arbiter(m, "ends", STATUS_LAYOUT, 3)
        for source, sink in zip((tracker.status, other_ends.o, own_ends.o), ends.i, strict=True):
            link(m, source, sink)
        link(m, ends.o, self.status)

        count = Signal(_COUNT_BITS)
        m.d.sync += count.eq(
            count
            + (self.request.valid & self.request.ready)
            - (self.status.valid & self.status.ready)
        )
        m.d.comb += self.idle.eq((count == 0) & mmu.idle)
        return m

    def _sort(self, m: Module):
        """Queues of APPENDs, READs and other requests."""
        config = self.config
        entry = skid(m, "entry", config.request_layout)
        link(m, self.request, entry.i)
        op = entry.o.p.op
        depth = max(config.queue, 2)
        appends = queue(m, "appends", REQUEST_LAYOUT, depth)
        reads = queue(m, "reads", REQUEST_LAYOUT, depth)
        controls = queue(m, "controls", config.request_layout, depth)
        with m.Switch(op):
            for case, each in ((Op.APPEND, appends), (Op.READ, reads), (None, controls)):
                with m.Case(case) if case is not None else m.Default():
                    m.d.comb += [
                        each.i.valid.eq(entry.o.valid),
                        entry.o.ready.eq(each.i.ready),
                    ]
        for each in (appends, reads, controls):
            # The request's own fields are the first of those of the engine's requests.
            m.d.comb += Value.cast(each.i.p).eq(Value.cast(entry.o.p))
        return appends, reads, controls

    def _append(self, m: Module, requests, table, sink, mmu):
        """Vectors through the quantization engine to ``sink`` and the MMU; own statuses."""
        config = self.config
        engine = add(m, "quantizer", OakenQuantEngine(config.quantizer))
        writer_of = OakenTokenWriter if config.cache.kv.is_by_token else OakenKvWriter
        writer = add(m, "writer", writer_of(config.writer))
        look = table.look_up(m, "append", requests)
        seen_layout = data.StructLayout({"request": REQUEST_LAYOUT, "present": 1})
        seen = queue(m, "seen", seen_layout, max(_VECTORS, 2))
        entry = seen.i.p

        # The vector of the APPEND that has been looked up goes to the engine, or nowhere. The
        # engine may take its request and the vector in any order.
        asked = Signal()
        ended = Signal()
        # the same, with this cycle
        is_asked = Signal()
        is_ended = Signal()
        forward = Signal()
        swallow = Signal()
        m.d.comb += [
            engine.request.valid.eq(look.loaded & look.present & ~asked),
            engine.request.p.blocks.eq(config.cache.kv.elements // config.cache.kv.block),
            engine.request.p.thresholds.eq(look.thresholds),
            forward.eq(look.loaded & look.present & ~ended),
            swallow.eq(look.loaded & ~look.present & ~ended),
            engine.i.valid.eq(self.kv.valid & forward),
            engine.i.p.eq(self.kv.p),
            self.kv.ready.eq(swallow | (forward & engine.i.ready)),
            is_asked.eq(asked | ~look.present | engine.request.ready),
            is_ended.eq(ended | (self.kv.valid & self.kv.ready & self.kv.p.last)),
            seen.i.valid.eq(look.loaded & is_asked & is_ended),
            entry.request.eq(look.request),
            entry.present.eq(look.present),
            look.take.eq(seen.i.valid & seen.i.ready),
        ]
        m.d.sync += [
            asked.eq(look.loaded & is_asked & ~look.take),
            ended.eq(look.loaded & is_ended & ~look.take),
        ]

        # In order of the vectors: what was found, then the request, then the records.
        given = queue(m, "given", len(Status), config.mmu.appends + 2)
        found = seen.o.p
        request = Signal(REQUEST_LAYOUT, reset_less=True)
        own = Signal(4, reset_less=True)
        scale = Signal(SCALE_LAYOUT, reset_less=True)
        m.d.comb += [
            given.i.p.eq(own),
            sink.p.eq(request),
            writer.start.p.void.eq(own != Status.OK),
            writer.start.p.scale.eq(scale),
        ]
        with m.FSM(name="append"):
            with m.State("SEEN"):
                with m.If(seen.o.valid & (engine.header.valid | ~found.present)):
                    m.d.comb += [seen.o.ready.eq(1), engine.header.ready.eq(found.present)]
                    m.d.sync += [
                        request.eq(found.request),
                        own.eq(Mux(found.present, engine.header.p.status, Status.THRESHOLDS)),
                        scale.eq(engine.header.p.scale),
                    ]
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += sink.valid.eq(given.i.ready)
                with m.If(sink.valid & sink.ready):
                    m.d.comb += given.i.valid.eq(1)
                    m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += writer.start.valid.eq(1)
                with m.If(writer.start.ready):
                    m.next = "SEEN"
        link(m, engine.dense, writer.dense)
        link(m, engine.sparse, writer.sparse)
        link(m, writer.record, mmu.record)
        link(m, writer.w, mmu.w)
        passed = sink.valid & sink.ready
        return given, _Waiting(m, "append", requests, config.queue + _HELD, passed)

    def _read(self, m: Module, requests, table, starts, sink, mmu):
        """READs to ``sink``, and their decoded heads to ``o``; (tracker, requests that wait)."""
        config = self.config
        look = table.look_up(m, "read", requests)
        tracker = add(m, "tracker", OakenKvReads(config.reads))
        reader_of = OakenTokenReader if config.cache.kv.is_by_token else OakenKvReader
        reader = add(m, "reader", reader_of(config.reader))
        m.d.comb += [
            tracker.i.valid.eq(look.loaded),
            look.take.eq(tracker.i.ready),
            tracker.i.p.request.eq(_in_parts(m, config.cache.kv, look.request)),
            tracker.i.p.present.eq(look.present),
            tracker.i.p.thresholds.eq(look.thresholds),
            tracker.start.eq(starts.of(look.request.sequence)),
        ]
        link(m, tracker.request, sink)
        link(m, mmu.info, tracker.info)
        if config.tells:
            serve(m, tracker.head, (reader.head, self.begun), [Const(1)] * 2)
            head = tracker.head.p
            m.d.comb += [
                reader.head.p.eq(head),
                self.begun.p.tag.eq(head.tag),
                self.begun.p.tokens.eq(head.tokens),
            ]
        else:
            link(m, tracker.head, reader.head)
        link_members(m, mmu, reader, tuple(kind.name for kind in config.cache.kv.kinds))
        link(m, reader.o, self.o)
        link(m, reader.done, tracker.done)
        return tracker, _Waiting(m, "read", requests, config.queue + _HELD, look.take)

    def _control(self, m: Module, requests, table, gate: "_Gate", sink, own_ends):
        """OPEN, TRIM and FREE to ``sink``; THRESHOLDS and what is no request to ``own_ends``.

        Returns the queues of the tokens of TRIMs and of the parents of FORKs in flight, and whether
        a TRIM, FREE or FORK is offered. Without forks there is no second queue.
        """
        config = self.config
        request = requests.o.p
        status = Signal(4)
        end = own_ends.i.p
        sent = Signal()
        told = Signal()
        is_changing = Signal()
        m.d.comb += [
            Value.cast(sink.p).eq(request.as_value()[: REQUEST_LAYOUT.size]),
            end.tag.eq(request.tag),
            end.op.eq(request.op),
            end.status.eq(status),
            end.sequence.eq(request.sequence),
            sent.eq(sink.valid & sink.ready),
            told.eq(own_ends.i.valid & own_ends.i.ready),
            requests.o.ready.eq(sent | told),
        ]
        # An OPEN that is in flight counts as open: if it fails, others are.
        opened = Signal(_COUNT_BITS)
        m.d.sync += opened.eq(opened + (sent & (request.op == Op.OPEN)) - gate.closed)
        if config.cache.forks:
            # Its parent is open until then: a FREE of it ends later.
            with m.If(gate.forked):
                m.d.sync += opened.eq(opened + (sent & (request.op == Op.OPEN)) + 1)

        trims = queue(m, "trims", TOKEN_BITS, 2)
        m.d.comb += trims.i.p.eq(request.token)
        parents = queue(m, "parents", 8, 2) if config.cache.forks else None
        with m.If(requests.o.valid):
            with m.Switch(request.op):
                with m.Case(Op.OPEN):
                    m.d.comb += sink.valid.eq(1)
                with m.Case(Op.TRIM, Op.FREE):
                    m.d.comb += [
                        is_changing.eq(sink.valid),
                        sink.valid.eq(~gate.is_after & trims.i.ready & ~gate.is_split),
                        trims.i.valid.eq(sent & (request.op == Op.TRIM)),
                    ]
                if parents:
                    with m.Case(Op.FORK):
                        m.d.comb += [
                            is_changing.eq(sink.valid),
                            sink.valid.eq(~gate.is_after & parents.i.ready & ~gate.is_split),
                            parents.i.valid.eq(sent),
                            parents.i.p.eq(request.sequence),
                        ]
                with m.Case(Op.THRESHOLDS):
                    # While no sequence is open, only requests that will be refused can be waiting;
                    # none of them may be looked up with words that are being changed.
                    with m.If(request.layer >= config.cache.layers):
                        m.d.comb += [own_ends.i.valid.eq(1), status.eq(Status.BAD_REQUEST)]
                    with m.Elif(~_in_order(request.thresholds) | (opened != 0)):
                        m.d.comb += [own_ends.i.valid.eq(1), status.eq(Status.THRESHOLDS)]
                    with m.Elif(gate.is_quiet):
                        m.d.comb += own_ends.i.valid.eq(1)
                        with m.If(told):
                            table.write(m, request)
                with m.Default():
                    m.d.comb += [own_ends.i.valid.eq(1), status.eq(Status.BAD_REQUEST)]
        return trims, parents, is_changing


class _Gate(NamedTuple):
    """The facts about other requests that OPEN, TRIM, FREE and THRESHOLDS need to know."""

    is_after: Value  # an APPEND or READ from before the request at the front still waits
    is_quiet: Value  # no APPEND and no READ waits
    is_split: Value  # pieces of a READ are offered to the MMU
    closed: Value  # an OPEN has failed or a FREE has ended well
    forked: Value  # a FORK has ended well


class _Starts:
    """First token that TRIMs have left of each sequence; 0 where none is open."""

    def __init__(self, sequences: int):
        self.words = [Signal(TOKEN_BITS, name=f"start_{k}") for k in range(sequences)]

    def of(self, sequence):
        return Array(self.words)[sequence]

    def follow(self, m: Module, ended, token) -> None:
        """A request that ended well; ``token`` is that of the oldest TRIM."""
        for k, word in enumerate(self.words):
            with m.If(ended.sequence == k):
                with m.If((ended.op == Op.TRIM) & (token > word)):
                    m.d.sync += word.eq(token)
                with m.Elif(ended.op == Op.FREE):
                    m.d.sync += word.eq(0)

    def copy(self, m: Module, child, parent) -> None:
        """The start of ``parent`` is that of ``child`` too."""
        for k, word in enumerate(self.words):
            with m.If(child == k):
                m.d.sync += word.eq(self.of(parent))


class _Look:
    """A request at the head of its queue with its thresholds; ``take`` lets the next one in."""

    def __init__(self, name: str):
        self.loaded = Signal(name=f"{name}_loaded")
        self.take = Signal(name=f"{name}_take")
        self.request = Signal(REQUEST_LAYOUT, name=f"{name}_request", reset_less=True)
        self.present = Signal(name=f"{name}_present", reset_less=True)
        self.thresholds = Signal(THRESHOLD_LAYOUT, name=f"{name}_thresholds")


class _Waiting:
    """Counts requests of one kind that have not passed to the MMU (<= ``most``); does one pass?"""

    def __init__(self, m: Module, name: str, queue, most: int, passed):
        self.name = name
        self.count = Signal(range(most + 1), name=f"{name}s_waiting")
        self.passed = Signal(name=f"{name}_passed")
        m.d.comb += self.passed.eq(passed)
        m.d.sync += self.count.eq(self.count + (queue.i.valid & queue.i.ready) - self.passed)


class _Before:
    """``any``: a request waits that came before the one at the front of ``queue``.

    Each place of the queue counts, per kind, the requests that waited when its request came. A
    request that passes to the MMU lowers every count, until it is 0.
    """

    def __init__(self, m: Module, queue, depth: int, waiting):
        taken = Signal(name="control_taken")
        given = Signal(name="control_given")
        place = Signal(range(depth + 1), name="control_place")
        m.d.comb += [
            taken.eq(queue.o.valid & queue.o.ready),
            given.eq(queue.i.valid & queue.i.ready),
            place.eq(queue.level - taken),
        ]
        front = []
        for each in waiting:
            left = Signal.like(each.count, name=f"{each.name}s_left")
            m.d.comb += left.eq(each.count - each.passed)
            places = [
                Signal.like(each.count, name=f"{each.name}s_before_{k}") for k in range(depth)
            ]
            for k, counted in enumerate(places):
                follower = places[k + 1] if k + 1 < depth else 0
                moved = Signal.like(counted, name=f"{each.name}s_moved_{k}")
                m.d.comb += moved.eq(Mux(taken, follower, counted))
                m.d.sync += counted.eq(
                    Mux(given & (place == k), left, moved - (each.passed & (moved != 0)))
                )
            front.append(places[0] != 0)
        self.any = Cat(front).any()


class _Table:
    """Thresholds of every (layer, K or V), and which of them are there: a RAM for each reader."""

    def __init__(self, m: Module, layers: int, readers: Sequence[str]):
        self.layers = layers
        self.config = MemoryConfig(depth=2 * layers, width=THRESHOLD_LAYOUT.size)
        self.present = Signal(2 * layers, name="thresholds_present")
        self.rams = {
            name: add(m, f"{name}_thresholds_ram", Memory1R1W(self.config)) for name in readers
        }

    def _row(self, request):
        """Row of the request's thresholds, 0 for a layer that is not there."""
        row = Cat(request.kv, request.layer)[: self.config.address_bits]
        return Mux(request.layer < self.layers, row, 0)

    def look_up(self, m: Module, name: str, requests) -> _Look:
        look = _Look(name)
        ram = self.rams[name]
        request = requests.o.p
        row = Signal(self.config.address_bits, name=f"{name}_row")
        m.d.comb += [
            row.eq(self._row(request)),
            requests.o.ready.eq(~look.loaded | look.take),
            ram.read_en.eq(requests.o.valid & requests.o.ready),
            ram.read_addr.eq(row),
            look.thresholds.eq(ram.read_data),
        ]
        with m.If(requests.o.ready):
            m.d.sync += look.loaded.eq(requests.o.valid)
        with m.If(requests.o.valid & requests.o.ready):
            m.d.sync += [
                look.request.eq(request),
                look.present.eq((request.layer < self.layers) & self.present.bit_select(row, 1)),
            ]
        return look

    def write(self, m: Module, request) -> None:
        row = self._row(request)
        m.d.sync += self.present.bit_select(row, 1).eq(1)
        for ram in self.rams.values():
            m.d.comb += [
                ram.write_en.eq(1),
                ram.write_addr.eq(row),
                ram.write_data.eq(request.thresholds),
            ]


def _in_parts(m: Module, kv: KvShape, request):
    """A READ as the MMU takes it: ``head`` and ``heads`` are parts; none if they are no parts."""
    if kv.part_heads == 1:
        return request
    parts = Signal(REQUEST_LAYOUT, name="read_in_parts")
    first = Signal(8, name="read_first_part")
    count = Signal(8, name="read_parts")
    known = Signal(name="read_of_whole_parts")
    m.d.comb += [
        parts.eq(request),
        parts.head.eq(first),
        parts.heads.eq(Mux(known, count, 0)),
    ]
    with m.Switch(request.head):
        for part in range(kv.parts):
            with m.Case(part * kv.part_heads):
                m.d.comb += [first.eq(part), known.eq(1)]
    with m.Switch(request.heads):
        for part in range(1, kv.parts + 1):
            with m.Case(part * kv.part_heads):
                m.d.comb += count.eq(part)
    return parts


def _in_order(thresholds):
    """OUTER_LOW < INNER_LOW <= 0 <= INNER_HIGH < OUTER_HIGH, all finite; -0 is 0."""
    signs = [thresholds[which][-1] for which in Threshold]
    sizes = [thresholds[which][:-1] for which in Threshold]
    finite = [~size[10:].all() for size in sizes]
    low, inner_low, inner_high, high = (sizes[which] for which in Threshold)
    below = signs[Threshold.OUTER_LOW] & (signs[Threshold.INNER_LOW] | (inner_low == 0))
    above = ~signs[Threshold.OUTER_HIGH] & (~signs[Threshold.INNER_HIGH] | (inner_high == 0))
    return Cat(*finite, below, above, low > inner_low, high > inner_high).all()
