"""Properties of the page table: who owns each page, and which bytes READ and EXTEND name.

A ghost model follows the table and gives every page one owner and a place. The owner is free, a
stream, or a slot of the open transaction. The place is the page's rank in the stack of free pages,
or its number in its stream's chain. The ghost follows the commands and their answers, not the
table's memories. The invariant is that the memories agree with the ghost. It makes the proof
inductive: with it the proof is unbounded. Without it (planted defects) the properties must find the
fault.

A second part of the ghost follows sizes alone: where each stream ends, and where the first record
of each page starts. The bytes in the answers of READ and EXTEND must follow from these.

Commands are free inputs: any op with any field in any cycle, answers stalled at will, reset at
any time. Nothing is assumed of the user. NEXT is judged on pages of a stream that are not its last:
only there does it have a meaning. The properties of READ say that its bytes end in its chain, so a
client that counts them never sends NEXT for the last page.
"""

import contextlib
import dataclasses
import functools
import itertools
import operator
import unittest.mock

from amaranth import Array, Const, Module, Mux, ResetSignal, Signal, Value, signed
from amaranth.hdl import Assume, Fragment
from amaranth.lib import data

import hdl.paging.page_table
from golden.config import bounded
from golden.paging.config import CacheConfig, RecordKind, VectorRecords
from golden.paging.format import PageOp, Status
from hdl.paging.page_table import CLOSING, OPEN, VACANT, PagingPageTable
from tb.faults.plant import plant
from tb.formal.prove import Proof
from tb.formal.spec import Spec, transfer
from tb.formal.streams import WeakestRam


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallShape(VectorRecords):
    """Records of 2, 1..3 and 3 bytes: at most half a page, and all ways to straddle two pages."""

    heads: int = 1
    per_head: tuple[RecordKind, ...] = (
        RecordKind(name="dense", least=2, most=2),
        RecordKind(name="sparse", least=1, most=3),
    )
    per_vector: tuple[RecordKind, ...] = (RecordKind(name="scale", least=3, most=3),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallCache(CacheConfig):
    """3 sequences, 18 streams, 8 pages of 7 bytes: widths that a solver can bear."""

    kv: VectorRecords = SmallShape()
    sequences: int = 3
    layers: int = 1
    pages: int = 8
    page_bytes: int = bounded(7, 1, 64, "bytes of a page")
    max_tokens: int = 7

    def __post_init__(self):
        pass


class _Watched:
    """The table over the weakest RAMs, whose rows the properties may read."""

    def elaborate(self, platform):
        self.rams = {}

        def add(m, name, block):
            block._MustUse__silence = True
            self.rams[name] = WeakestRam(block.config)
            setattr(m.submodules, name, self.rams[name])
            return self.rams[name]

        with unittest.mock.patch.multiple(hdl.paging.page_table, add=add):
            return super().elaborate(platform)


class WatchedTable(_Watched, PagingPageTable):
    pass


def some(conditions):
    return functools.reduce(operator.or_, conditions, Const(0))


def count(conditions):
    return sum((Value.cast(condition) for condition in conditions), Const(0, 4))


class PageTableSpec(Spec):
    """Ownership of pages.

    A run begins with a reset, in any state, or without one in any state of which the invariant
    and the properties hold. If they then hold in the next cycle too, they hold for ever. That is
    checked for the reset and for each step of the table (``cases``) by itself. Covers, and
    defects that need full tables, also begin anywhere: from reset they take hundreds of cycles.
    """

    def elaborate(self, platform):
        m = Module()
        fragment = Fragment.get(self.block, platform)
        m.submodules.dut = fragment
        self.wires, self.registers = (
            {
                signal.name: signal
                for statement in fragment.statements[domain]
                for signal in statement._lhs_signals()
            }
            for domain in ("comb", "sync")
        )
        self.steps = {}  # number of each state
        with contextlib.suppress(KeyError):  # after the last
            for number in itertools.count():
                name = self.registers["step_state"]._decoder(number).rpartition("/")[0]
                self.steps[name] = number
        self.ports += [ram.anything for ram in self.block.rams.values()]
        m.d.sync += self.first.eq(0)
        self.cases = {"reset": {"rst": 1}}
        for name, number in self.steps.items():
            self.cases[name] = {"rst": 0, "dut.step_state": number}
        self.splits = {
            "DECODE": ("dut.command.op", 4),
            f"DECODE.{PageOp.TRIM_STREAM.value}": ("dut.vector", 3),
            f"DECODE.{PageOp.READ.value}": ("dut.vector", 3),
            f"DECODE.{PageOp.NEXT.value}": ("dut.command.page", 3),
        }
        self.specify(m)
        return m

    def always(self, m, condition, message, src_loc_at=0):
        m.d.comb += Assume(~self.first | ResetSignal() | condition)
        super().always(m, condition, message, src_loc_at=1 + src_loc_at)

    def state(self, m, condition, message, src_loc_at=0):
        m.d.comb += Assume(~self.first | ResetSignal() | condition)
        super().state(m, condition, message, src_loc_at=1 + src_loc_at)

    def step(self, *names):
        """The table is in one of these states of its state machine."""
        return some(self.registers["step_state"] == self.steps[name] for name in names)

    def specify(self, m):
        block, config = self.block, self.block.config
        pages, slots, streams = config.pages, config.kv.slots, config.streams
        sequences = config.sequences
        registers, rams = self.registers, block.rams
        words = hdl.paging.page_table._Words(config)
        FREE, STREAM, SLOT = 0, 1, 1 + streams

        given, response = block.command, block.response
        self.ports += [given.valid, Value.cast(given.payload)]
        self.sink(m, response)
        for name, ram in rams.items():
            self.always(m, ~ram.collision, f"{name}: the row being written is not read")

        # The steps of the table, and the answer while it is written into its register.
        command = data.View(hdl.paging.page_table.PAGE_COMMAND_LAYOUT, registers["command"])
        answer = data.View(hdl.paging.page_table.PAGE_RESPONSE_LAYOUT, self.wires["answer"])
        done = self.wires["done"]
        slot = registers["slot"]
        running = Signal()
        m.d.comb += running.eq(~self.step("WRITE_TABLES"))
        good = Signal()
        m.d.comb += good.eq(done & (answer.status == Status.OK))

        def after(op):
            return good & (command.op == op)

        # ------------------------------------------------------------ the ghost
        owner = [Signal(range(SLOT + slots), name=f"owner_{p}") for p in range(pages)]
        place = [Signal(4, name=f"place_{p}", init=pages - 1 - p) for p in range(pages)]
        born = [Signal(words.token, name=f"born_{p}") for p in range(pages)]  # first token
        following = [Signal(4, name=f"following_{s}") for s in range(streams)]  # next place
        states = [Signal(2, name=f"ghost_state_{q}") for q in range(sequences)]
        appending, extended = Signal(name="ghost_appending"), Signal(range(slots + 1))
        to_vector, to_token = Signal(range(config.vectors)), Signal(words.token)
        # Of the records alone: where each stream ends in its last page (no pages: at the end of
        # one), where the first record of each page begins, tokens, starts, sizes by slot.
        page_bytes = config.page_bytes
        end = [
            Signal(range(page_bytes + 1), name=f"ghost_end_{s}", init=page_bytes)
            for s in range(streams)
        ]
        shift = [Signal(range(config.kv.record_bytes_max), name=f"shift_{p}") for p in range(pages)]
        written = [Signal(words.token, name=f"ghost_tokens_{v}") for v in range(config.vectors)]
        begun = [Signal(words.token, name=f"ghost_start_{q}") for q in range(sequences)]
        sizes = [
            Signal(range(config.kv.record_bytes_max + 1), name=f"ghost_size_{j}")
            for j in range(slots)
        ]
        end_at, written_at, begun_at = Array(end), Array(written), Array(begun)
        owner_at, place_at, born_at = Array(owner), Array(place), Array(born)

        free = Signal(range(pages + 1))
        m.d.comb += free.eq(count(o == FREE for o in owner))
        held = [Signal(range(pages + 1), name=f"held_{s}") for s in range(streams)]
        for s in range(streams):
            m.d.comb += held[s].eq(count(o == STREAM + s for o in owner))
        held_at = Array(held)
        number = [Signal(range(streams), name=f"number_{p}") for p in range(pages)]
        in_stream = [Signal(name=f"in_stream_{p}") for p in range(pages)]
        behind = [Signal(4, name=f"behind_{p}") for p in range(pages)]  # pages of its stream
        for p in range(pages):
            m.d.comb += [
                in_stream[p].eq((owner[p] >= STREAM) & (owner[p] < SLOT)),
                number[p].eq(owner[p] - STREAM),
                behind[p].eq(Array(following)[number[p]] - 1 - place[p]),
            ]
        behind_at = Array(behind)

        # The stream that the command names.
        vector, stream = Signal(range(config.vectors)), Signal(range(streams))
        m.d.comb += [
            vector.eq((command.sequence * config.layers + command.layer) * 2 + command.kv),
            stream.eq(vector * slots + command.slot),
        ]
        n = held_at[stream]

        def mine(p):
            return owner_at[p] == STREAM + stream

        # EXTEND: did the answer hand out a page, and which?
        straddles, takes = answer.bytes < command.bytes, Signal()
        handed = Signal(range(pages))
        extend = after(PageOp.EXTEND)
        m.d.comb += [
            takes.eq(extend & (straddles | (answer.offset == 0))),
            handed.eq(Mux(straddles, answer.page2, answer.page)),
        ]
        ends, room = Signal(range(page_bytes + 1)), Signal(range(page_bytes + 1))
        m.d.comb += [
            ends.eq(end_at[(to_vector * slots + command.slot)[: (streams - 1).bit_length()]]),
            room.eq(page_bytes - ends),
        ]
        fits = command.bytes <= room
        # TRIM_STREAM: may the first page go? Yes if a record that counts starts after it.
        may_drop = Signal()
        seconds = [
            (owner[p] == STREAM + stream) & (behind[p] + 2 == n) & (born[p] <= command.token)
            for p in range(pages)
        ]
        m.d.comb += may_drop.eq((n >= 2) & some(seconds))

        for p in range(pages):

            def back(rank=free, p=p):
                return [owner[p].eq(FREE), place[p].eq(rank)]

            with m.If(takes & (handed == p)):
                m.d.sync += [
                    owner[p].eq(SLOT + command.slot),
                    born[p].eq(to_token + straddles),
                    shift[p].eq(Mux(straddles, command.bytes - room, 0)),
                ]
            for j in range(slots):
                to_stream = to_vector * slots + j
                with m.If((owner[p] == SLOT + j) & (slot == j)):
                    with m.If(self.step("COMMIT")):
                        m.d.sync += [
                            owner[p].eq(STREAM + to_stream),
                            place[p].eq(Array(following)[to_stream]),
                        ]
                    with m.If(self.step("ABORT")):
                        m.d.sync += back()
            with m.If(owner[p] == STREAM + stream):
                with m.If(self.step("FREE_STREAM")):
                    m.d.sync += back(free + behind[p])
                with m.If(self.step("DROP") & may_drop & (behind[p] + 1 == n)):
                    m.d.sync += back()
        for s in range(streams):
            commits = some(
                (owner[p] == SLOT + j) & (slot == j) & (to_vector == s // slots)
                for p in range(pages)
                for j in range(slots)
                if j == s % slots
            )
            with m.If(self.step("COMMIT") & commits):
                m.d.sync += following[s].eq(following[s] + 1)
            with m.If(self.step("COMMIT") & (to_vector == s // slots) & (slot == s % slots)):
                m.d.sync += end[s].eq(end[s] + sizes[s % slots] - Mux(commits, page_bytes, 0))
            with m.If(self.step("FREE_STREAM") & (stream == s)):
                m.d.sync += end[s].eq(page_bytes)
        with m.If(self.step("FREE_STREAM") & (command.slot == slots - 1)):
            m.d.sync += written_at[vector].eq(0)
        with m.If(after(PageOp.OPEN)):
            m.d.sync += [Array(states)[answer.sequence].eq(OPEN), begun_at[answer.sequence].eq(0)]
        with m.If(after(PageOp.SET_START) & (command.token > begun_at[command.sequence])):
            m.d.sync += begun_at[command.sequence].eq(command.token)
        with m.If(after(PageOp.CLOSE)):
            m.d.sync += Array(states)[command.sequence].eq(CLOSING)
        with m.If(after(PageOp.VACATE)):
            m.d.sync += Array(states)[command.sequence].eq(VACANT)
        with m.If(after(PageOp.BEGIN)):
            m.d.sync += [
                appending.eq(1), extended.eq(0), to_vector.eq(vector), to_token.eq(command.token)
            ]  # fmt: skip
        with m.If(extend):
            m.d.sync += [extended.eq(extended + 1), Array(sizes)[command.slot].eq(command.bytes)]
        with m.If(after(PageOp.COMMIT)):
            m.d.sync += written_at[to_vector].eq(written_at[to_vector] + 1)
        with m.If(after(PageOp.COMMIT) | after(PageOp.ABORT)):
            m.d.sync += appending.eq(0)

        # ------------------------------------------------------------ properties
        def always(condition, message):
            self.always(m, ~running | condition, message, src_loc_at=1)

        pending, expected = Signal(), Signal.like(Value.cast(response.payload))
        m.d.sync += pending.eq(done | (pending & ~response.ready))
        with m.If(done):
            m.d.sync += expected.eq(Value.cast(answer))
        self.always(m, response.valid == pending, "one answer for each command")
        self.always(m, ~pending | (Value.cast(response.payload) == expected), "the answer holds")
        self.always(m, ~(done & pending & ~response.ready), "no answer is lost")
        owed = Signal()
        m.d.sync += owed.eq(transfer(given) | (owed & ~done))
        self.always(m, owed == (running & ~self.step("IDLE")), "an answer is owed while busy")
        self.always(m, given.ready == self.step("IDLE"), "ready while idle")
        age = Signal(range(32))  # cycles of this command but those in which an answer waits
        waits = self.step("DECODE") & pending & ~response.ready
        m.d.sync += age.eq(Mux(self.step("IDLE") | ~running, 0, age + ~waits))
        longest = 2 + 2 * pages
        always(age <= longest, f"done in {longest + 2} cycles")

        always(block.free_pages == free, "free_pages is the number of pages without an owner")
        always(~takes | (owner_at[handed] == FREE), "a page handed out was free")
        always(
            ~extend | (takes & ~straddles)
            | (in_stream_of(owner_at[answer.page], STREAM, to_vector * slots + command.slot)
               & (behind_at[answer.page] == 0)),
            "a record goes on in the last page of its stream",
        )  # fmt: skip
        is_in_last = fits | (room != 0)
        always(~extend | (takes == ~fits), "a page is taken only where the last one has no room")
        always(~extend | (answer.offset == Mux(is_in_last, ends, 0)), "EXTEND: offset")
        part = Mux(fits | (room == 0), command.bytes, room)
        always(~extend | (answer.bytes == part), "EXTEND: bytes in the first page")
        always(~extend | straddles | (answer.page2 == 0), "EXTEND: no second page")
        always(~extend | (answer.skip == 0), "EXTEND: skip")
        refused = done & (command.op == PageOp.EXTEND) & (answer.status == Status.OUT_OF_PAGES)
        always(~refused | (free == 0), "out of pages only when none is free")
        always(~takes | (free != 0), "no page is handed out when none is free")

        state_of = Array(states)[command.sequence]
        names = self.step(
            "TRIM_CHECK", "BEGIN", "FREE_STREAM", "TRIM_STREAM", "LOOK", "DROP", "READ",
            "LOCATE", "ANSWER",
        )  # fmt: skip
        wanted = Mux(command.op == PageOp.FREE_STREAM, CLOSING, OPEN)
        always(
            ~(names & done) | ((command.sequence < sequences) & (state_of == wanted)),
            "only commands of a sequence that is open, or closing, reach its streams",
        )
        begun_now = begun_at[command.sequence]
        later = Mux(command.token > begun_now, command.token, begun_now)
        always(
            ~after(PageOp.SET_START) | ((answer.skip == later) & (later <= config.max_tokens)),
            "SET_START: the start, which never moves back",
        )
        read = after(PageOp.READ)
        always(~read | mine(answer.page), "READ answers a page of its own stream")
        front = behind_at[answer.page]
        jumps = (answer.offset == 0) & ~command.slot[0] & (front + 2 == n)
        always(~read | (front + 1 == n) | jumps, "READ answers the first page, or the second")
        always(
            ~(read & command.slot[0]) | (front + 1 == n), "READ of a sparse slot: the first page"
        )
        # Where READ begins, from first tokens and sizes alone.
        is_first = [(owner[p] == STREAM + stream) & (behind[p] + 1 == n) for p in range(pages)]
        first_born, first_shift = Signal.like(born[0]), Signal.like(shift[0])
        for p in range(pages):
            with m.If(is_first[p]):
                m.d.comb += [first_born.eq(born[p]), first_shift.eq(shift[p])]
        start = begun_now
        past, wanted_tokens = Signal(signed(8)), Signal(signed(8))
        size, place_of, total = Signal(4), Signal(signed(10)), Signal(10)
        m.d.comb += [
            past.eq(start - first_born),
            wanted_tokens.eq(command.token[: words.token] - start),
            total.eq((n - 1) * page_bytes + end_at[stream] - first_shift),
        ]
        for j in range(slots):
            with m.If(command.slot == j):
                m.d.comb += size.eq(config.kv.kind(j).most)
        m.d.comb += place_of.eq(first_shift + past * size)
        is_fixed = ~some(
            (command.slot == j) for j in range(slots) if not config.kv.kind(j).is_fixed
        )
        always(~read | (past >= 0), "READ: the first page begins at or before the start")
        always(
            ~read | ((command.token <= written_at[vector]) & (command.token > start)),
            "READ: tokens that are there",
        )
        always(
            ~(read & is_fixed)
            | ((answer.bytes == wanted_tokens * size) & (answer.skip == wanted_tokens)),
            "READ of records of one size: bytes and tokens",
        )
        always(
            ~(read & is_fixed) | Mux(
                front + 1 == n,
                (answer.offset == place_of) & (place_of < page_bytes),
                (answer.offset == 0) & (place_of == page_bytes),
            ),
            "READ of records of one size: the byte of the first",
        )  # fmt: skip
        always(
            ~read | is_fixed
            | ((answer.offset == first_shift) & (answer.skip == past) & (answer.bytes == total)),
            "READ of records of many sizes: all bytes from the first record on",
        )  # fmt: skip
        refuses = self.step("ANSWER") & (answer.status != Status.OK)
        always(
            ~refuses | (is_fixed & (place_of > page_bytes) & (answer.status == Status.BAD_REQUEST)),
            "READ is refused only where its first record lies beyond the first page",
        )
        always(
            ~read | (answer.offset + answer.bytes <= front * page_bytes + end_at[stream]),
            "READ: its bytes end in its chain, so NEXT is not needed on the last page",
        )
        judged = after(PageOp.NEXT) & Array(in_stream)[command.page]
        judged = judged & (behind_at[command.page] != 0)
        always(
            ~judged | ((owner_at[answer.page] == owner_at[command.page])
                       & (behind_at[answer.page] + 1 == behind_at[command.page])),
            "NEXT stays in its stream and goes one page on",
        )  # fmt: skip
        dropping = self.step("DROP") & may_drop
        always(
            ~after(PageOp.TRIM_STREAM) | ~may_drop | (dropping & (n == 2)),
            "TRIM_STREAM ends when no page may go",
        )
        always(
            ~(self.step("DROP") & ~done) | may_drop, "TRIM_STREAM goes on only while a page may go"
        )
        rest = some((o >= SLOT) for o in owner)
        always(appending | ~rest, "COMMIT and ABORT leave no page behind")
        for q in range(sequences):
            mine_all = [number[p] // (slots * 2 * config.layers) == q for p in range(pages)]
            own = some(in_stream[p] & mine_all[p] for p in range(pages))
            always((states[q] != VACANT) | ~own, f"sequence {q} has no page while it is vacant")

        self.invariant(m, locals())

        # ------------------------------------------------------------ covers
        freed = [Signal(range(sequences + 1), name=f"freed_{p}") for p in range(pages)]
        for p in range(pages):  # 1 + the sequence whose FREE_STREAM has set this page free
            # Where a run begins anywhere it must make its own history.
            m.d.comb += Assume(~self.first | (freed[p] == 0))
            with m.If(self.step("FREE_STREAM") & (owner[p] == STREAM + stream)):
                m.d.sync += freed[p].eq(1 + command.sequence)
        moves = some(
            self.step("COMMIT") & (owner[p] == SLOT + j) & (slot == j) & (freed[p] != 0)
            & (freed[p] != 1 + to_vector // (2 * config.layers))
            for p in range(pages) for j in range(slots)
        )  # fmt: skip
        self.cover(m, after(PageOp.FREE_STREAM) & (n > 1), "a chain goes back")
        self.cover(m, moves, "a page that one sequence has freed goes to another")
        self.cover(m, after(PageOp.ABORT) & rest & (slot == 1), "an abort gives pages back")
        self.cover(m, dropping & done, "a trim releases a page")
        self.cover(m, refused & rest, "out of pages in mid-transaction")
        self.cover(m, judged, "a chain is followed")
        self.cover(m, read & jumps & (n > 1) & (front + 1 != n), "READ begins in the second page")
        self.cover(m, free == 0, "no page is free")
        return m

    def invariant(self, m, of):
        """The table's registers and memories say what the ghost says."""
        config, words = self.block.config, of["words"]
        pages, slots, streams = config.pages, config.kv.slots, config.streams
        sequences, layers = config.sequences, config.layers
        registers, rams, running = self.registers, self.block.rams, of["running"]
        FREE, STREAM, SLOT = of["FREE"], of["STREAM"], of["SLOT"]
        owner, place, born, number = of["owner"], of["place"], of["born"], of["number"]
        behind, in_stream, held, free = of["behind"], of["in_stream"], of["held"], of["free"]
        states = of["states"]
        command, stream, vector, slot = of["command"], of["stream"], of["vector"], of["slot"]
        appending, extended = of["appending"], of["extended"]
        to_vector, to_token, age = of["to_vector"], of["to_token"], of["age"]
        step = self.step
        chain, tokens = rams["chain"].rows, rams["tokens"].rows
        infos = [data.View(words.info, row) for row in rams["infos"].rows]
        entries = [data.View(words.entry, row) for row in rams["entries"].rows]
        log = [data.View(words.log, row) for row in rams["log"].rows]
        owner_at, place_at = Array(owner), Array(place)
        chain_at = Array(chain)
        info_at, entry_at = Array(rams["infos"].rows), Array(rams["entries"].rows)
        page_bytes = config.page_bytes
        head = registers["free_head"]

        def state(condition, message):
            self.state(m, ~running | condition, message, src_loc_at=1)

        def while_(names, condition, message):
            self.state(m, ~step(*names) | condition, message, src_loc_at=1)

        def is_place(distance, wanted):
            """Places wrap: a chain may move on for ever."""
            return distance[: len(place[0])] == wanted

        # While the tables are written.
        at = registers["at"]
        writing = step("WRITE_TABLES")
        none = words.entry.const({"end": page_bytes}).as_value()
        quiet = (head == 0) & (registers["free_pages"] == pages) & ~registers["appending"]
        quiet &= ~appending & ~of["pending"] & (age == 0) & ~of["owed"]
        self.state(m, ~writing | quiet, "quiet until the tables are written")
        for p in range(pages):
            fresh = (owner[p] == FREE) & (place[p] == pages - 1 - p)
            self.state(m, ~writing | fresh, f"page {p} is free at first")
            link = chain[p] == (p + 1) % pages
            self.state(m, ~writing | (at <= p) | link, f"link {p} is written")
        for s in range(streams):
            row = rams["entries"].rows[s]
            self.state(m, ~writing | (of["end"][s] == page_bytes), f"end {s} is that of no page")
            self.state(m, ~writing | (at <= s) | (row == none), f"entry {s} is written")
        for v in range(config.vectors):
            self.state(m, ~writing | (at <= v) | (tokens[v] == 0), f"tokens {v} are written")
            self.state(m, ~writing | (of["written"][v] == 0), f"vector {v} has no tokens")
            state(tokens[v] == of["written"][v], f"tokens of vector {v}")
        self.state(m, ~writing | (at < max(pages, streams)), "rows in range")
        for q in range(sequences):
            fresh = (registers[f"state_{q}"] == VACANT) & (registers[f"owned_{q}"] == 0)
            self.state(m, ~writing | (fresh & (states[q] == VACANT)), f"sequence {q} is vacant")
        self.state(m, step(*self.steps), "a state of the machine")

        # The free list.
        state(registers["free_pages"] == free, "free_pages")
        state((free == 0) | ((owner_at[head] == FREE) & (place_at[head] + 1 == free)), "head")
        for p in range(pages):
            is_free = owner[p] == FREE
            state(~is_free | (place[p] < free), f"rank of page {p}")
            below = (owner_at[chain[p]] == FREE) & (place_at[chain[p]] + 1 == place[p])
            state(~is_free | (place[p] == 0) | below, f"link of free page {p}")
            state(owner[p] < SLOT + slots, f"owner of page {p}")
            # The chains.
            on = (owner_at[chain[p]] == owner[p]) & is_place(place_at[chain[p]] - place[p], 1)
            state(~in_stream[p] | (behind[p] == 0) | on, f"link of page {p}")
            for other in range(p):
                state(
                    (owner[p] != owner[other]) | ((owner[p] < SLOT) & (place[p] != place[other])),
                    f"pages {other} and {p} are not in one place",
                )
            # First tokens and their offsets.
            has_info = in_stream[p] | (owner[p] >= SLOT)
            state(~has_info | (infos[p].first_token == born[p]), f"first token of page {p}")
            state(~has_info | (infos[p].offset == of["shift"][p]), f"offset {p}")
            state(~has_info | (infos[p].offset < config.kv.record_bytes_max), f"offset {p}")

        # Streams.
        committed = [  # slots of the transaction that are in their streams by now
            step("COMMIT") & (to_vector == s // slots) & (s % slots < slot) for s in range(streams)
        ]
        for s in range(streams):
            entry = entries[s]
            some_pages = held[s] != 0
            state(entry.pages == held[s], f"pages of stream {s}")
            first, last = entry.first, entry.last
            state(
                ~some_pages | ((owner_at[first] == STREAM + s)
                               & is_place(of["following"][s] - place_at[first], entry.pages)),
                f"first page of stream {s}",
            )  # fmt: skip
            state(
                ~some_pages | ((owner_at[last] == STREAM + s)
                               & is_place(of["following"][s] - place_at[last], 1)),
                f"last page of stream {s}",
            )  # fmt: skip
            state(entry.end <= page_bytes, f"end of stream {s}")
            state(entry.end == of["end"][s], f"end of stream {s}")
            state(Mux(some_pages, entry.end != 0, entry.end == page_bytes), f"end of stream {s}")
            info = data.View(words.info, info_at[first])
            used = entry.pages * page_bytes + entry.end
            state(
                Mux(some_pages, used == entry.bytes + info.offset + page_bytes, entry.bytes == 0),
                f"bytes of stream {s}",
            )
            now = Signal(words.token + 1, name=f"now_{s}")
            m.d.comb += now.eq(of["written"][s // slots] + committed[s])
            q = s // (slots * 2 * layers)
            is_open = states[q] == OPEN
            state(~is_open | (some_pages == (now != 0)), f"stream {s} has pages if tokens")
            state((now == 0) | some_pages | (s % slots != slots - 1), f"scales of stream {s}")
            start = registers[f"start_{q}"]
            state(~is_open | ~some_pages | (info.first_token <= start), f"start of stream {s}")
            # The records from the first of page p on. Only the ghost's values are read: a step that
            # leaves these alone leaves the arithmetic alone.
            for p in range(pages):
                records = now - born[p]
                later = (of["following"][s] - 1 - place[p])[: len(behind[p])]
                in_chain = (owner[p] != STREAM + s) | (later < entry.pages)
                state(in_chain, f"place of page {p} in stream {s}")
                size = later * page_bytes + of["end"][s] - of["shift"][p]
                state(
                    ~is_open
                    | (owner[p] != STREAM + s)
                    | ((records >= 0) & self.holds(s % slots, records, size)),
                    f"records of stream {s} in page {p}",
                )

        # Sequences.
        for q in range(sequences):
            own = count(
                in_stream[p] & (number[p] // (slots * 2 * layers) == q) for p in range(pages)
            )
            state(registers[f"owned_{q}"] == own, f"pages of sequence {q}")
            state(registers[f"state_{q}"] == states[q], f"state of sequence {q}")
            state(states[q] < 3, f"state of sequence {q}")
            same = registers[f"start_{q}"] == of["begun"][q]
            state((states[q] == VACANT) | same, f"start of sequence {q}")
            state((states[q] == VACANT) | (registers[f"start_{q}"] <= config.max_tokens), "start")
            for v in range(2 * layers * q, 2 * layers * (q + 1)):
                state((states[q] != VACANT) | (tokens[v] == 0), f"vector {v} is empty")
                state(tokens[v] <= config.max_tokens, f"tokens of vector {v}")

        # The transaction.
        state(registers["appending"] == appending, "appending")
        own = Array(states)[to_vector // (2 * layers)] == OPEN
        same = (registers["to_vector"] == to_vector) & (registers["to_token"] == to_token)
        same &= registers["to_sequence"] == to_vector // (2 * layers)
        same &= registers["to_stream"] == to_vector * slots
        same &= (registers["extended"] == extended) & (extended <= slots)
        same &= (to_vector < config.vectors) & (Array(tokens)[to_vector] == to_token)
        same &= to_token < config.max_tokens
        state(~appending | (own & same), "the transaction")
        for j in range(slots):
            taken = some(o == SLOT + j for o in owner)
            past = step("COMMIT", "ABORT") & (slot > j)
            live = appending & (j < extended) & ~past
            state(live | ~taken, f"slot {j} has a page only while it is extended")
            state(~live | (log[j].taken == taken), f"slot {j} knows that it took a page")
            state(~live | (log[j].bytes == of["sizes"][j]), f"slot {j} knows its size")
            state(~live | ~taken | (owner_at[log[j].page] == SLOT + j), f"slot {j} knows its page")
            # What the slot will do to its stream when it is committed.
            to = data.View(words.entry, entry_at[to_vector * slots + j])
            size = log[j].bytes
            info = data.View(words.info, info_at[log[j].page])
            room = page_bytes - to.end
            state(
                ~live | Mux(
                    taken,
                    (size > room) & (info.offset == Mux(room == 0, 0, size - room))
                    & (info.first_token == to_token + (room != 0)),
                    size <= room,
                ),
                f"record of slot {j}",
            )  # fmt: skip
            state(~live | self.holds(j, 1, size), f"size of slot {j}")

        # Between the steps of a command.
        entry = data.View(words.entry, rams["entries"].read_data)
        info = data.View(words.info, rams["infos"].read_data)
        logged = data.View(words.log, rams["log"].read_data)
        left = data.View(words.entry, registers["left"])
        index, start, second = registers["index"], registers["start"], registers["second"]
        read_row = rams["entries"].read_data == entry_at[index]
        named = (index == stream) & (command.layer < layers) & (command.slot < slots)
        named &= (command.sequence < sequences) & (registers["vector"] == vector)
        opened = Array(states)[command.sequence] == OPEN
        started = (
            start == Array(registers[f"start_{q}"] for q in range(sequences))[command.sequence]
        )
        has_tokens = rams["tokens"].read_data == Array(tokens)[vector]

        def op(*ops):
            return some(command.op == value for value in ops)

        while_(["DECODE"], age == 0, "age")
        one = ["TRIM_CHECK", "BEGIN", "FREE_STREAM", "EXTEND", "TRIM_STREAM", "READ"]
        while_(one, age == 1, "age")
        while_(["LOCATE"], age == 2, "age")
        while_(["ANSWER"], age == 3, "age")
        while_(["COMMIT", "ABORT"], age == 1 + slot, "age")
        while_(["LOOK"], age + 2 * left.pages <= 2 + 2 * pages, "age")
        while_(["DROP"], age + 2 * left.pages <= 3 + 2 * pages, "age")
        busy = ["DECODE", *one, "LOCATE", "ANSWER", "COMMIT", "ABORT", "LOOK", "DROP"]
        after_decode = busy[1:]
        while_(after_decode, ~of["pending"], "the answer's register is empty")
        while_(["DECODE"], registers["vector"] == vector_bits(command, config), "vector")
        decoded = (command.op != PageOp.NEXT) | (command.page >= pages)
        decoded |= rams["chain"].read_data == chain_at[command.page]
        while_(["DECODE"], decoded, "NEXT has read its link")
        while_(
            ["TRIM_CHECK", "BEGIN"],
            (command.layer < layers) & (command.sequence < sequences) & opened & has_tokens
            & (registers["vector"] == vector),
            "the vector's tokens",
        )  # fmt: skip
        while_(["TRIM_CHECK"], op(PageOp.TRIM_CHECK), "op")
        while_(["BEGIN"], op(PageOp.BEGIN) & ~appending, "op")
        while_(["FREE_STREAM"], op(PageOp.FREE_STREAM) & named & read_row, "the stream to free")
        while_(
            ["FREE_STREAM"], Array(states)[command.sequence] == CLOSING, "only of closing sequences"
        )
        link = rams["chain"].read_data == chain_at[head]
        extends = (index == to_vector * slots + command.slot) & (command.slot == extended)
        extends &= read_row & link & appending & (extended < slots)
        while_(["EXTEND"], op(PageOp.EXTEND) & extends, "the stream to extend")
        right = Mux(
            command.slot == slots - 1, config.kv.named("scale").most, config.kv.named("dense").most
        )
        kind = config.kv.named("sparse")
        sparse = (command.bytes >= kind.least) & (command.bytes <= kind.most)
        while_(["EXTEND"], Mux(command.slot[0], sparse, command.bytes == right), "size")
        commits = (index == to_vector * slots + slot) & read_row & (slot < slots)
        commits &= appending & (extended == slots)
        commits &= rams["log"].read_data == Array(rams["log"].rows)[slot]
        while_(["COMMIT"], op(PageOp.COMMIT) & commits, "the slot to commit")
        aborts = appending & (slot < extended) & op(PageOp.ABORT)
        aborts &= rams["log"].read_data == Array(rams["log"].rows)[slot]
        while_(["ABORT"], aborts, "the slot to abort")
        reads = named & opened & started & op(PageOp.READ)
        # A commit never runs during a READ: entry and tokens are what they were. The bytes of the
        # stream are a whole number of records: an answer's arithmetic needs no choice of stream.
        records = of["written_at"][vector] - of["first_born"]
        whole = (records >= 0) & (of["past"] >= 0)
        whole &= ~of["is_fixed"] | (of["total"] == records * of["size"])
        while_(["READ"], reads & read_row & has_tokens, "the stream to read")
        whole |= (command.token > Array(tokens)[vector]) | (command.token <= start)
        reading = ["READ", "LOCATE", "ANSWER"]
        while_(reading, whole, "the bytes of its stream")
        for p in range(pages):
            is_first = (of["n"] != 0) & (entry.first == p)
            walking = ["TRIM_STREAM", *reading]
            while_(walking, of["is_first"][p] == is_first, f"page {p} is the first of its stream")
        there = (command.token <= Array(tokens)[vector]) & (command.token > start)
        reads = reads & read_row & there
        located = rams["infos"].read_data == info_at[entry.first]
        located &= rams["chain"].read_data == chain_at[entry.first]
        while_(["LOCATE"], reads & located, "the page to read")
        skip = registers["skip"] == (start - info.first_token)[: words.token]
        counted = registers["count"] == (command.token - start)[: words.token]
        while_(["ANSWER"], reads & located & skip & counted, "where to read")
        trims = named & opened & op(PageOp.TRIM_STREAM)
        trims &= (
            command.token
            <= Array(registers[f"start_{q}"] for q in range(sequences))[command.sequence]
        )
        trims &= ~(appending & (to_vector // (2 * layers) == command.sequence))
        while_(["TRIM_STREAM"], trims & read_row, "the stream to trim")
        while_(["TRIM_STREAM"], of["n"] == entry.pages, "its pages")
        trims &= Value.cast(left) == entry_at[index]
        trims &= left.pages > 1
        looks = rams["chain"].read_data == chain_at[left.first]
        looks &= rams["infos"].read_data == info_at[left.first]
        while_(["LOOK"], trims & looks, "the page to drop")
        # Which pages of the stream are the first and the second: no answer of a trim needs a
        # choice of page.
        trimming = ["LOOK", "DROP"]
        while_(trimming, of["n"] == left.pages, "pages of the stream to trim")
        for p in range(pages):
            of_stream = owner[p] == STREAM + stream
            is_first = (of_stream & (behind[p] + 1 == left.pages)) == (left.first == p)
            while_(trimming, is_first, f"page {p} is the first of the stream to trim")
            is_second = of_stream & (behind[p] + 2 == left.pages)
            fetched = is_second == (rams["chain"].read_data == p)
            while_(["LOOK"], fetched, f"page {p} is the second of the stream to trim")
            while_(["DROP"], is_second == (second == p), f"page {p} is the second of the stream")
        drops = (second == chain_at[left.first]) & (rams["infos"].read_data == info_at[second])
        old = data.View(words.info, info_at[left.first])
        drops &= registers["old_offset"] == old.offset
        while_(["DROP"], trims & drops, "the page behind it")
        del logged

    def holds(self, slot, records, size):
        """``size`` bytes may be ``records`` records of ``slot``."""
        kind = self.block.config.kv.kind(slot)
        if kind.is_fixed:
            return size == records * kind.most
        return (size >= records * kind.least) & (size <= records * kind.most)


def in_stream_of(owner, base, stream):
    return owner == base + stream


def vector_bits(command, config):
    """The table's vector of any command, in the width in which it holds it."""
    bits = max(1, (config.vectors - 1).bit_length())
    return ((command.sequence * config.layers + command.layer) * 2 + command.kv)[:bits]


def _faulty(method, old, new):
    table = plant(PagingPageTable, method, old, new)
    return lambda: PageTableSpec(type("FaultyTable", (_Watched, table), {})(SmallCache()))


def _defect(name, method, old, new, meaning, depth, step):
    spec = _faulty(method, old, new)
    return Proof(f"defect-pages-{name}", spec, depth, meaning, mode="cases", only=(step,))


def _small():
    return PageTableSpec(WatchedTable(SmallCache()))


# Cases of up to two minutes of one core, and cases of more.
MOST = (
    "reset", "WRITE_TABLES", "IDLE", "TRIM_CHECK", "BEGIN", "EXTEND", "COMMIT", "ABORT", "READ",
    "LOCATE", "ANSWER", "LOOK",
)  # fmt: skip
LONG = ("DECODE", "FREE_STREAM", "TRIM_STREAM", "DROP")
PROOFS = [
    Proof("PageTable-long", _small, 2, mode="cases", only=LONG, long=True, covers=False),
    Proof("PageTable-most", _small, 2, mode="cases", only=MOST, covers=False),
    Proof("PageTable-covers", _small, 1, mode="bmc", long=True, cover_depth=16),
]
# Found a few cycles after some state in which the tables are right, in the step that is wrong.
DEFECTS = [
    _defect(
        "abort",
        "_abort",
        "with m.If(logged.taken): release(logged.page)",
        "with m.If(logged.taken & (slot != 0)):\n    release(logged.page)",
        "an abort forgets the page of slot 0",
        6,
        "ABORT",
    ),
    _defect(
        "trim",
        "_trim_stream",
        "with m.If(info.first_token > command.token):",
        "with m.If(info.first_token > command.token + 1):",
        "a trim releases one page too many",
        8,
        "DROP",
    ),
    _defect(
        "owner",
        "_decode_stream",
        "with m.Elif(~is_open): finish(Status.SEQUENCE_UNKNOWN) "
        "with m.Else(): get(entries, of_slot) get(tokens, vector)",
        "with m.Else():\n    get(entries, of_slot)\n    get(tokens, vector)",
        "READ does not ask whether the sequence is open",
        8,
        "DECODE",
    ),
    _defect(
        "commit",
        "_commit",
        "with m.If(has_link): put(chain, entry.last, logged.page)",
        "with m.If(has_link & (entry.pages > 1)):\n    put(chain, entry.last, logged.page)",
        "a second page is not linked to the first",
        8,
        "COMMIT",
    ),
    _defect(
        "offset",
        "_read",
        "finish(page=entry.first, offset=offset, bytes=size, skip=count)",
        "finish(page=entry.first, offset=offset + 1, bytes=size, skip=count)",
        "READ begins a byte too late",
        4,
        "LOCATE",
    ),
    _defect(
        "start",
        "_decode_sequence",
        "finish(skip=Mux(rises, token, starts[sequence]))",
        "finish(skip=token)",
        "SET_START answers the token wanted, not the start",
        4,
        "DECODE",
    ),
    _defect(
        "count",
        "_read",
        "size.eq(kinds.fixed(lambda kind: count * kind.most))",
        "size.eq(kinds.fixed(lambda kind: (count + 1) * kind.most))",
        "READ gives one record too many",
        4,
        "LOCATE",
    ),
]
