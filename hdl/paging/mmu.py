"""Paged memory management of the KV cache (docs/blocks/paging_mmu.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded, flag, nested, power_of_two
from golden.paging import timing
from golden.paging.config import CacheConfig, RecordKind, VectorRecords
from golden.paging.format import Op, PageOp, Status
from golden.timing import Timing
from hdl.axi.signature import Axi4, axi4, pass_channels
from hdl.bits import after
from hdl.block import Block
from hdl.children import add
from hdl.kinds import BYTES, NUMBER, index_of
from hdl.paging.layouts import (
    BYTES_BITS,
    REQUEST_LAYOUT,
    STATUS_LAYOUT,
    info_layout,
    word_layout,
)
from hdl.paging.mmu_control import PagingMmuControl, PagingMmuControlConfig
from hdl.paging.mmu_copier import PagingMmuCopier, PagingMmuCopierConfig
from hdl.paging.mmu_reader import Outlet, PagingMmuReader, PagingMmuReaderConfig, outlets
from hdl.paging.mmu_writer import PagingMmuWriter, PagingMmuWriterConfig
from hdl.paging.page_table import (
    PAGE_COMMAND_LAYOUT,
    PAGE_RESPONSE_LAYOUT,
    PagingPageTable,
    records,
)
from hdl.ports import In, Out, Payload
from hdl.stream.arbiter import arbiter
from hdl.stream.link import link, link_members
from hdl.stream.queue import Queue, queue
from hdl.stream.skid import skid

CHANGES = 4  # TRIMs, FREEs and FORKs that are accepted and not yet complete
KINDS_MAX = 16  # of records: each has a stream
# Names of ports and parts of an MMU or of its reader, which no kind of record may have.
_MEMBERS = ("request", "status", "base", "free_pages", "idle", "record", "w", "info", "axi", "i",
            "clk", "rst", "config", "elaborate", "texts", "kinds", "commands",
            "registers", "copy_burst", "copy_word")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuNumbers(Config):
    """Capacity of the cache, and widths and queues between memory and the engines.

    A subclass adds ``beats``: the words of the queue in front of each kind's stream.
    """

    cache: CacheConfig = nested(CacheConfig, "what is kept")
    data_bits: int = power_of_two(256, 64, 1024, "bits of a memory word")
    address_bits: int = bounded(40, 32, 64, "bits of a byte address")
    burst_beats: int = bounded(64, 1, 256, "words of the longest burst")
    outstanding: int = bounded(16, 1, 16, "bursts read ahead")
    reads: int = bounded(8, 1, 16, "READs under way")
    appends: int = bounded(4, 1, 16, "APPENDs accepted and not yet complete")

    kv_apart: ClassVar[bool] = False  # a stream serves READs of K and of V

    def __post_init__(self) -> None:
        self._check_beats()
        names = [each.name for each in outlets(self.cache.kv, self.kv_apart)]
        if len(names) > KINDS_MAX:
            self._refuse("cache", f"of at most {KINDS_MAX} streams of records")
        if taken := [name for name in names if name in _MEMBERS or hasattr(Block, name)]:
            self._refuse("cache", f"of kinds not named {taken[0]!r}, a port or part of each block")
        if taken := [name for name in names if "__" in name]:
            self._refuse("cache", f"of kinds whose names have no '__', not {taken[0]!r}")
        if self.cache.pages * self.cache.page_bytes > 1 << self.address_bits:
            bits = (self.cache.pages * self.cache.page_bytes - 1).bit_length()
            self._refuse("address_bits", f"at least {bits} for the cache's pages")

    def _check_beats(self) -> None:
        raise NotImplementedError

    @property
    def word_bytes(self) -> int:
        return self.data_bits // 8

    @property
    def _shape(self) -> dict:
        return {
            "kv": self.cache.kv,
            "data_bits": self.data_bits,
            "address_bits": self.address_bits,
            "page_bytes": self.cache.page_bytes,
            "burst_beats": self.burst_beats,
        }

    @property
    def reader(self) -> PagingMmuReaderConfig:
        return PagingMmuReaderConfig(
            **self._shape,
            outstanding=self.outstanding,
            reads=self.reads,
            beats=self.beats,
            kv_apart=self.kv_apart,
            forks=self.cache.forks,
        )

    @property
    def writer(self) -> PagingMmuWriterConfig:
        return PagingMmuWriterConfig(**self._shape, appends=self.appends, forks=self.cache.forks)

    @property
    def copier(self) -> PagingMmuCopierConfig:
        """Two bursts of a page are read ahead."""
        reader = self.reader.channel(self.cache.kv.kinds[0])
        depth = max(4, 2 * min(self.burst_beats, reader.boundary_words))
        channel = dataclasses.replace(reader, depth=depth, reads=1, forks=False)
        return PagingMmuCopierConfig(channel=channel, port=self.writer.port)

    @property
    def control(self) -> PagingMmuControlConfig:
        cache = self.cache
        return PagingMmuControlConfig(
            sequences=cache.sequences,
            layers=cache.layers,
            slots=cache.kv.slots,
            max_tokens=cache.max_tokens,
            waiting=CHANGES,
            forks=cache.forks,
        )

    @property
    def axi_signature(self) -> Axi4:
        return axi4(self.address_bits, self.data_bits)

    @property
    def word_layout(self) -> data.StructLayout:
        return word_layout(self.data_bits)

    @property
    def info_layout(self) -> data.StructLayout:
        return info_layout(self.cache.kv)

    @property
    def record_layout(self) -> data.StructLayout:
        return Payload(bytes=(BYTES_BITS, "bytes of the record, 0: none", NUMBER))

    @property
    def w_layout(self) -> data.StructLayout:
        return Payload(
            data=(self.data_bits, "bytes of the record, the first in the low bits", BYTES),
            last=(1, "final word of the record"),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuConfig(PagingMmuNumbers):
    """An MMU of records of any kinds."""

    # Words of the queue in front of each kind's stream, in order of the kinds, 4..4096.
    beats: tuple[int, ...] = (256, 128, 64)
    kv_apart: bool = flag(False, "READs of K and those of V have streams of their own")

    def _check_beats(self) -> None:
        kinds = len(self.cache.kv.kinds)
        is_tuple = isinstance(self.beats, tuple) and len(self.beats) == kinds
        if not is_tuple or not all(type(n) is int and 4 <= n <= 4096 for n in self.beats):
            self._refuse("beats", f"{kinds} numbers in 4..4096, one for each kind of record")


class PagingMmu(Block):
    """A paged cache of records on one AXI4 port: requests in, statuses and words out.

    OPEN, TRIM and FREE change what sequences there are. APPEND writes the records of one token's K
    or V vector, all or none. READ gives the records of many tokens, each kind on a stream of its
    own. One status per request. The MMU carries out requests of one kind in order, and different
    kinds at the same time. The kinds are OPEN and what is no request; APPEND; READ; TRIM and FREE.
    A request sees what was committed before it was dispatched.

    - APPEND: all writes are answered before its records count, and before its pages go back if it
      fails. ``record`` and ``w`` are taken for every APPEND, refused or not; 0 bytes have no words.
    - READ: the MMU requests a burst only when its words have room, so no consumer stops another's
      words. Its status comes with the last word; words with errors come in full number.
    - FORK, where the cache has ``forks``, gives a new sequence the tokens of another. They have its
      full pages in common. The last page of each stream is copied, where it is not full. A child
      has no children itself.
    - TRIM, FREE and FORK wait for the READs and APPENDs of their sequence. From its dispatch on, a
      FREE makes later requests for the sequence SEQUENCE_UNKNOWN; during a TRIM or FORK they wait.
    - ``status`` may stall for ever: accepted READs still get their words.

    1 word per cycle when READs follow one another and ``burst_beats * outstanding`` and the queues
    cover the memory's latency. ``request.ready`` is low after reset until the page table is ready.
    No combinational path leads from an input to an output.
    ``base + pages * page_bytes`` above ``2**address_bits`` wraps. A reset with bursts in flight
    needs a reset of the bus too.
    Source: Oaken, section 5.2. Golden: golden.paging.mmu.Mmu (one request at a time).
    """

    golden = "golden.paging.mmu:Mmu"
    reference = "tests/paging/test_mmu.py: test_what_was_appended_is_read"
    default = PagingMmuConfig()
    configs: ClassVar = {
        # Few pages and short queues: everything that can run out or full does so often.
        "soak": PagingMmuConfig(
            cache=CacheConfig(
                kv=records(2, 8, (1, 17)),
                sequences=6,
                layers=2,
                pages=96,
                page_bytes=256,
                max_tokens=64,
            ),
            data_bits=64,
            address_bits=32,
            burst_beats=8,
            outstanding=3,
            reads=3,
            appends=2,
            beats=(8, 8, 4),
        ),
        "smollm2": PagingMmuConfig(cache=PagingPageTable.configs["smollm2"]),
        "forks": PagingMmuConfig(
            cache=CacheConfig(
                kv=records(2, 8, (1, 17)),
                sequences=6,
                layers=1,
                pages=96,
                page_bytes=256,
                max_tokens=64,
                forks=True,
            ),
            data_bits=64,
            address_bits=32,
            burst_beats=8,
            outstanding=3,
            reads=3,
            appends=2,
            beats=(8, 8, 4),
        ),
        # Llama-2-7B in MILLION's codes, 4 bits of each element: no kind but one.
        "million": PagingMmuConfig(
            cache=CacheConfig(
                kv=VectorRecords(
                    heads=32,
                    per_head=(RecordKind(name="codes", least=64, most=64),),
                    per_vector=(),
                ),
            ),
            beats=(256,),
        ),
    }

    def __init__(self, config: PagingMmuNumbers):
        kv = config.cache.kv
        word = stream.Signature(config.word_layout)
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(REQUEST_LAYOUT),
                    "What to do; fields that an op does not use are ignored.",
                ),
                "status": Out(
                    stream.Signature(STATUS_LAYOUT),
                    "How a request ended; requests of one kind end in order.",
                ),
                "base": In(
                    config.address_bits,
                    "Byte address of page 0, a multiple of page_bytes; constant while running.",
                    index_of("bytes"),
                ),
                "free_pages": Out(range(config.cache.pages + 1), "Pages that no stream owns."),
                "idle": Out(1, "Nothing is under way."),
                "record": In(
                    stream.Signature(config.record_layout),
                    "Size of the next record of an APPEND, in order of slots.",
                ),
                "w": In(
                    stream.Signature(config.w_layout),
                    "The records' bytes, packed; last on each record's final word.",
                ),
                "info": Out(
                    stream.Signature(config.info_layout),
                    "What the next transfers of each head are.",
                ),
                **{
                    each.name: Out(word, _meaning(each, each.kind in kv.per_head))
                    for each in outlets(kv, config.kv_apart)
                },
                "axi": Out(config.axi_signature, "AXI4 manager: the memory that holds the pages."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.mmu(self.config.cache.kv, self.config.beats)

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self.config
        parts = _Parts(
            table=add(m, "table", PagingPageTable(config.cache)),
            reader=add(m, "reader", PagingMmuReader(config.reader)),
            writer=add(m, "writer", PagingMmuWriter(config.writer)),
            control=add(m, "control", PagingMmuControl(config.control)),
            opened=queue(m, "opened", STATUS_LAYOUT, 2),
            open_command=stream.Signature(PAGE_COMMAND_LAYOUT).create(),
            open_response=stream.Signature(PAGE_RESPONSE_LAYOUT).create(),
        )
        m.d.comb += [
            self.free_pages.eq(parts.table.free_pages),
            parts.reader.base.eq(self.base),
            parts.writer.base.eq(self.base),
        ]
        names = (each.name for each in config.reader.outlets)
        link_members(m, parts.reader, self, ("info", *names))
        link_members(m, self, parts.writer, ("record", "w"))
        pass_channels(m, parts.reader.axi, self.axi)
        pass_channels(m, parts.writer.axi, self.axi)
        if config.cache.forks:
            self._elaborate_copies(m, parts)
        is_set_up = self._elaborate_table(m, parts)
        is_waiting = self._elaborate_status(m, parts)
        is_dispatching = self._elaborate_dispatch(m, parts, is_set_up)
        is_under_way = Signal()
        m.d.comb += [
            is_under_way.eq(is_dispatching | parts.opened.o.valid | is_waiting | self.info.valid),
            self.idle.eq(is_set_up & ~is_under_way),
        ]
        return m

    def _elaborate_copies(self, m: Module, parts: "_Parts") -> None:
        """Pages that a FORK copies, through the reader's port and the writer's."""
        reader, writer, control = parts.reader, parts.writer, parts.control
        copier = add(m, "copier", PagingMmuCopier(self.config.copier))
        link(m, control.copy, copier.i)
        link(m, copier.burst, reader.copy_burst)
        link(m, reader.copy_word, copier.word)
        link(m, copier.command, writer.copy)
        link(m, copier.w, writer.copy_w)
        m.d.comb += [
            copier.base.eq(self.base),
            copier.is_writing.eq(writer.is_copying),
            copier.copied.eq(writer.copied),
            copier.forget.eq(control.forget),
            control.is_copied.eq(copier.is_idle),
            control.copied.eq(copier.worst),
        ]

    def _elaborate_table(self, m: Module, parts: "_Parts"):
        """Commands of all parts in turn to the page table; returns whether it is ready."""
        table, reader = parts.table, parts.reader
        clients = [
            (parts.open_command, parts.open_response),
            (parts.control.command, parts.control.response),
            (parts.writer.command, parts.writer.response),
            *zip(reader.command, reader.response, strict=True),
        ]
        turns = arbiter(m, "turns", PAGE_COMMAND_LAYOUT, len(clients))
        owners = queue(m, "owners", len(turns.source), 2)
        m.d.comb += [
            table.command.valid.eq(turns.o.valid & owners.i.ready),
            table.command.p.eq(turns.o.p),
            turns.o.ready.eq(table.command.ready & owners.i.ready),
            owners.i.valid.eq(turns.o.valid & table.command.ready),
            owners.i.p.eq(turns.source),
            # Who has asked waits for nothing but the answer.
            table.response.ready.eq(owners.o.valid),
            owners.o.ready.eq(table.response.valid),
        ]
        for k, (command, response) in enumerate(clients):
            link(m, command, turns.i[k])
            m.d.comb += [
                response.valid.eq(table.response.valid & owners.o.valid & (owners.o.p == k)),
                response.payload.eq(table.response.payload),
            ]
        is_set_up = Signal()
        with m.If(table.command.ready):
            m.d.sync += is_set_up.eq(1)
        return is_set_up

    def _elaborate_status(self, m: Module, parts: "_Parts"):
        """Statuses of all kinds in turn; returns whether one waits at the exit."""
        sources = [parts.reader.status, parts.writer.status, parts.control.status, parts.opened.o]
        turns = arbiter(m, "status_turns", STATUS_LAYOUT, len(sources))
        for source, sink in zip(sources, turns.i, strict=True):
            link(m, source, sink)
        waiting = skid(m, "status_exit", STATUS_LAYOUT)
        link(m, turns.o, waiting.i)
        link(m, waiting.o, self.status)
        return waiting.o.valid

    def _elaborate_dispatch(self, m: Module, parts: "_Parts", is_set_up):
        """Requests in order to those who carry them out; returns whether one is under way."""
        config = self.config
        entry = skid(m, "entry", REQUEST_LAYOUT)
        m.d.comb += [
            entry.i.valid.eq(self.request.valid & is_set_up),
            entry.i.p.eq(self.request.p),
            self.request.ready.eq(entry.i.ready & is_set_up),
        ]
        request = entry.o.p

        # Who is under way, and which of them a later request must know of.
        reads = _Ring(m, "reads", config.reads, parts.reader.status)
        appends = _Ring(m, "appends", config.appends, parts.writer.status)
        changes = _Ring(m, "changes", CHANGES, parts.control.status)
        busy = parts.control.next_sequence
        m.d.comb += parts.control.is_busy.eq(reads.has(busy) | appends.has(busy))

        # Sequences that requests may name: opened, and no FREE of them was accepted.
        known = Signal(config.cache.sequences)
        refusal = Signal(4)
        is_good = Signal()
        may = Signal()
        is_held = self._elaborate_refusal(m, request, known, refusal, changes)
        m.d.comb += [is_good.eq(refusal == Status.OK), may.eq(entry.o.valid & ~is_held)]
        targets = [
            (reads, parts.reader.i, (Op.READ,)),
            (appends, parts.writer.i, (Op.APPEND,)),
            (changes, parts.control.i, self._changing),
        ]
        is_here, given = self._elaborate_targets(m, targets, request, is_good, may)
        m.d.comb += [sink.p.status.eq(refusal) for _, sink, _ in targets]
        m.d.comb += parts.control.i.p.is_free.eq(request.op == Op.FREE)
        if config.cache.forks:
            m.d.comb += parts.control.i.p.is_fork.eq(request.op == Op.FORK)
        opens, open_given = self._elaborate_open(m, parts, request, may & is_here)
        m.d.comb += entry.o.ready.eq(given | open_given)
        frees = changes.enters & is_good & (request.op == Op.FREE)
        ended = parts.control.status
        forked = ended.valid & ended.ready & (ended.p.op == Op.FORK) & (ended.p.status == Status.OK)
        for sequence in range(config.cache.sequences):
            is_new = opens & (parts.open_response.p.sequence == sequence)
            if config.cache.forks:
                is_new = is_new | (forked & (parts.control.status.p.sequence == sequence))
            with m.If(is_new):
                m.d.sync += known[sequence].eq(1)
            with m.Elif(frees & (request.sequence == sequence)):
                m.d.sync += known[sequence].eq(0)
        return entry.o.valid | reads.is_used | appends.is_used | changes.is_used

    @property
    def _changing(self) -> tuple[Op, ...]:
        """Requests that change a whole sequence; they are carried out in order."""
        return (Op.TRIM, Op.FREE, Op.FORK) if self.config.cache.forks else (Op.TRIM, Op.FREE)

    def _elaborate_refusal(self, m: Module, request, known, refusal, changes: "_Ring"):
        """Drive ``refusal`` of a request; returns whether it waits for a TRIM in flight."""
        cache, op = self.config.cache, request.op
        is_known = Signal()
        is_named = Signal()
        has_shape = Signal()
        is_trimming = Signal()
        head_end = Signal(9)
        m.d.comb += [
            head_end.eq(request.head + request.heads),
            is_known.eq(
                (request.sequence < cache.sequences)
                & known.bit_select(request.sequence[: (cache.sequences - 1).bit_length()], 1)
                if cache.sequences > 1
                else (request.sequence == 0) & known
            ),
            is_trimming.eq(changes.has(request.sequence)),
        ]
        with m.Switch(op):
            with m.Case(Op.APPEND, Op.READ):
                m.d.comb += has_shape.eq(
                    (request.layer < cache.layers)
                    & ((op == Op.APPEND) | ((request.heads != 0) & (head_end <= cache.kv.parts)))
                )
                m.d.comb += is_named.eq(has_shape)
            with m.Case(*self._changing):
                m.d.comb += [has_shape.eq(1), is_named.eq(1)]
        with m.If(~has_shape):
            m.d.comb += refusal.eq(Status.BAD_REQUEST)
        with m.Elif(~is_known):
            m.d.comb += refusal.eq(Status.SEQUENCE_UNKNOWN)
        if cache.forks:
            # Changes come one after the other in any case. A FORK takes long: others shall go on.
            is_change = Cat(op == each for each in self._changing).any()
            return is_named & is_known & is_trimming & ~is_change
        return is_named & is_known & is_trimming

    def _elaborate_targets(self, m: Module, targets, request, is_good, may):
        """APPEND, READ, TRIM and FREE to their parts; returns (none of them, one is taken)."""
        op = request.op
        is_here = Signal()
        given = Signal()
        m.d.comb += is_here.eq(1)
        for ring, sink, ops in targets:
            is_its = Signal(name=f"{ring.name}_is_its")
            m.d.comb += [
                is_its.eq(Cat(op == each for each in ops).any()),
                sink.valid.eq(may & is_its & ring.has_room),
                ring.enters.eq(sink.valid & sink.ready),
                ring.entering.eq(request.sequence),
                # A FREE stops later requests by `known`, a TRIM by its place among `changes`.
                ring.is_live.eq(is_good & (op != Op.FREE)),
            ]
            for name in sink.p.shape().members:
                if name in REQUEST_LAYOUT.members:
                    m.d.comb += sink.p[name].eq(request[name])
            with m.If(is_its):
                m.d.comb += [is_here.eq(0), given.eq(ring.enters)]
        return is_here, given

    def _elaborate_open(self, m: Module, parts: "_Parts", request, may):
        """OPEN, and what is no request at all; returns (a sequence opens, the request is taken)."""
        opening = Signal()
        open_given = Signal()
        opened, response = parts.opened.i, parts.open_response
        m.d.comb += [
            parts.open_command.p.op.eq(PageOp.OPEN),
            opened.p.tag.eq(request.tag),
            opened.p.op.eq(request.op),
            opened.p.status.eq(Mux(opening, response.p.status, Status.BAD_REQUEST)),
            opened.p.sequence.eq(Mux(opening, response.p.sequence, request.sequence)),
        ]
        with m.If(opening):
            # The answer waits for nothing: OPEN is asked only when its status has room.
            m.d.comb += [opened.valid.eq(response.valid), open_given.eq(response.valid)]
            with m.If(response.valid):
                m.d.sync += opening.eq(0)
        with m.Elif(may & opened.ready):
            with m.If(request.op == Op.OPEN):
                m.d.comb += parts.open_command.valid.eq(1)
                with m.If(parts.open_command.ready):
                    m.d.sync += opening.eq(1)
            with m.Else():
                m.d.comb += [opened.valid.eq(1), open_given.eq(1)]
        return opening & response.valid & (response.p.status == Status.OK), open_given


def _meaning(outlet: Outlet, is_per_head: bool) -> str:
    """The text of an outlet's stream."""
    kind = outlet.kind
    of = "" if outlet.kv is None else f" of {outlet.kv.name}"
    whose = f"{kind.name.capitalize()} records{of} of {'one head' if is_per_head else 'a READ'}"
    if kind.is_fixed:
        return f"{whose}: bytes first..end - 1 of data."
    return f"{whose}, of every token from skip before on."


