"""The page table of the KV cache (docs/blocks/paging_page_table.md)."""

from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from golden.paging import timing
from golden.paging.config import CacheConfig, VectorShape
from golden.paging.format import PageOp, Status
from golden.timing import Timing
from hdl.block import Block
from hdl.emit import add
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.paging.layouts import TOKEN_BITS

__all__ = ["PAGE_COMMAND_LAYOUT", "PAGE_RESPONSE_LAYOUT", "PagingPageTable"]

PAGE_BITS = 20  # pages 0..2**20 - 1

# Fixed widths: out-of-range values must arrive. Fields in the order of golden.paging.pages.
PAGE_COMMAND_LAYOUT = data.StructLayout(
    {
        "op": 4,  # golden.paging.format.PageOp
        "sequence": 8,
        "layer": 8,
        "kv": 1,  # 0: K, 1: V
        "slot": 9,
        "token": TOKEN_BITS,
        "bytes": 12,  # EXTEND: of the record
        "page": PAGE_BITS,  # NEXT
    }
)
PAGE_RESPONSE_LAYOUT = data.StructLayout(
    {
        "status": 4,  # golden.paging.format.Status
        "page": PAGE_BITS,
        "page2": PAGE_BITS,  # EXTEND: where the record goes on
        "offset": 17,  # bytes
        "bytes": 32,  # EXTEND: in ``page``; READ: in all
        "skip": TOKEN_BITS,  # READ: tokens; of a sparse slot: records before the first of them
        "sequence": 8,  # OPEN
    }
)

# States of a sequence.
VACANT, OPEN, CLOSING = range(3)


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
        self.entry = data.StructLayout(
            {
                "first": page,
                "last": page,
                "pages": bits_for(config.pages),
                # From the first record that starts in page ``first`` on.
                "bytes": bits_for(min(longest, config.pages * config.page_bytes)),
                "end": bits_for(config.page_bytes),  # bytes used in ``last``; no pages: all
            }
        )
        self.log = data.StructLayout(
            {"taken": 1, "page": page, "bytes": bits_for(config.kv.record_bytes_max)}
        )
        self.page, self.token = page, token


