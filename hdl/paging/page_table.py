"""The page table of the KV cache (docs/blocks/paging_page_table.md)."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.utils import bits_for

from golden.paging.config import CacheConfig, RecordKind, RecordShape, VectorRecords
from golden.paging.format import Kv, PageOp, Status
from golden.paging.timing import page_table_cycles
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.kinds import NUMBER, index_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.paging.layouts import CLOSING, OPEN, TOKEN_BITS, VACANT
from hdl.paging.page_forks import Forks, forks, sharers
from hdl.ports import In, Out, Payload

PAGE_BITS = 20  # pages 0..2**20 - 1

# Fixed widths: out-of-range values must arrive. Fields in the order of golden.paging.pages.
PAGE_COMMAND_LAYOUT = Payload(
    op=(4, "golden.paging.format.PageOp", PageOp),
    sequence=(8, "number of the sequence", index_of("sequences")),
    layer=(8, "layer of the model", index_of("layers")),
    kv=(1, "0: K, 1: V", Kv),
    slot=(9, "stream of the vector", index_of("streams")),
    token=(TOKEN_BITS, "position", NUMBER),
    bytes=(12, "EXTEND: bytes of the record", NUMBER),
    page=(PAGE_BITS, "NEXT: page before the one wanted", index_of("pages")),
)
PAGE_RESPONSE_LAYOUT = Payload(
    status=(4, "golden.paging.format.Status", Status),
    page=(PAGE_BITS, "first page of the bytes", index_of("pages")),
    page2=(PAGE_BITS, "EXTEND: page in which the record continues", index_of("pages")),
    offset=(17, "first byte within the page", index_of("bytes")),
    bytes=(32, "EXTEND: bytes in page; READ: all bytes", NUMBER),
    skip=(
        TOKEN_BITS,
        "READ: tokens, or records before the first of them; SET_START: the start",
        NUMBER,
    ),
    sequence=(8, "OPEN: the new sequence", index_of("sequences")),
)


class _Words:
    """Words of the tables of one configuration."""

    def __init__(self, config: CacheConfig):
        page = bits_for(config.pages - 1)
        token = bits_for(config.max_tokens)
        longest = config.max_tokens * config.kv.record_bytes_max
        self.info = data.StructLayout(
            {
                "first_token": token,  # whose record is the first that starts in the page
                "offset": bits_for(config.kv.record_bytes_max - 1),  # byte where it starts
            }
        )
        # Of a child: the last page that it has from its parent, if any, and the page after it.
        of_child = {"has_tip": 1, "tip": page, "own": page} if config.forks else {}
        self.entry = data.StructLayout(
            {
                "first": page,
                "last": page,
                "pages": bits_for(config.pages),
                # From the first record that starts in page ``first`` on.
                "bytes": bits_for(min(longest, config.pages * config.page_bytes)),
                "end": bits_for(config.page_bytes),  # bytes used in ``last``; no pages: all
                **of_child,
            }
        )
        self.log = data.StructLayout(
            {"taken": 1, "page": page, "bytes": bits_for(config.kv.record_bytes_max)}
        )
        self.page, self.token = page, token


class _Kinds:
    """Chooses by the kind of ``slot``: its low bits, or the number of a vector's own record.

    A selection of a value is kept as small as the kinds allow: two equal values need no choice.
    """

    def __init__(self, shape: RecordShape, slot):
        self.shape, self.slot = shape, slot
        self.low_bits = len(shape.per_head).bit_length() - 1
        self.is_variable = self._is_variable()

    def _is_variable(self):
        inner = self.shape.per_head
        variable = [k for k, kind in enumerate(inner) if not kind.is_fixed]
        if not variable:
            value = Const(0)
        elif len(variable) == len(inner):
            value = Const(1)
        else:
            value = Cat(self._is_low(k) for k in variable).any() if variable[1:] else (
                self._is_low(variable[0])
            )  # fmt: skip
        first = self.shape.parts * len(inner)
        for k, kind in enumerate(self.shape.per_vector):
            if kind.is_fixed == ((first + k) % len(inner) in variable):
                value = Mux(self.slot == first + k, int(not kind.is_fixed), value)
        return value

    def _is_low(self, k: int):
        if self.low_bits == 1:
            return self.slot[0] if k else ~self.slot[0]
        return self.slot[: self.low_bits] == k

    def select(self, value_of, wanted):
        """``value_of(kind)`` of the slot's kind, any value where ``wanted(kind)`` is false."""
        inner = [(k, kind) for k, kind in enumerate(self.shape.per_head) if wanted(kind)]
        value = None
        for k, kind in reversed(inner):
            value = value_of(kind) if value is None else Mux(self._is_low(k), value_of(kind), value)
        first = self.shape.parts * len(self.shape.per_head)
        for k, kind in enumerate(self.shape.per_vector):
            if wanted(kind):
                own = value_of(kind)
                value = own if value is None else Mux(self.slot == first + k, own, value)
        return Const(0) if value is None else value

    def fixed(self, value_of):
        return self.select(value_of, lambda kind: kind.is_fixed)

    def is_size(self, size):
        """Whether a record of the slot may have ``size`` bytes."""
        is_exact = size == self.fixed(lambda kind: kind.most)
        if all(kind.is_fixed for kind in self.shape.kinds):
            return is_exact
        least = self.select(lambda kind: kind.least, lambda kind: not kind.is_fixed)
        most = self.select(lambda kind: kind.most, lambda kind: not kind.is_fixed)
        return Mux(self.is_variable, (size >= least) & (size <= most), is_exact)