@dataclasses.dataclass(frozen=True)
class _Parts:
    """The parts of an MMU, and OPEN's own way to the page table."""

    table: PagingPageTable
    reader: PagingMmuReader
    writer: PagingMmuWriter
    control: PagingMmuControl
    opened: Queue  # statuses of OPEN and of what is no request
    open_command: stream.Interface
    open_response: stream.Interface


class _Ring:
    """Requests of one kind in flight, in order: which sequence each is of.

    One enters with ``enters``; the oldest leaves with a transfer on ``status``.
    """

    def __init__(self, m: Module, name: str, depth: int, status):
        self.name = name
        self.enters = Signal(name=f"{name}_enters")
        self.is_live = Signal(name=f"{name}_is_live")
        self.entering = Signal(8, name=f"{name}_entering")
        self.has_room = Signal(name=f"{name}_room")
        self.is_used = Signal(name=f"{name}_used")
        index = range(max(depth, 2))
        head = Signal(index, name=f"{name}_head")
        tail = Signal(index, name=f"{name}_tail")
        level = Signal(range(depth + 1), name=f"{name}_level")
        self._live = [Signal(name=f"{name}_live_{k}") for k in range(depth)]
        self._sequence = [
            Signal(8, name=f"{name}_sequence_{k}", reset_less=True) for k in range(depth)
        ]
        leaves = Signal(name=f"{name}_leaves")
        m.d.comb += [
            leaves.eq(status.valid & status.ready),
            self.has_room.eq(level != depth),
            self.is_used.eq(level != 0),
        ]
        m.d.sync += level.eq(level + self.enters - leaves)
        for pointer, steps in ((head, leaves), (tail, self.enters)):
            with m.If(steps):
                m.d.sync += pointer.eq(after(pointer, depth))
        for k in range(depth):
            with m.If(self.enters & (tail == k)):
                m.d.sync += [
                    self._live[k].eq(self.is_live),
                    self._sequence[k].eq(self.entering),
                ]
            with m.Elif(leaves & (head == k)):
                m.d.sync += self._live[k].eq(0)

    def has(self, sequence):
        """Whether one of ``sequence`` that is live is in flight."""
        return Cat(
            live & (each == sequence) for live, each in zip(self._live, self._sequence, strict=True)
        ).any()