class _Kinds:
    """What depends on the kind of ``slot``: its low bits, or the number of a vector's own record.

    A selection of a value is kept as small as the kinds allow: two equal values need no choice.
    """

    def __init__(self, shape: VectorShape, slot):
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
        first = self.shape.heads * len(inner)
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
        first = self.shape.heads * len(self.shape.per_head)
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

    The next command is taken in the cycle of the answer, before it has been taken. After reset
    ``command.ready`` is low for max(pages, streams) cycles, in which all tables are written.
    No combinational path leads from an input to an output.
    Source: Oaken, section 5.2. Golden: golden.paging.pages.PageTable.

    Members
    -------
    command : In(stream)    PAGE_COMMAND_LAYOUT
    response : Out(stream)  PAGE_RESPONSE_LAYOUT
    free_pages : Out        pages on the free list, those of an open transaction not among them
    """

    meaning: ClassVar[dict[str, str]] = {
        "command": "One operation on the page table; op: golden.paging.format.PageOp.",
        "response": "Its answer; status: golden.paging.format.Status.",
        "free_pages": "Pages on the free list.",
    }

    def __init__(self, config: CacheConfig):
        super().__init__(
            config,
            {
                "command": In(stream.Signature(PAGE_COMMAND_LAYOUT)),
                "response": Out(stream.Signature(PAGE_RESPONSE_LAYOUT)),
                "free_pages": Out(range(config.pages + 1)),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.page_table(self.config.kv.slots, self.config.pages)

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
        }

    def elaborate(self, platform) -> Module:
        config, words = self.config, _Words(self.config)
        kv, page_bytes = config.kv, config.page_bytes
        m = Module()
        # Next page of the chain or of the free list; the first record of each page; the streams;
        # tokens per vector; what the open transaction adds to each slot.
        chain, infos, entries, tokens, log = (
            add(m, name, Memory1R1W(shape)) for name, shape in self.memories.items()
        )
        info = data.View(words.info, infos.read_data)
        entry = data.View(words.entry, entries.read_data)
        logged = data.View(words.log, log.read_data)

        # The free list is a stack: its top, and how many.
        free_head = Signal(words.page)
        free_pages = Signal(range(config.pages + 1), init=config.pages)
        m.d.comb += self.free_pages.eq(free_pages)

        states = Array(Signal(2, name=f"state_{n}") for n in range(config.sequences))
        starts = Array(
            Signal(words.token, name=f"start_{n}", reset_less=True) for n in range(config.sequences)
        )
        owned = Array(  # pages in the chains of the sequence
            Signal(range(config.pages + 1), name=f"owned_{n}") for n in range(config.sequences)
        )
        vacant = Cat(state == VACANT for state in states)
        lowest = Signal(range(max(config.sequences, 2)))
        for n in reversed(range(config.sequences)):
            with m.If(vacant[n]):
                m.d.comb += lowest.eq(n)

        # The open transaction.
        appending = Signal()
        to_sequence = Signal(range(max(config.sequences, 2)), reset_less=True)
        to_vector = Signal(range(max(config.vectors, 2)), reset_less=True)
        to_stream = Signal(range(config.streams), reset_less=True)  # of slot 0
        to_token = Signal(words.token, reset_less=True)
        extended = Signal(range(kv.slots + 1))  # slots in the log

        # The command, and what is worked out of it while it is taken.
        command = Signal(PAGE_COMMAND_LAYOUT, reset_less=True)
        vector = Signal(range(max(config.vectors, 2)), reset_less=True)
        sequence = Signal(range(max(config.sequences, 2)))
        m.d.comb += sequence.eq(command.sequence)
        is_known = command.sequence < config.sequences
        is_open, is_closing = Signal(), Signal()
        m.d.comb += [
            is_open.eq(is_known & (states[sequence] == OPEN)),
            is_closing.eq(is_known & (states[sequence] == CLOSING)),
        ]
        layer_fits, slot_fits = command.layer < config.layers, command.slot < kv.slots
        page_fits = command.page < config.pages
        kinds, is_last_slot = _Kinds(kv, command.slot), command.slot == kv.slots - 1
        is_own_transaction = appending & (to_sequence == sequence)
        is_size = kinds.is_size(command.bytes)
        index = Signal(range(config.streams), reset_less=True)  # stream of the command
        slot = Signal(range(kv.slots), reset_less=True)  # COMMIT, ABORT: slot of the log
        start = Signal(words.token, reset_less=True)

        # The answer waits in a register.
        answer = Signal(PAGE_RESPONSE_LAYOUT)
        done = Signal()
        with m.If(self.response.ready):
            m.d.sync += self.response.valid.eq(0)
        with m.If(done):
            m.d.sync += [self.response.valid.eq(1), self.response.payload.eq(answer)]

        def finish(status=Status.OK, **fields):
            m.next = "IDLE"
            m.d.comb += [done.eq(1), answer.status.eq(status)]
            m.d.comb += [answer[name].eq(value) for name, value in fields.items()]

        def put(memory, address, word):
            m.d.comb += [
                memory.write_en.eq(1), memory.write_addr.eq(address), memory.write_data.eq(word)
            ]  # fmt: skip

        def get(memory, address):
            m.d.comb += [memory.read_en.eq(1), memory.read_addr.eq(address)]

        def release(page):
            """Push ``page``."""
            put(chain, page, free_head)
            m.d.sync += [free_head.eq(page), free_pages.eq(free_pages + 1)]

        empty = words.entry.const({"end": page_bytes})
        after = Signal(words.entry)  # the entry as it becomes

        with m.FSM(name="step"):
            with m.State("WRITE_TABLES"):
                at = Signal(range(max(config.pages, config.streams)))
                m.d.sync += at.eq(at + 1)
                with m.If(at < config.pages):
                    put(chain, at, Mux(at == config.pages - 1, 0, at + 1))
                with m.If(at < config.streams):
                    put(entries, at, empty)
                with m.If(at < config.vectors):
                    put(tokens, at, 0)
                with m.If(at == max(config.pages, config.streams) - 1):
                    m.next = "IDLE"

            with m.State("IDLE"):
                given = self.command.p
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [
                    command.eq(given),
                    vector.eq((given.sequence * config.layers + given.layer) * 2 + given.kv),
                ]
                with m.If(self.command.valid):
                    m.next = "DECODE"
                    with m.If((given.op == PageOp.NEXT) & (given.page < config.pages)):
                        get(chain, given.page)

            with m.State("DECODE"):
                first = Signal(range(config.streams))  # slot 0 of the command's vector
                of_slot = Signal(range(config.streams))
                m.d.comb += [
                    first.eq(vector * kv.slots),
                    of_slot.eq(Mux(command.op == PageOp.EXTEND, to_stream, first) + command.slot),
                ]
                m.d.sync += [index.eq(of_slot), start.eq(starts[sequence]), slot.eq(0)]
                # Every answer finds its register empty.
                with m.If(~self.response.valid | self.response.ready):
                    with m.Switch(command.op):
                        with m.Case(PageOp.OPEN):
                            with m.If(vacant.any()):
                                finish(sequence=lowest)
                                m.d.sync += [states[lowest].eq(OPEN), starts[lowest].eq(0)]
                            with m.Else():
                                finish(Status.TABLE_FULL)
                        with m.Case(PageOp.CLOSE):
                            with m.If(~is_open):
                                finish(Status.SEQUENCE_UNKNOWN)
                            with m.Elif(is_own_transaction):
                                finish(Status.BAD_REQUEST)
                            with m.Else():
                                finish()
                                m.d.sync += states[sequence].eq(CLOSING)
                        with m.Case(PageOp.VACATE):
                            with m.If(~is_closing):
                                finish(Status.SEQUENCE_UNKNOWN)
                            with m.Elif(owned[sequence] != 0):
                                finish(Status.BAD_REQUEST)
                            with m.Else():
                                finish()
                                m.d.sync += states[sequence].eq(VACANT)
                        with m.Case(PageOp.SET_START):
                            with m.If(~is_open):
                                finish(Status.SEQUENCE_UNKNOWN)
                            with m.Elif(command.token > config.max_tokens):
                                finish(Status.BAD_REQUEST)
                            with m.Else():
                                finish()
                                with m.If(command.token > starts[sequence]):
                                    m.d.sync += starts[sequence].eq(command.token)
                        with m.Case(PageOp.NEXT):
                            with m.If(page_fits):
                                finish(page=chain.read_data)
                            with m.Else():
                                finish(Status.BAD_REQUEST)
                        with m.Case(PageOp.TRIM_CHECK, PageOp.BEGIN):
                            with m.If(~layer_fits):
                                finish(Status.BAD_REQUEST)
                            with m.Elif(~is_open):
                                finish(Status.SEQUENCE_UNKNOWN)
                            with m.Elif((command.op == PageOp.BEGIN) & appending):
                                finish(Status.BAD_REQUEST)
                            with m.Else():
                                get(tokens, vector)
                                with m.If(command.op == PageOp.BEGIN):
                                    m.next = "BEGIN"
                                with m.Else():
                                    m.next = "TRIM_CHECK"
                        with m.Case(PageOp.FREE_STREAM):
                            with m.If(~layer_fits | ~slot_fits):
                                finish(Status.BAD_REQUEST)
                            with m.Elif(~is_closing):
                                finish(Status.SEQUENCE_UNKNOWN)
                            with m.Else():
                                get(entries, of_slot)
                                m.next = "FREE_STREAM"
                        with m.Case(PageOp.TRIM_STREAM):
                            with m.If(~layer_fits | ~slot_fits):
                                finish(Status.BAD_REQUEST)
                            with m.Elif(~is_open):
                                finish(Status.SEQUENCE_UNKNOWN)
                            with m.Elif(is_own_transaction | (command.token > starts[sequence])):
                                finish(Status.BAD_REQUEST)
                            with m.Else():
                                get(entries, of_slot)
                                m.next = "TRIM_STREAM"
                        with m.Case(PageOp.READ):
                            with m.If(~layer_fits | ~slot_fits):
                                finish(Status.BAD_REQUEST)
                            with m.Elif(~is_open):
                                finish(Status.SEQUENCE_UNKNOWN)
                            with m.Else():
                                get(entries, of_slot)
                                get(tokens, vector)
                                m.next = "READ"
                        with m.Case(PageOp.EXTEND):
                            with m.If(
                                ~appending | ~slot_fits | (command.slot != extended) | ~is_size
                            ):
                                finish(Status.BAD_REQUEST)
                            with m.Else():
                                get(entries, of_slot)
                                get(chain, free_head)
                                m.next = "EXTEND"
                        with m.Case(PageOp.COMMIT):
                            with m.If(~appending | (extended != kv.slots)):
                                finish(Status.BAD_REQUEST)
                            with m.Else():
                                get(entries, to_stream)
                                get(log, 0)
                                m.d.sync += index.eq(to_stream)
                                m.next = "COMMIT"
                        with m.Case(PageOp.ABORT):
                            with m.If(~appending):
                                finish(Status.BAD_REQUEST)
                            with m.Elif(extended == 0):
                                finish()
                                m.d.sync += appending.eq(0)
                            with m.Else():
                                get(log, 0)
                                m.next = "ABORT"
                        with m.Default():
                            finish(Status.BAD_REQUEST)

            with m.State("TRIM_CHECK"):
                with m.If(tokens.read_data < command.token):
                    finish(Status.BEYOND_LENGTH)
                with m.Else():
                    finish()

            with m.State("BEGIN"):
                with m.If(tokens.read_data != command.token):
                    finish(Status.TOKEN_ORDER)
                with m.Elif(tokens.read_data == config.max_tokens):
                    finish(Status.LENGTH_LIMIT)
                with m.Else():
                    finish()
                    m.d.sync += [
                        appending.eq(1),
                        extended.eq(0),
                        to_sequence.eq(sequence),
                        to_vector.eq(vector),
                        to_stream.eq(vector * kv.slots),
                        to_token.eq(command.token),
                    ]

            with m.State("FREE_STREAM"):
                finish()
                put(entries, index, empty)
                with m.If(entry.pages != 0):
                    put(chain, entry.last, free_head)
                    m.d.sync += [
                        free_head.eq(entry.first),
                        free_pages.eq(free_pages + entry.pages),
                        owned[sequence].eq(owned[sequence] - entry.pages),
                    ]
                with m.If(is_last_slot):
                    put(tokens, vector, 0)

            with m.State("EXTEND"):
                room = Signal(range(page_bytes + 1))
                fits, straddles = Signal(), Signal()
                m.d.comb += [
                    room.eq(page_bytes - entry.end),
                    fits.eq(command.bytes <= room),
                    straddles.eq(~fits & (room != 0)),
                ]
                record = Signal(words.log)
                m.d.comb += [
                    record.taken.eq(~fits),
                    record.page.eq(free_head),
                    record.bytes.eq(command.bytes),
                ]
                begun = Signal(words.info)  # the record after one that straddles is the first
                m.d.comb += [
                    begun.first_token.eq(to_token + straddles),
                    begun.offset.eq(Mux(straddles, command.bytes - room, 0)),
                ]
                with m.If(~fits & (free_pages == 0)):
                    finish(Status.OUT_OF_PAGES)
                with m.Else():
                    is_in_last = fits | straddles
                    finish(
                        page=Mux(is_in_last, entry.last, free_head),
                        page2=Mux(straddles, free_head, 0),
                        offset=Mux(is_in_last, entry.end, 0),
                        bytes=Mux(straddles, room, command.bytes),
                    )
                    put(log, extended, record)
                    m.d.sync += extended.eq(extended + 1)
                    with m.If(~fits):
                        put(infos, free_head, begun)
                        m.d.sync += [
                            free_head.eq(chain.read_data),
                            free_pages.eq(free_pages - 1),
                        ]

            with m.State("COMMIT"):
                m.d.comb += [
                    after.first.eq(
                        Mux(logged.taken & (entry.pages == 0), logged.page, entry.first)
                    ),
                    after.last.eq(Mux(logged.taken, logged.page, entry.last)),
                    after.pages.eq(entry.pages + logged.taken),
                    after.bytes.eq(entry.bytes + logged.bytes),
                    after.end.eq(entry.end + logged.bytes - Mux(logged.taken, page_bytes, 0)),
                ]
                put(entries, index, after)
                with m.If(logged.taken):
                    m.d.sync += owned[to_sequence].eq(owned[to_sequence] + 1)
                    with m.If(entry.pages != 0):
                        put(chain, entry.last, logged.page)
                m.d.sync += [slot.eq(slot + 1), index.eq(index + 1)]
                with m.If(slot == kv.slots - 1):
                    finish()
                    put(tokens, to_vector, to_token + 1)
                    m.d.sync += appending.eq(0)
                with m.Else():
                    get(entries, index + 1)
                    get(log, slot + 1)

            with m.State("ABORT"):
                with m.If(logged.taken):
                    release(logged.page)
                m.d.sync += slot.eq(slot + 1)
                with m.If(slot + 1 == extended):
                    finish()
                    m.d.sync += appending.eq(0)
                with m.Else():
                    get(log, slot + 1)

            with m.State("READ"):
                with m.If(command.token > tokens.read_data):
                    finish(Status.BEYOND_LENGTH)
                with m.Elif(command.token <= start):
                    finish(Status.EMPTY)
                with m.Else():
                    get(infos, entry.first)
                    get(chain, entry.first)
                    m.next = "LOCATE"

            skip = Signal(words.token, reset_less=True)
            count = Signal(words.token, reset_less=True)
            with m.State("LOCATE"):
                m.d.sync += [skip.eq(start - info.first_token), count.eq(command.token - start)]
                m.next = "ANSWER"

            with m.State("ANSWER"):
                offset = Signal(len(skip) + bits_for(kv.record_bytes_max) + 1)
                size = Signal(32)
                m.d.comb += [
                    offset.eq(info.offset + kinds.fixed(lambda kind: skip * kind.most)),
                    size.eq(kinds.fixed(lambda kind: count * kind.most)),
                ]
                branch = m.If
                if not all(kind.is_fixed for kind in kv.kinds):  # else: a condition never true
                    with m.If(kinds.is_variable):
                        finish(page=entry.first, offset=info.offset, bytes=entry.bytes, skip=skip)
                    branch = m.Elif
                with branch(offset > page_bytes):
                    finish(Status.BAD_REQUEST)
                with m.Elif(offset == page_bytes):
                    finish(page=chain.read_data, bytes=size, skip=count)
                with m.Else():
                    finish(page=entry.first, offset=offset, bytes=size, skip=count)

            left = Signal(words.entry, reset_less=True)  # the entry while pages go back
            with m.State("TRIM_STREAM"):
                m.d.sync += left.eq(entry)
                with m.If(entry.pages > 1):
                    get(infos, entry.first)
                    get(chain, entry.first)
                    m.next = "LOOK"
                with m.Else():
                    finish()

            second = Signal(words.page, reset_less=True)
            old_offset = Signal.like(info.offset, reset_less=True)  # of page ``left.first``
            with m.State("LOOK"):
                m.d.sync += [second.eq(chain.read_data), old_offset.eq(info.offset)]
                get(infos, chain.read_data)
                m.next = "DROP"

            with m.State("DROP"):
                with m.If(info.first_token > command.token):
                    finish()
                with m.Else():
                    m.d.comb += [
                        after.first.eq(second),
                        after.last.eq(left.last),
                        after.pages.eq(left.pages - 1),
                        after.bytes.eq(left.bytes - page_bytes + old_offset - info.offset),
                        after.end.eq(left.end),
                    ]
                    m.d.sync += [left.eq(after), owned[sequence].eq(owned[sequence] - 1)]
                    release(left.first)
                    put(entries, index, after)
                    with m.If(left.pages == 2):
                        finish()
                    with m.Else():
                        get(chain, second)
                        m.next = "LOOK"
        return m