def records(heads: int, dense: int, sparse: tuple[int, int]) -> VectorRecords:
    """A fixed and a variable record per head, a fixed one per vector; sizes in bytes."""
    return VectorRecords(
        heads=heads,
        per_head=(
            RecordKind(name="dense", least=dense, most=dense),
            RecordKind(name="sparse", least=sparse[0], most=sparse[1]),
        ),
    )


class PagingPageTable(Block):
    """``response`` = golden.paging.pages.PageTable's answer to each ``command``, in order.

    The table stores which pages hold the records of which stream, (sequence, layer, K or V, slot).
    It has chains of pages, a stack of free pages, and tokens per vector. One transaction appends a
    record to all slots of a vector or to none. Commands, statuses and their order: PageTable. Any
    command is answered; one that is refused changes nothing. Unused fields of an answer are 0.

    One command at a time. Cycles from its transfer to its answer:

        NEXT, OPEN, CLOSE, VACATE, SET_START     2
        BEGIN, EXTEND, TRIM_CHECK, FREE_STREAM   3
        READ                                     5
        TRIM_STREAM                              at most 5, and 2 more per page that goes back
        COMMIT                                   2 + slots
        ABORT                                    2, and 1 per slot extended

    With ``forks`` several sequences may have a page. It goes back when the last one lets it go:

        FORK, FORK_END                           2
        NEXT                                     3
        FREE_STREAM                              3, and 1 per page of the stream
        FORK_STREAM                              3, and 1 per page that is shared, at least 1

    The next command is taken in the cycle of the answer, before it has been taken. After reset
    ``command.ready`` is low for max(pages, streams) cycles, in which all tables are written.
    No combinational path leads from an input to an output.
    Source: Oaken, section 5.2. Golden: golden.paging.pages.PageTable.
    """

    golden = "golden.paging.pages:PageTable"
    reference = "tests/paging/test_pages.py: test_long_lives"
    default = CacheConfig()
    configs: ClassVar = {
        "smollm2": CacheConfig(kv=records(3, 32, (1, 65)), layers=30, pages=8192),
        "small": CacheConfig(
            kv=records(1, 8, (1, 17)),
            sequences=3,
            layers=1,
            pages=8,
            page_bytes=256,
            max_tokens=40,
        ),
        "forks": CacheConfig(
            kv=records(1, 40, (1, 60)),
            sequences=5,
            layers=1,
            pages=60,
            page_bytes=256,
            max_tokens=60,
            forks=True,
        ),
    }

    def __init__(self, config: CacheConfig):
        super().__init__(
            config,
            {
                "command": In(
                    stream.Signature(PAGE_COMMAND_LAYOUT),
                    "One operation on the page table; op: golden.paging.format.PageOp.",
                ),
                "response": Out(
                    stream.Signature(PAGE_RESPONSE_LAYOUT),
                    "Its answer; status: golden.paging.format.Status.",
                ),
                "free_pages": Out(range(config.pages + 1), "Pages on the free list."),
            },
        )

    @property
    def timing(self) -> Timing:
        """The longest command is COMMIT, ABORT, or a TRIM_STREAM of all pages but two.

        The next command comes with the answer.
        """
        slots = self.config.kv.slots
        pages = self.config.pages
        longest = max(
            page_table_cycles("COMMIT", slots),
            page_table_cycles("ABORT", slots, extended=slots),
            page_table_cycles("TRIM_STREAM", slots, freed=max(pages - 2, 0)),
            page_table_cycles("FREE_STREAM", slots, walked=pages if self.config.forks else None),
        )
        return Timing(
            latency=2,
            latency_max=longest,
            interval=Fraction(2),
            start="command",
            end="response",
            unit="command",
            words=(("command", 1), ("response", 1)),
        )

    @property
    def memories(self) -> dict[str, MemoryConfig]:
        """The tables by name."""
        config, words = self.config, _Words(self.config)
        return {
            "chain": MemoryConfig(depth=config.pages, width=words.page),
            "infos": MemoryConfig(depth=config.pages, width=words.info.size),
            "entries": MemoryConfig(depth=config.streams, width=words.entry.size),
            "tokens": MemoryConfig(depth=config.vectors, width=words.token),
            "log": MemoryConfig(depth=config.kv.slots, width=words.log.size),
            **({"sharers": sharers(config)} if config.forks else {}),
        }

    def elaborate(self, platform) -> Module:
        m = Module()
        t = _machine(m, self)
        with m.FSM(name="step"):
            self._write_tables(m, t)
            self._idle(m, t)
            self._decode(m, t)
            self._trim_check(m, t)
            self._begin(m, t)
            if t.forks:
                t.forks.next_page(m, t)
                t.forks.free_stream(m, t)
                t.forks.fork_stream(m, t)
            else:
                self._free_stream(m, t)
            self._extend(m, t)
            self._commit(m, t)
            self._abort(m, t)
            self._read(m, t)
            self._trim_stream(m, t)
        return m

    def _write_tables(self, m: Module, t: "_Machine") -> None:
        config, rams = t.config, t.rams
        with m.State("WRITE_TABLES"):
            at = Signal(range(max(config.pages, config.streams)))
            m.d.sync += at.eq(at + 1)
            with m.If(at < config.pages):
                t.put(rams.chain, at, Mux(at == config.pages - 1, 0, at + 1))
                if t.forks:
                    t.put(rams.sharers, at, 0)
            with m.If(at < config.streams):
                t.put(rams.entries, at, t.empty)
            with m.If(at < config.vectors):
                t.put(rams.tokens, at, 0)
            with m.If(at == max(config.pages, config.streams) - 1):
                m.next = "IDLE"

    def _idle(self, m: Module, t: "_Machine") -> None:
        config, given = t.config, self.command.p
        with m.State("IDLE"):
            m.d.comb += self.command.ready.eq(1)
            m.d.sync += [
                t.given.command.eq(given),
                t.given.vector.eq((given.sequence * config.layers + given.layer) * 2 + given.kv),
            ]
            with m.If(self.command.valid):
                m.next = "DECODE"
                with m.If((given.op == PageOp.NEXT) & (given.page < config.pages)):
                    t.get(t.rams.chain, given.page)

    def _decode(self, m: Module, t: "_Machine") -> None:
        config, slots, command = t.config, t.config.kv.slots, t.given.command
        with m.State("DECODE"):
            first = Signal(range(config.streams))  # slot 0 of the command's vector
            of_slot = Signal(range(config.streams))
            m.d.comb += [
                first.eq(t.given.vector * slots),
                of_slot.eq(
                    Mux(command.op == PageOp.EXTEND, t.transaction.stream, first) + command.slot
                ),
            ]
            m.d.sync += [
                t.given.index.eq(of_slot),
                t.given.start.eq(t.sequences.starts[t.given.sequence]),
                t.given.slot.eq(0),
            ]
            # Every answer finds its register empty.
            with m.If(~self.response.valid | self.response.ready), m.Switch(command.op):
                self._decode_sequence(m, t)
                self._decode_vector(m, t)
                self._decode_stream(m, t, of_slot)
                self._decode_transaction(m, t, of_slot)
                if t.forks:
                    t.forks.decode(m, t, of_slot)
                with m.Default():
                    t.finish(Status.BAD_REQUEST)

    def _decode_sequence(self, m: Module, t: "_Machine") -> None:
        """Cases of DECODE: ops of a whole sequence, and NEXT. They finish here."""
        command, sequence = t.given.command, t.given.sequence
        states, starts, finish = t.sequences.states, t.sequences.starts, t.finish
        with m.Case(PageOp.OPEN):
            with m.If(t.sequences.vacant.any()):
                lowest = t.sequences.lowest
                finish(sequence=lowest)
                m.d.sync += [states[lowest].eq(OPEN), starts[lowest].eq(0)]
                if t.forks:
                    m.d.sync += t.forks.children[lowest].eq(0)
            with m.Else():
                finish(Status.TABLE_FULL)
        with m.Case(PageOp.CLOSE):
            is_open = t.given.is_open
            if t.forks:
                is_open = is_open | t.forks.is_child(t)
            with m.If(~is_open):
                finish(Status.SEQUENCE_UNKNOWN)
            with m.Elif(t.is_held):
                finish(Status.BAD_REQUEST)
            with m.Else():
                finish()
                m.d.sync += states[sequence].eq(CLOSING)
                if t.forks:
                    with m.If(t.forks.is_child(t)):
                        m.d.sync += t.forks.active.eq(0)
        with m.Case(PageOp.VACATE):
            with m.If(~t.given.is_closing):
                finish(Status.SEQUENCE_UNKNOWN)
            with m.Elif(t.sequences.owned[sequence] != 0):
                finish(Status.BAD_REQUEST)
            with m.Else():
                finish()
                m.d.sync += states[sequence].eq(VACANT)
        with m.Case(PageOp.SET_START):
            with m.If(~t.given.is_open):
                finish(Status.SEQUENCE_UNKNOWN)
            with m.Elif(command.token > t.config.max_tokens):
                finish(Status.BAD_REQUEST)
            with m.Else():
                rises = command.token > starts[sequence]
                token = command.token[: t.words.token]  # at most max_tokens
                finish(skip=Mux(rises, token, starts[sequence]))
                with m.If(rises):
                    m.d.sync += starts[sequence].eq(command.token)
        if t.forks:
            return  # NEXT looks at its stream
        with m.Case(PageOp.NEXT):
            with m.If(command.page < t.config.pages):
                finish(page=t.rams.chain.read_data)
            with m.Else():
                finish(Status.BAD_REQUEST)

    def _decode_vector(self, m: Module, t: "_Machine") -> None:
        """Case of DECODE: ops that look at a vector's tokens."""
        command, given, finish = t.given.command, t.given, t.finish
        with m.Case(PageOp.TRIM_CHECK, PageOp.BEGIN):
            with m.If(~given.layer_fits):
                finish(Status.BAD_REQUEST)
            with m.Elif(~given.is_open):
                finish(Status.SEQUENCE_UNKNOWN)
            with m.Elif((command.op == PageOp.BEGIN) & t.transaction.appending):
                finish(Status.BAD_REQUEST)
            with m.Else():
                t.get(t.rams.tokens, given.vector)
                with m.If(command.op == PageOp.BEGIN):
                    m.next = "BEGIN"
                with m.Else():
                    m.next = "TRIM_CHECK"

    def _decode_stream(self, m: Module, t: "_Machine", of_slot) -> None:
        """Cases of DECODE: ops of one stream, ``of_slot``."""
        command, given, finish, get = t.given.command, t.given, t.finish, t.get
        tokens, entries, vector = t.rams.tokens, t.rams.entries, given.vector
        is_open, starts, sequence = given.is_open, t.sequences.starts, given.sequence
        with m.Case(PageOp.FREE_STREAM):
            with m.If(~given.layer_fits | ~given.slot_fits):
                finish(Status.BAD_REQUEST)
            with m.Elif(~given.is_closing):
                finish(Status.SEQUENCE_UNKNOWN)
            with m.Else():
                get(entries, of_slot)
                m.next = "FREE_STREAM"
        with m.Case(PageOp.TRIM_STREAM):
            with m.If(~given.layer_fits | ~given.slot_fits):
                finish(Status.BAD_REQUEST)
            with m.Elif(~is_open):
                finish(Status.SEQUENCE_UNKNOWN)
            with m.Elif(t.is_held | (command.token > starts[sequence])):
                finish(Status.BAD_REQUEST)
            with m.Else():
                get(entries, of_slot)
                get(tokens, vector)
                m.next = "TRIM_STREAM"
        with m.Case(PageOp.READ):
            with m.If(~given.layer_fits | ~given.slot_fits):
                finish(Status.BAD_REQUEST)
            with m.Elif(~is_open):
                finish(Status.SEQUENCE_UNKNOWN)
            with m.Else():
                get(entries, of_slot)
                get(tokens, vector)
                m.next = "READ"

    def _decode_transaction(self, m: Module, t: "_Machine", of_slot) -> None:
        """Cases of DECODE: what goes on with the open transaction."""
        command, given, finish, get = t.given.command, t.given, t.finish, t.get
        rams, transaction, slots = t.rams, t.transaction, t.config.kv.slots
        appending, extended = transaction.appending, transaction.extended
        with m.Case(PageOp.EXTEND):
            is_wrong = ~appending | ~given.slot_fits | (command.slot != extended) | ~given.is_size
            with m.If(is_wrong):
                finish(Status.BAD_REQUEST)
            with m.Else():
                get(rams.entries, of_slot)
                get(rams.chain, t.free.head)
                m.next = "EXTEND"
        with m.Case(PageOp.COMMIT):
            with m.If(~appending | (extended != slots)):
                finish(Status.BAD_REQUEST)
            with m.Else():
                get(rams.entries, transaction.stream)
                get(rams.log, 0)
                m.d.sync += given.index.eq(transaction.stream)
                m.next = "COMMIT"
        with m.Case(PageOp.ABORT):
            with m.If(~appending):
                finish(Status.BAD_REQUEST)
            with m.Elif(extended == 0):
                finish()
                m.d.sync += appending.eq(0)
            with m.Else():
                get(rams.log, 0)
                m.next = "ABORT"

    def _trim_check(self, m: Module, t: "_Machine") -> None:
        with m.State("TRIM_CHECK"):
            with m.If(t.rams.tokens.read_data < t.given.command.token):
                t.finish(Status.BEYOND_LENGTH)
            with m.Else():
                t.finish()

    def _begin(self, m: Module, t: "_Machine") -> None:
        command, given, to = t.given.command, t.given, t.transaction
        tokens = t.rams.tokens
        with m.State("BEGIN"):
            with m.If(tokens.read_data != command.token):
                t.finish(Status.TOKEN_ORDER)
            with m.Elif(tokens.read_data == t.config.max_tokens):
                t.finish(Status.LENGTH_LIMIT)
            with m.Else():
                t.finish()
                m.d.sync += [
                    to.appending.eq(1),
                    to.extended.eq(0),
                    to.sequence.eq(given.sequence),
                    to.vector.eq(given.vector),
                    to.stream.eq(given.vector * t.config.kv.slots),
                    to.token.eq(command.token),
                ]

    def _free_stream(self, m: Module, t: "_Machine") -> None:
        given, entry, put = t.given, t.rams.entry, t.put
        owned, sequence = t.sequences.owned, given.sequence
        chain, free_head, free_pages = t.rams.chain, t.free.head, t.free.pages
        with m.State("FREE_STREAM"):
            t.finish()
            put(t.rams.entries, given.index, t.empty)
            with m.If(entry.pages != 0):
                put(chain, entry.last, free_head)
                m.d.sync += [
                    free_head.eq(entry.first),
                    free_pages.eq(free_pages + entry.pages),
                    owned[sequence].eq(owned[sequence] - entry.pages),
                ]
            with m.If(given.command.slot == t.config.kv.slots - 1):
                put(t.rams.tokens, given.vector, 0)

    def _extend(self, m: Module, t: "_Machine") -> None:
        command, rams, to, page_bytes = t.given.command, t.rams, t.transaction, t.config.page_bytes
        entry, free_head, free_pages = rams.entry, t.free.head, t.free.pages
        with m.State("EXTEND"):
            room = Signal(range(page_bytes + 1))
            fits = Signal()
            straddles = Signal()
            m.d.comb += [
                room.eq(page_bytes - entry.end),
                fits.eq(command.bytes <= room),
                straddles.eq(~fits & (room != 0)),
            ]
            record = Signal(t.words.log)
            m.d.comb += [
                record.taken.eq(~fits),
                record.page.eq(free_head),
                record.bytes.eq(command.bytes),
            ]
            begun = Signal(t.words.info)  # the record after one that straddles is the first
            m.d.comb += [
                begun.first_token.eq(to.token + straddles),
                begun.offset.eq(Mux(straddles, command.bytes - room, 0)),
            ]
            with m.If(~fits & (free_pages == 0)):
                t.finish(Status.OUT_OF_PAGES)
            with m.Else():
                is_in_last = fits | straddles
                t.finish(
                    page=Mux(is_in_last, entry.last, free_head),
                    page2=Mux(straddles, free_head, 0),
                    offset=Mux(is_in_last, entry.end, 0),
                    bytes=Mux(straddles, room, command.bytes),
                )
                t.put(rams.log, to.extended, record)
                m.d.sync += to.extended.eq(to.extended + 1)
                with m.If(~fits):
                    t.put(rams.infos, free_head, begun)
                    m.d.sync += [
                        free_head.eq(rams.chain.read_data),
                        free_pages.eq(free_pages - 1),
                    ]

    def _commit(self, m: Module, t: "_Machine") -> None:
        rams, to, slots, put = t.rams, t.transaction, t.config.kv.slots, t.put
        entry, logged, after = rams.entry, rams.logged, t.after
        chain, owned = rams.chain, t.sequences.owned
        index, slot = t.given.index, t.given.slot
        with m.State("COMMIT"):
            filled = Mux(logged.taken, t.config.page_bytes, 0)
            m.d.comb += [
                after.first.eq(Mux(logged.taken & (entry.pages == 0), logged.page, entry.first)),
                after.last.eq(Mux(logged.taken, logged.page, entry.last)),
                after.pages.eq(entry.pages + logged.taken),
                after.bytes.eq(entry.bytes + logged.bytes),
                after.end.eq(entry.end + logged.bytes - filled),
            ]
            has_link = entry.pages != 0
            if t.forks:
                has_link = t.forks.commit(m, t)
            put(rams.entries, index, after)
            with m.If(logged.taken):
                m.d.sync += owned[to.sequence].eq(owned[to.sequence] + 1)
                with m.If(has_link):
                    put(chain, entry.last, logged.page)
            m.d.sync += [slot.eq(slot + 1), index.eq(index + 1)]
            with m.If(slot == slots - 1):
                t.finish()
                put(rams.tokens, to.vector, to.token + 1)
                m.d.sync += to.appending.eq(0)
            with m.Else():
                t.get(rams.entries, index + 1)
                t.get(rams.log, slot + 1)

    def _abort(self, m: Module, t: "_Machine") -> None:
        logged, slot, release = t.rams.logged, t.given.slot, t.release
        with m.State("ABORT"):
            with m.If(logged.taken):
                release(logged.page)
            m.d.sync += slot.eq(slot + 1)
            with m.If(slot + 1 == t.transaction.extended):
                t.finish()
                m.d.sync += t.transaction.appending.eq(0)
            with m.Else():
                t.get(t.rams.log, slot + 1)

    def _read(self, m: Module, t: "_Machine") -> None:
        """Three states: are the tokens there, how many from which page on, where."""
        command, kinds, page_bytes = t.given.command, t.given.kinds, t.config.page_bytes
        rams, entry, info, start = t.rams, t.rams.entry, t.rams.info, t.given.start
        with m.State("READ"):
            with m.If(command.token > rams.tokens.read_data):
                t.finish(Status.BEYOND_LENGTH)
            with m.Elif(command.token <= start):
                t.finish(Status.EMPTY)
            with m.Else():
                t.get(rams.infos, entry.first)
                t.get(rams.chain, entry.first)
                m.next = "LOCATE"

        skip = Signal(t.words.token, reset_less=True)
        count = Signal(t.words.token, reset_less=True)
        with m.State("LOCATE"):
            m.d.sync += [skip.eq(start - info.first_token), count.eq(command.token - start)]
            m.next = "ANSWER"

        with m.State("ANSWER"):
            offset = Signal(len(skip) + bits_for(t.config.kv.record_bytes_max) + 1)
            size = Signal(32)
            m.d.comb += [
                offset.eq(info.offset + kinds.fixed(lambda kind: skip * kind.most)),
                size.eq(kinds.fixed(lambda kind: count * kind.most)),
            ]
            branch = m.If
            if not all(kind.is_fixed for kind in t.config.kv.kinds):  # else: never true
                with m.If(kinds.is_variable):
                    t.finish(page=entry.first, offset=info.offset, bytes=entry.bytes, skip=skip)
                branch = m.Elif
            with branch(offset > page_bytes):
                t.finish(Status.BAD_REQUEST)
            with m.Elif(offset == page_bytes):
                t.finish(page=t.follower(entry, entry.first), bytes=size, skip=count)
            with m.Else():
                t.finish(page=entry.first, offset=offset, bytes=size, skip=count)

    def _trim_stream(self, m: Module, t: "_Machine") -> None:
        """Three states: is there a second page; fetch it; may the first page go."""
        command, rams, after, page_bytes = t.given.command, t.rams, t.after, t.config.page_bytes
        entry, info, owned = rams.entry, rams.info, t.sequences.owned
        finish, sequence = t.finish, t.given.sequence
        tokens = rams.tokens.read_data  # a page that comes later starts with such a token, or later
        left = t.left
        with m.State("TRIM_STREAM"):
            m.d.sync += left.eq(entry)
            with m.If(entry.pages > 1):
                t.get(rams.infos, entry.first)
                t.get_link(entry.first)
                m.next = "LOOK"
            with m.Else():
                finish(skip=tokens)

        second = Signal(t.words.page, reset_less=True)
        old_offset = Signal.like(info.offset, reset_less=True)  # of page ``left.first``
        with m.State("LOOK"):
            follower = t.follower(left, left.first)
            m.d.sync += [second.eq(follower), old_offset.eq(info.offset)]
            t.get(rams.infos, follower)
            m.next = "DROP"

        with m.State("DROP"):
            with m.If(info.first_token > command.token):
                finish(skip=info.first_token)
            with m.Else():
                m.d.comb += [
                    after.first.eq(second),
                    after.last.eq(left.last),
                    after.pages.eq(left.pages - 1),
                    after.bytes.eq(left.bytes - page_bytes + old_offset - info.offset),
                    after.end.eq(left.end),
                ]
                if t.forks:
                    t.forks.trim(m, t)
                m.d.sync += [left.eq(after), owned[sequence].eq(owned[sequence] - 1)]
                t.let_go(left.first)
                t.put(rams.entries, t.given.index, after)
                with m.If(left.pages == 2):
                    finish(skip=tokens)
                with m.Else():
                    t.get_link(second)
                    m.next = "LOOK"


@dataclasses.dataclass(frozen=True)
class _Rams:
    """The tables, and the words that three of them show."""

    chain: Memory1R1W  # next page of the chain or of the free list
    infos: Memory1R1W  # the first record of each page
    entries: Memory1R1W  # the streams
    tokens: Memory1R1W  # of each vector
    log: Memory1R1W  # what the open transaction adds to each slot
    sharers: Memory1R1W | None  # of each page, where there are forks
    info: data.View
    entry: data.View
    logged: data.View


@dataclasses.dataclass(frozen=True)
class _Free:
    """The free list: a stack."""

    head: Signal  # its top
    pages: Signal  # how many


@dataclasses.dataclass(frozen=True)
class _Sequences:
    """Registers of each sequence."""

    states: Array
    starts: Array
    owned: Array  # pages in the chains of the sequence
    vacant: Value  # one bit for each
    lowest: Signal  # that is vacant


@dataclasses.dataclass(frozen=True)
class _Transaction:
    """The open transaction, if ``appending``."""

    appending: Signal
    sequence: Signal
    vector: Signal
    stream: Signal  # of slot 0
    token: Signal
    extended: Signal  # slots in the log


@dataclasses.dataclass(frozen=True)
class _Given:
    """The command, and what follows from its fields and the state of its sequence."""

    command: Signal
    vector: Signal
    sequence: Signal
    index: Signal  # stream of the command
    slot: Signal  # COMMIT, ABORT: slot of the log
    start: Signal
    is_open: Signal
    is_closing: Signal
    layer_fits: Value
    slot_fits: Value
    kinds: _Kinds
    is_size: Value


@dataclasses.dataclass(frozen=True)
class _Machine:
    """Registers and RAMs of a table, and the verbs that its steps have in common."""

    m: Module
    config: CacheConfig
    words: _Words
    rams: _Rams
    free: _Free
    sequences: _Sequences
    transaction: _Transaction
    given: _Given
    done: Signal  # the command ends with ``answer``
    answer: Signal
    after: Signal  # the entry as it becomes
    left: Signal  # TRIM_STREAM: the entry while pages go back
    forks: Forks | None

    @property
    def empty(self):
        """The entry of a stream without pages."""
        return self.words.entry.const({"end": self.config.page_bytes})

    @property
    def is_own_transaction(self):
        """Whether the open transaction is of the command's sequence."""
        transaction = self.transaction
        return transaction.appending & (transaction.sequence == self.given.sequence)

    @property
    def is_held(self):
        """Whether the command's sequence may not change, but for what is under way."""
        if self.forks:
            return self.is_own_transaction | self.forks.is_parent(self)
        return self.is_own_transaction

    def follower(self, entry, page):
        """The page after ``page`` in the chain of ``entry``, whose link was read."""
        link = self.rams.chain.read_data
        return self.forks.follower(entry, page, link) if self.forks else link

    def finish(self, status=Status.OK, **fields) -> None:
        """End the command with this answer."""
        self.m.next = "IDLE"
        self.m.d.comb += [self.done.eq(1), self.answer.status.eq(status)]
        self.m.d.comb += [self.answer[name].eq(value) for name, value in fields.items()]

    def put(self, memory, address, word) -> None:
        self.m.d.comb += [
            memory.write_en.eq(1), memory.write_addr.eq(address), memory.write_data.eq(word)
        ]  # fmt: skip

    def get(self, memory, address) -> None:
        self.m.d.comb += [memory.read_en.eq(1), memory.read_addr.eq(address)]

    def get_link(self, page) -> None:
        """Read what follows ``page``, and who else has it."""
        self.get(self.rams.chain, page)
        if self.forks:
            self.get(self.rams.sharers, page)

    def let_go(self, page) -> None:
        """A stream has ``page`` no more, whose sharers were read."""
        if self.forks:
            self.forks.let_go(self.m, self, page)
        else:
            self.release(page)

    def release(self, page) -> None:
        """Push ``page``."""
        self.put(self.rams.chain, page, self.free.head)
        self.m.d.sync += [self.free.head.eq(page), self.free.pages.eq(self.free.pages + 1)]


def _machine(m: Module, table: PagingPageTable) -> _Machine:
    """Registers and RAMs of ``table``; its answer waits in the register of ``response``."""
    config, words = table.config, _Words(table.config)
    rams = _rams(m, words, table.memories)
    free_head = Signal(words.page)
    free_pages = Signal(range(config.pages + 1), init=config.pages)
    m.d.comb += table.free_pages.eq(free_pages)
    sequences = _sequences(m, config, words)
    transaction = _transaction(config, words)
    given = _given(m, config, words, sequences.states)
    answer = Signal(PAGE_RESPONSE_LAYOUT)
    done = Signal()
    with m.If(table.response.ready):
        m.d.sync += table.response.valid.eq(0)
    with m.If(done):
        m.d.sync += [table.response.valid.eq(1), table.response.payload.eq(answer)]
    after = Signal(words.entry)
    left = Signal(words.entry, reset_less=True)
    free = _Free(free_head, free_pages)
    return _Machine(
        m, config, words, rams, free, sequences, transaction, given, done, answer, after, left,
        forks(config, words) if config.forks else None,
    )  # fmt: skip


def _rams(m: Module, words: _Words, memories: dict[str, MemoryConfig]) -> _Rams:
    found = {name: add(m, name, Memory1R1W(shape)) for name, shape in memories.items()}
    return _Rams(
        **({"sharers": None} | found),
        info=data.View(words.info, found["infos"].read_data),
        entry=data.View(words.entry, found["entries"].read_data),
        logged=data.View(words.log, found["log"].read_data),
    )


def _sequences(m: Module, config: CacheConfig, words: _Words) -> _Sequences:
    count = range(config.sequences)
    states = Array(Signal(2, name=f"state_{n}") for n in count)
    starts = Array(Signal(words.token, name=f"start_{n}", reset_less=True) for n in count)
    owned = Array(Signal(range(config.pages + 1), name=f"owned_{n}") for n in count)
    vacant = Cat(state == VACANT for state in states)
    lowest = Signal(range(max(config.sequences, 2)))
    for n in reversed(count):
        with m.If(vacant[n]):
            m.d.comb += lowest.eq(n)
    return _Sequences(states, starts, owned, vacant, lowest)


def _transaction(config: CacheConfig, words: _Words) -> _Transaction:
    appending = Signal()
    to_sequence = Signal(range(max(config.sequences, 2)), reset_less=True)
    to_vector = Signal(range(max(config.vectors, 2)), reset_less=True)
    to_stream = Signal(range(config.streams), reset_less=True)
    to_token = Signal(words.token, reset_less=True)
    extended = Signal(range(config.kv.slots + 1))
    return _Transaction(appending, to_sequence, to_vector, to_stream, to_token, extended)


def _given(m: Module, config: CacheConfig, words: _Words, states: Array) -> _Given:
    """The command's register, and what is worked out of it while it is taken."""
    command = Signal(PAGE_COMMAND_LAYOUT, reset_less=True)
    vector = Signal(range(max(config.vectors, 2)), reset_less=True)
    sequence = Signal(range(max(config.sequences, 2)))
    index = Signal(range(config.streams), reset_less=True)
    slot = Signal(range(max(config.kv.slots, 2)), reset_less=True)
    start = Signal(words.token, reset_less=True)
    is_known = command.sequence < config.sequences
    is_open = Signal()
    is_closing = Signal()
    m.d.comb += [
        sequence.eq(command.sequence),
        is_open.eq(is_known & (states[sequence] == OPEN)),
        is_closing.eq(is_known & (states[sequence] == CLOSING)),
    ]
    kinds = _Kinds(config.kv, command.slot)
    return _Given(
        command=command, vector=vector, sequence=sequence, index=index, slot=slot, start=start,
        is_open=is_open, is_closing=is_closing,
        layer_fits=command.layer < config.layers,
        slot_fits=command.slot < config.kv.slots,
        kinds=kinds, is_size=kinds.is_size(command.bytes),
    )  # fmt: skip
