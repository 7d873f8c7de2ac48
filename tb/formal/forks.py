"""Properties of the page table with forks: who has each page, who may write it, who may read it.

A ghost model gives each page its holders, and a place. A page is free, or a slot of the open
transaction has it, or streams of one class have it. A class is (layer, K or V, slot). The streams
are those of one or several sequences. The place is the rank in the stack of free pages, or the
number of the page in the chains of its streams. It is one number for all of them, since chains with
a common page are equal up to it. The ghost follows the commands and their answers.

The invariant is that the table's memories agree with the ghost. Which bytes READ and EXTEND name is
the matter of tb/formal/pages.py; there a trim's pages follow from first tokens. Here a trim
lets go whatever the table's own word of first tokens says.

Commands are free inputs, as in tb/formal/pages.py. NEXT is judged on pages that the named stream
has, but for its last.
"""

import dataclasses
import unittest.mock

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data

import hdl.paging.page_forks
import hdl.paging.page_table
from golden.paging.config import RecordKind, VectorRecords
from golden.paging.format import PageOp, Status
from hdl.paging.layouts import CLOSING, FORKING, OPEN, VACANT
from hdl.paging.page_forks import Forks
from tb.faults.plant import plant
from tb.formal.pages import PageTableSpec, SmallCache, WatchedTable, count, some, vector_bits
from tb.formal.prove import Proof
from tb.formal.spec import transfer


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallShape(VectorRecords):
    """Records of 2 and of 1..3 bytes."""

    heads: int = 1
    per_head: tuple[RecordKind, ...] = (
        RecordKind(name="dense", least=2, most=2),
        RecordKind(name="sparse", least=1, most=3),
    )
    per_vector: tuple[RecordKind, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallForks(SmallCache):
    """3 sequences, 12 streams, 4 pages of 7 bytes."""

    kv: VectorRecords = SmallShape()
    pages: int = 4
    forks: bool = True


class ForkTableSpec(PageTableSpec):
    """Holders of pages: the properties, and the ghost that they are about."""

    def specify(self, m: Module) -> None:
        g = self.g = _Ghost(m, self)
        given, response = self.block.command, self.block.response
        self.ports += [given.valid, Value.cast(given.payload)]
        self.sink(m, response)
        for name, ram in self.block.rams.items():
            self.always(m, ~ram.collision, f"{name}: the row being written is not read")
        g.follow(m)
        self._answers(m, g)
        self._properties(m, g)
        self._tables(m, g)
        self._streams(m, g)
        self._sequences(m, g)
        self._steps(m, g)
        self._covers(m, g)
        self.splits = {
            "DECODE": ("dut.command.op", 4),
            f"DECODE.{PageOp.READ.value}": ("dut.vector", 3),
            f"DECODE.{PageOp.TRIM_STREAM.value}": ("dut.vector", 3),
            f"DECODE.{PageOp.NEXT.value}": ("dut.vector", 3),
            "NEXT": ("dut.vector", 3),
            "FREE_PAGE": ("dut.vector", 3),
            "FORK_SHARE": ("dut.from_stream", 4),
        }

    def _answers(self, m: Module, g: "_Ghost") -> None:
        given, response, done = self.block.command, self.block.response, g.done
        expected = Signal.like(Value.cast(response.payload))
        with m.If(done):
            m.d.sync += expected.eq(Value.cast(g.answer))
        m.d.sync += g.pending.eq(done | (g.pending & ~response.ready))
        same = Value.cast(response.payload) == expected
        self.always(m, response.valid == g.pending, "one answer for each command")
        self.always(m, ~g.pending | same, "the answer holds")
        self.always(m, ~(done & g.pending & ~response.ready), "no answer is lost")
        m.d.sync += g.owed.eq(transfer(given) | (g.owed & ~done))
        busy = g.running & ~self.step("IDLE")
        self.always(m, g.owed == busy, "an answer is owed while busy")
        self.always(m, given.ready == self.step("IDLE"), "ready while idle")
        waits = self.step("DECODE") & g.pending & ~response.ready
        m.d.sync += g.age.eq(Mux(self.step("IDLE") | ~g.running, 0, g.age + ~waits))
        longest = 2 + 2 * g.pages
        self.always(m, ~g.running | (g.age <= longest), f"done in {longest + 2} cycles")

    def _properties(self, m: Module, g: "_Ghost") -> None:
        command, answer, pages = g.command, g.answer, range(g.pages)

        def always(condition, message):
            self.always(m, ~g.running | condition, message, src_loc_at=1)

        always(self.block.free_pages == g.free, "free_pages counts the pages that nobody has")
        extend = g.after(PageOp.EXTEND)
        always(~g.takes | (g.owner_at[g.handed] == g.FREE), "a page handed out was free")
        goes_on = extend & ~(g.takes & (answer.bytes == command.bytes))
        to = g.to_vector * g.slots + command.slot
        is_own = g.has_at(answer.page, to) & (g.behind_at(answer.page, to) == 0)
        always(~goes_on | is_own, "a record goes on in the last page of its stream")
        always(~goes_on | (g.holders_at[answer.page] == 1), "nobody writes to a shared page")
        refused = g.done & (answer.status == Status.OUT_OF_PAGES)
        always(~refused | (g.free == 0), "out of pages only when none is free")

        copied = g.after(PageOp.FORK_STREAM) & (answer.bytes != 0)
        last = [g.has(p, g.fork_from) & (g.behind(p, g.fork_from) == 0) for p in pages]
        alone = [g.is_class(p, g.fork_class) & (g.seqs[p] == (1 << g.fork_child)) for p in pages]
        always(~copied | Array(last)[answer.page], "FORK_STREAM copies the parent's last page")
        always(~copied | Array(alone)[answer.page2], "the copy is the child's alone")
        both = [g.place_at[answer.page] == g.place_at[answer.page2]]
        always(~copied | both[0], "the copy has the place of its page")
        forked = g.after(PageOp.FORK_STREAM)
        parents = g.held_at[g.fork_from]
        children = g.held_at[g.fork_to] + (g.to_share != 0)
        always(~forked | (parents == children), "the child has as many pages")
        for p in pages:
            is_parents = g.has(p, g.fork_from)
            is_rest = copied & (answer.page == p)
            gets = (g.to_share != 0) & (g.share_page == p)
            is_childs = g.has(p, g.fork_to) | gets
            always(
                ~forked | ~is_parents | (is_childs == ~is_rest),
                f"the child has page {p} where the parent has it, unless it is copied",
            )

        state_of = Array(g.states)[command.sequence]
        names = self.step(
            "TRIM_CHECK", "BEGIN", "FREE_STREAM", "FREE_PAGE", "TRIM_STREAM", "LOOK", "DROP",
            "READ", "LOCATE", "ANSWER", "NEXT",
        )  # fmt: skip
        wanted = Mux(command.op == PageOp.FREE_STREAM, CLOSING, OPEN)
        always(
            ~(names & g.done) | ((command.sequence < g.sequences) & (state_of == wanted)),
            "only commands of a sequence that is open, or closing, reach its streams",
        )
        read = g.after(PageOp.READ)
        is_first = g.has_at(answer.page, g.stream) & (g.behind_at(answer.page, g.stream) + 1 == g.n)
        is_next = g.has_at(answer.page, g.stream) & (g.behind_at(answer.page, g.stream) + 2 == g.n)
        jumps = (answer.offset == 0) & ~command.slot[0] & (is_next | (g.n < 2))
        always(
            ~read | is_first | jumps, "READ answers a page of its own stream, the first or second"
        )
        judged = g.after(PageOp.NEXT) & g.has_at(command.page, g.stream)
        judged = judged & (g.behind_at(command.page, g.stream) != 0)
        moves = g.behind_at(answer.page, g.stream) + 1 == g.behind_at(command.page, g.stream)
        always(
            ~judged | (g.has_at(answer.page, g.stream) & moves),
            "NEXT stays in the stream named and goes one page on",
        )
        always(g.appending | ~some(g.in_slot), "COMMIT and ABORT leave no page behind")
        for q in range(g.sequences):
            own = some(g.seqs[p][q] for p in pages)
            always((g.states[q] != VACANT) | ~own, f"sequence {q} has no page while it is vacant")
        for p in pages:
            always(g.in_stream[p] == g.seqs[p].any(), f"page {p} goes back when nobody has it")

    def _tables(self, m: Module, g: "_Ghost") -> None:
        """Invariant: the tables while they are written, the free list, the sharers."""
        registers, rams, pages = self.registers, self.block.rams, g.pages

        def state(condition, message):
            self.state(m, ~g.running | condition, message, src_loc_at=1)

        at, head = registers["at"], registers["free_head"]
        writing = self.step("WRITE_TABLES")
        quiet = (head == 0) & (registers["free_pages"] == pages) & ~registers["appending"]
        quiet &= ~g.appending & ~g.pending & (g.age == 0) & ~g.owed
        quiet &= ~registers["fork_active"] & ~g.forking
        self.state(m, ~writing | quiet, "quiet until the tables are written")
        none = g.words.entry.const({"end": g.page_bytes}).as_value()
        for p in range(pages):
            fresh = (g.owner[p] == g.FREE) & (g.place[p] == pages - 1 - p) & (g.seqs[p] == 0)
            self.state(m, ~writing | fresh, f"page {p} is free at first")
            link = (g.chain[p] == (p + 1) % pages) & (g.sharers[p] == 0)
            self.state(m, ~writing | (at <= p) | link, f"link {p} is written")
        for s in range(g.streams):
            row = rams["entries"].rows[s]
            self.state(m, ~writing | (at <= s) | (row == none), f"entry {s} is written")
        for v in range(g.vectors):
            self.state(m, ~writing | (at <= v) | (g.tokens[v] == 0), f"tokens {v} are written")
        self.state(m, ~writing | (at < max(pages, g.streams)), "rows in range")
        for q in range(g.sequences):
            fresh = (registers[f"state_{q}"] == VACANT) & (registers[f"owned_{q}"] == 0)
            self.state(m, ~writing | (fresh & (g.states[q] == VACANT)), f"sequence {q} is vacant")
        self.state(m, self.step(*self.steps), "a state of the machine")

        state(registers["free_pages"] == g.free, "free_pages")
        on_top = (g.owner_at[head] == g.FREE) & (g.place_at[head] + 1 == g.free)
        state((g.free == 0) | on_top, "head")
        for p in range(pages):
            is_free, link = g.owner[p] == g.FREE, g.chain[p]
            state(~is_free | (g.place[p] < g.free), f"rank of page {p}")
            below = (g.owner_at[link] == g.FREE) & (g.place_at[link] + 1 == g.place[p])
            state(~is_free | (g.place[p] == 0) | below, f"link of free page {p}")
            state(g.owner[p] < g.SLOT + g.slots, f"owner of page {p}")
            state(g.in_stream[p] == (g.seqs[p] != 0), f"holders of page {p}")
            others = Mux(g.in_stream[p], g.holders[p] - 1, 0)
            state(g.sharers[p] == others, f"sharers of page {p}")
            for other in range(p):
                meet = Mux(g.in_stream[p], (g.seqs[p] & g.seqs[other]) != 0, 1)
                apart = (g.owner[p] < g.SLOT) & (g.place[p] != g.place[other])
                state(
                    (g.owner[p] != g.owner[other]) | ~meet | apart,
                    f"pages {other} and {p} are not in one place",
                )

    def _streams(self, m: Module, g: "_Ghost") -> None:
        """Invariant: entries and chains. ``left`` is the entry of a stream that goes."""

        def state(condition, message):
            self.state(m, ~g.running | condition, message, src_loc_at=1)

        going = self.step("FREE_PAGE")
        left = data.View(g.words.entry, self.registers["left"])
        for s in range(g.streams):
            q, c = divmod(s, g.classes)
            mine, held = g.entries[s], g.held[s]
            entry = data.View(
                g.words.entry,
                Mux(going & (g.stream == s), Value.cast(left), Value.cast(mine)),
            )
            coming = self.step("FORK_SHARE") & (g.fork_to == s)  # its entry is not written
            some_pages = (held != 0) & ~coming
            state(~going | (g.stream != s) | (mine.pages == 0), f"entry {s} is empty")
            state(~coming | (mine.pages == 0), f"entry {s} is to come")
            state(coming | (entry.pages == held), f"pages of stream {s}")
            first, last, tip = entry.first, entry.last, entry.tip
            begins = g.behind_at(first, s) + 1 == held
            state(~some_pages | (g.has_at(first, s) & begins), f"first page of stream {s}")
            ends = g.has_at(last, s) & (g.behind_at(last, s) == 0)
            state(~some_pages | ends, f"last page of stream {s}")
            state(mine.end <= g.page_bytes, f"end of stream {s}")
            is_end = Mux(mine.pages != 0, mine.end != 0, mine.end == g.page_bytes)
            state(is_end, f"end of stream {s}")
            # Only full pages are shared.
            is_full = (mine.end == g.page_bytes) | (g.holders_at[last] == 1)
            is_whole = ~coming & ~(going & (g.stream == s)) & (held != 0)
            state(~is_whole | is_full, f"the last page of stream {s} is full, or its own")
            state((mine.pages != 0) | ~mine.has_tip, f"no tip of stream {s} without pages")
            is_tip_full = ~mine.has_tip | (mine.last != mine.tip) | (mine.end == g.page_bytes)
            state(~is_whole | is_tip_full, f"the tip of stream {s} is full")
            # The tip of a child, and its own pages.
            has_tip = entry.has_tip & some_pages
            keeps_tip = g.has_at(tip, s)
            state(~(is_whole & mine.has_tip) | keeps_tip, f"tip of stream {s}")
            is_child = Array(self.registers[f"is_child_{n}"] for n in range(g.sequences))
            state(~(is_whole & mine.has_tip) | is_child[q], f"stream {s} of a child")
            for p in range(g.pages):
                has = g.has(p, s)
                is_late = g.behind(p, s) < g.behind_at(tip, s)
                is_own = ~mine.has_tip | is_late
                state(
                    ~(is_whole & has & is_child[q] & is_own) | (g.holders[p] == 1),
                    f"page {p} of stream {s} is its own after the tip",
                )
                follower = Mux(has_tip & (tip == p), entry.own, g.chain[p])
                on = g.has_at(follower, s) & (g.behind_at(follower, s) + 1 == g.behind(p, s))
                state(coming | ~has | (g.behind(p, s) == 0) | on, f"page after {p} in stream {s}")
                state(coming | ~has | (g.behind(p, s) < held), f"page {p} of stream {s}")
                # A parent adds no link that one of its children follows.
                for other in range(g.sequences):
                    its = other * g.classes + c
                    if other == q:
                        continue
                    is_link = g.has(p, its) & (g.behind(p, its) == 0) & ~is_child[other]
                    state(
                        ~(is_whole & has & is_child[q] & is_link) | (mine.tip == p),
                        f"page {p} is the tip of stream {s} if it is the last of {other}",
                    )
        for p in range(g.pages):
            roots = [g.seqs[p][q] & ~self.registers[f"is_child_{q}"] for q in range(g.sequences)]
            state(count(roots) <= 1, f"page {p} has one parent")

    def _sequences(self, m: Module, g: "_Ghost") -> None:
        """Invariant: sequences, tokens, the transaction and the fork."""
        registers, slots = self.registers, g.slots

        def state(condition, message):
            self.state(m, ~g.running | condition, message, src_loc_at=1)

        left = data.View(g.words.entry, registers["left"])
        going, sharing = self.step("FREE_PAGE"), self.step("FORK_SHARE")
        for q in range(g.sequences):
            own = count(g.seqs[p][q] for p in range(g.pages))
            gone = Mux(going & (g.command.sequence == q), left.pages, 0)
            coming = Mux(sharing & (g.fork_child == q), g.held_at[g.fork_to], 0)
            state(registers[f"owned_{q}"] + gone + coming == own, f"pages of sequence {q}")
            state(registers[f"state_{q}"] == g.states[q], f"state of sequence {q}")
            is_fork = g.forking & (g.fork_child == q)
            state((g.states[q] == FORKING) == is_fork, f"sequence {q} is the child")
            for v in range(g.vectors // g.sequences):
                vector = q * (g.vectors // g.sequences) + v
                tokens = g.tokens[vector]
                state((g.states[q] != VACANT) | (tokens == 0), f"vector {vector} is empty")
                is_open = (g.states[q] == OPEN) | (g.states[q] == FORKING)
                for slot in range(slots):
                    s = vector * slots + slot
                    coming = sharing & (g.fork_to == s)
                    is_last = slot == slots - 1
                    state(
                        (tokens == 0) | (g.held[s] != 0) | (~is_open if not is_last else 0)
                        | coming,
                        f"stream {s} has pages if it has tokens",
                    )  # fmt: skip
                    is_done = is_fork & (registers["fork_done"] > v * slots + slot)
                    state(
                        ~is_done | (registers["fork_token"] == 0) | (g.held[s] != 0),
                        f"stream {s} of the child has pages",
                    )
                    is_due = is_fork & (registers["fork_done"] <= v * slots + slot)
                    state(~is_due | coming | (g.held[s] == 0), f"stream {s} is to come")
                    state(~is_due | (tokens == 0), f"tokens of vector {vector} are to come")

        state(registers["appending"] == g.appending, "appending")
        to = g.to_vector
        vectors = g.vectors // g.sequences
        same = registers["to_vector"] == to
        same &= registers["to_sequence"] == to // vectors
        same &= registers["to_stream"] == to * slots
        same &= (registers["extended"] == g.extended) & (g.extended <= slots)
        same &= to < g.vectors
        own = Array(g.states)[to // vectors] == OPEN
        state(~g.appending | (own & same), "the transaction")
        for j in range(slots):
            taken = some(o == g.SLOT + j for o in g.owner)
            past = self.step("COMMIT", "ABORT") & (g.slot > j)
            live = g.appending & (j < g.extended) & ~past
            state(live | ~taken, f"slot {j} has a page only while it is extended")
            state(~live | (g.log[j].taken == taken), f"slot {j} knows that it took a page")
            has = g.owner_at[g.log[j].page] == g.SLOT + j
            state(~live | ~taken | has, f"slot {j} knows its page")
            entry = data.View(g.words.entry, g.entry_at[to * slots + j])
            size, room = g.log[j].bytes, g.page_bytes - entry.end
            state(~live | Mux(taken, size > room, size <= room), f"record of slot {j}")
            kind = self.block.config.kv.kind(j)
            state(~live | ((size >= kind.least) & (size <= kind.most)), f"size of slot {j}")

        state(registers["fork_active"] == g.forking, "a fork is under way")
        done = registers["fork_done"]
        same = (registers["fork_parent"] == g.fork_parent) & (g.fork_parent < g.sequences)
        same &= (registers["fork_child"] == g.fork_child) & (g.fork_child < g.sequences)
        same &= (done == g.fork_class) & (done <= g.classes)
        same &= registers["from_stream"] == (g.fork_parent * g.classes + done)[:4]
        same &= registers["fork_to_stream"] == (g.fork_child * g.classes + done)[:4]
        vector = sum((done >= k * slots for k in range(1, vectors + 1)), 0)
        same &= registers["from_vector"] == (g.fork_parent * vectors + vector)[:3]
        same &= registers["fork_to_vector"] == (g.fork_child * vectors + vector)[:3]
        same &= registers["fork_slot"] == done - vector * slots
        same &= Array(g.states)[g.fork_parent] == OPEN
        is_child = Array(registers[f"is_child_{n}"] for n in range(g.sequences))
        same &= ~is_child[g.fork_parent] & is_child[g.fork_child]
        state(~g.forking | same, "the fork")

    def _steps(self, m: Module, g: "_Ghost") -> None:
        """Invariant: what registers hold between the steps of a command."""
        registers, rams, command = self.registers, self.block.rams, g.command

        def while_(names, condition, message):
            self.state(m, ~self.step(*names) | condition, message, src_loc_at=1)

        def op(*ops):
            return some(command.op == value for value in ops)

        entry = data.View(g.words.entry, rams["entries"].read_data)
        left = data.View(g.words.entry, registers["left"])
        index, slot = registers["index"], g.slot
        read_row = rams["entries"].read_data == g.entry_at[index]
        link, others = rams["chain"].read_data, rams["sharers"].read_data

        def linked(page):
            return (link == g.chain_at[page]) & (others == g.sharers_at[page])

        config = self.block.config
        named = (index == g.stream) & (command.layer < config.layers) & (command.slot < g.slots)
        named &= (command.sequence < g.sequences) & (registers["vector"] == g.vector)
        opened = Array(g.states)[command.sequence] == OPEN
        while_(["DECODE"], g.age == 0, "age")
        one = [
            "TRIM_CHECK", "BEGIN", "FREE_STREAM", "EXTEND", "TRIM_STREAM", "READ", "NEXT",
            "FORK_STREAM",
        ]  # fmt: skip
        while_(one, g.age == 1, "age")
        while_(["LOCATE"], g.age == 2, "age")
        while_(["ANSWER"], g.age == 3, "age")
        while_(["COMMIT", "ABORT"], g.age == 1 + slot, "age")
        pages = g.pages
        while_(["LOOK"], g.age + 2 * left.pages <= 2 + 2 * pages, "age")
        while_(["DROP"], g.age + 2 * left.pages <= 3 + 2 * pages, "age")
        while_(["FREE_PAGE"], g.age + left.pages <= 2 + pages, "age")
        while_(["FORK_SHARE"], g.age + g.to_share <= 2 + pages, "age")
        walks = ["LOCATE", "ANSWER", "COMMIT", "ABORT", "LOOK", "DROP", "FREE_PAGE", "FORK_SHARE"]
        while_([*one, *walks], ~g.pending, "the answer's register is empty")
        while_(["DECODE"], registers["vector"] == vector_bits(command, config), "vector")
        asked = (command.op != PageOp.NEXT) | (command.page >= pages)
        while_(["DECODE"], asked | (link == g.chain_at[command.page]), "NEXT has read its link")
        in_vector = (command.layer < config.layers) & (command.sequence < g.sequences)
        in_vector &= opened & (registers["vector"] == g.vector)
        while_(["TRIM_CHECK", "BEGIN"], in_vector, "the vector")
        while_(["TRIM_CHECK"], op(PageOp.TRIM_CHECK), "op")
        while_(["BEGIN"], op(PageOp.BEGIN) & ~g.appending, "op")
        nexts = op(PageOp.NEXT) & named & opened & read_row & (command.page < pages)
        while_(["NEXT"], nexts & (link == g.chain_at[command.page]), "the page before")

        frees = op(PageOp.FREE_STREAM) & named
        frees &= Array(g.states)[command.sequence] == CLOSING
        while_(["FREE_STREAM"], frees & read_row, "the stream to free")
        goes = (left.pages != 0) & linked(left.first)
        while_(["FREE_PAGE"], frees & goes, "the page to let go")
        while_(["FREE_PAGE"], left.pages == g.n, "pages to let go")
        forgets = (command.slot != g.slots - 1) | (Array(g.tokens)[g.vector] == 0)
        while_(["FREE_PAGE"], forgets, "tokens are forgotten")

        extends = (index == g.to_vector * g.slots + command.slot) & (command.slot == g.extended)
        extends &= read_row & (link == g.chain_at[registers["free_head"]]) & g.appending
        extends &= g.extended < g.slots
        while_(["EXTEND"], op(PageOp.EXTEND) & extends, "the stream to extend")
        kinds = [config.kv.kind(j) for j in range(g.slots)]
        sized = [(command.bytes >= kind.least) & (command.bytes <= kind.most) for kind in kinds]
        while_(["EXTEND"], Array(sized)[command.slot], "size")
        logged = rams["log"].read_data == Array(rams["log"].rows)[slot]
        commits = (index == g.to_vector * g.slots + slot) & read_row & (slot < g.slots)
        commits &= g.appending & (g.extended == g.slots) & logged
        while_(["COMMIT"], op(PageOp.COMMIT) & commits, "the slot to commit")
        for j in range(g.slots):
            has_pages = g.held_at[g.to_vector * g.slots + j] != 0
            while_(["COMMIT"], (slot <= j) | has_pages, f"slot {j} has pages by now")
        aborts = g.appending & (slot < g.extended) & op(PageOp.ABORT) & logged
        while_(["ABORT"], aborts, "the slot to abort")

        reads = named & opened & op(PageOp.READ) & read_row
        has_tokens = rams["tokens"].read_data == Array(g.tokens)[g.vector]
        while_(["READ"], reads & has_tokens, "the stream to read")
        there = (g.n != 0) & (link == g.chain_at[entry.first])
        while_(["LOCATE", "ANSWER"], reads & there, "the page to read")

        trims = named & opened & op(PageOp.TRIM_STREAM)
        trims &= ~(g.appending & (registers["to_sequence"] == command.sequence))
        trims &= ~(g.forking & (g.fork_parent == command.sequence))
        while_(["TRIM_STREAM"], trims & read_row, "the stream to trim")
        trims &= (Value.cast(left) == g.entry_at[index]) & (left.pages > 1)
        while_(["LOOK"], trims & linked(left.first), "the page to drop")
        second = registers["second"]
        is_second = g.has_at(second, g.stream) & (g.behind_at(second, g.stream) + 2 == g.n)
        drops = is_second & (others == g.sharers_at[left.first])
        while_(["DROP"], trims & drops, "the page behind it")

        forks = op(PageOp.FORK_STREAM) & g.forking & (registers["fork_done"] < g.classes)
        begins = rams["entries"].read_data == g.entry_at[g.fork_from]
        begins &= link == g.chain_at[registers["free_head"]]
        begins &= rams["tokens"].read_data == Array(g.tokens)[registers["from_vector"]]
        while_(["FORK_STREAM"], forks & begins, "the stream to fork")
        at, to_share = registers["share_at"], g.to_share
        is_partial = left.end != g.page_bytes
        forks &= Value.cast(left) == g.entry_at[g.fork_from]
        forks &= Array(g.tokens)[registers["from_vector"]] == registers["fork_token"]
        while_(["FORK_SHARE"], forks, "the stream that is forked")
        copy = registers["copy"]
        is_copy = g.has_at(copy, g.fork_to) & (g.holders_at[copy] == 1)
        is_copy &= g.place_at[copy] == g.place_at[left.last]
        while_(["FORK_SHARE"], ~is_partial | is_copy, "the copy")
        rest = to_share + g.held_at[g.fork_to]
        while_(["FORK_SHARE"], rest == left.pages, "pages to share")
        while_(["FORK_SHARE"], (to_share != 0) | (left.pages == is_partial), "none to share")
        shares = linked(at) & (g.share_page == at) & g.has_at(at, g.fork_from)
        while_(["FORK_SHARE"], (to_share == 0) | shares, "the page to share")
        while_(["FORK_SHARE"], g.following_at[g.fork_to] == g.following_at[g.fork_from], "end")
        for p in range(pages):
            is_shared = g.has(p, g.fork_from) & (g.behind(p, g.fork_from) + 1 > is_partial)
            is_past = g.behind(p, g.fork_from) >= to_share + is_partial
            is_parents = is_shared & is_past
            has = g.has(p, g.fork_to)
            while_(
                ["FORK_SHARE"],
                has == (is_parents | (is_partial & (copy == p))),
                f"page {p} is shared by now",
            )

    def _covers(self, m: Module, g: "_Ghost") -> None:
        frees = self.step("FREE_PAGE")
        many = some(h > 2 for h in g.holders)
        self.cover(m, many, "three sequences have one page")
        self.cover(m, g.after(PageOp.FORK_STREAM) & (g.to_share == 1) & (g.answer.bytes != 0),
                   "a stream of full pages and a copy")  # fmt: skip
        self.cover(m, frees & (g.sharers_at[g.left.first] != 0), "a page stays with others")
        self.cover(m, frees & (g.sharers_at[g.left.first] == 0), "a page goes back")
        self.cover(m, self.step("NEXT") & g.done & (g.answer.page != g.chain_at[g.command.page]),
                   "a page after a tip")  # fmt: skip
        self.cover(m, g.after(PageOp.FORK_END), "a child is open")


class _Ghost:
    """Holders and places of pages, by the commands and their answers."""

    def __init__(self, m: Module, spec: ForkTableSpec):
        block, config, registers = spec.block, spec.block.config, spec.registers
        self.spec, rams = spec, block.rams
        words = self.words = hdl.paging.page_table._Words(config)
        self.pages, self.slots, self.streams = config.pages, config.kv.slots, config.streams
        self.sequences, self.vectors = config.sequences, config.vectors
        self.page_bytes = config.page_bytes
        self.classes = self.streams // self.sequences
        self.FREE, self.CLASS, self.SLOT = 0, 1, 1 + self.classes
        self.chain, self.sharers = rams["chain"].rows, rams["sharers"].rows
        self.tokens = rams["tokens"].rows
        self.entries = [data.View(words.entry, row) for row in rams["entries"].rows]
        self.log = [data.View(words.log, row) for row in rams["log"].rows]
        self.chain_at, self.sharers_at = Array(self.chain), Array(self.sharers)
        self.entry_at = Array(rams["entries"].rows)
        self.command = data.View(hdl.paging.page_table.PAGE_COMMAND_LAYOUT, registers["command"])
        layout = hdl.paging.page_table.PAGE_RESPONSE_LAYOUT
        self.answer, self.done = data.View(layout, spec.wires["answer"]), spec.wires["done"]
        self.left = data.View(words.entry, registers["left"])
        self.slot, self.to_share = registers["slot"], registers["to_share"]
        self.running, self.good = Signal(), Signal()
        m.d.comb += [
            self.running.eq(~spec.step("WRITE_TABLES")),
            self.good.eq(self.done & (self.answer.status == Status.OK)),
        ]
        pages, sequences = range(self.pages), range(self.sequences)
        self.owner = [Signal(range(self.SLOT + self.slots), name=f"owner_{p}") for p in pages]
        self.seqs = [Signal(self.sequences, name=f"holders_{p}") for p in pages]
        self.place = [Signal(4, name=f"place_{p}", init=self.pages - 1 - p) for p in pages]
        self.following = [Signal(4, name=f"following_{s}") for s in range(self.streams)]
        self.states = [Signal(2, name=f"ghost_state_{q}") for q in sequences]
        self.appending, self.extended = Signal(name="ghost_appending"), Signal(range(8))
        self.to_vector = Signal(range(self.vectors))
        self.forking = Signal()
        self.fork_parent, self.fork_child = (
            Signal(range(self.sequences)),
            Signal(range(self.sequences)),
        )
        self.fork_class = Signal(range(self.classes + 1))
        self.pending, self.owed, self.age = Signal(), Signal(), Signal(range(32))

        self.owner_at, self.place_at = Array(self.owner), Array(self.place)
        self.following_at = Array(self.following)
        self.in_stream = [(o >= self.CLASS) & (o < self.SLOT) for o in self.owner]
        self.in_slot = [o >= self.SLOT for o in self.owner]
        self.holders = [Signal(3, name=f"count_{p}") for p in pages]
        for p in pages:
            m.d.comb += self.holders[p].eq(sum(self.seqs[p][q] for q in sequences))
        self.holders_at = Array(self.holders)
        self.free = Signal(range(self.pages + 1))
        m.d.comb += self.free.eq(count(o == self.FREE for o in self.owner))
        self.held = [Signal(range(self.pages + 1), name=f"held_{s}") for s in range(self.streams)]
        for s in range(self.streams):
            m.d.comb += self.held[s].eq(count(self.has(p, s) for p in pages))
        self.held_at = Array(self.held)
        command = self.command
        self.vector, self.stream = Signal(range(self.vectors)), Signal(range(self.streams))
        self.fork_from, self.fork_to = Signal(range(16)), Signal(range(16))
        m.d.comb += [
            self.vector.eq((command.sequence * config.layers + command.layer) * 2 + command.kv),
            self.stream.eq(self.vector * self.slots + command.slot),
            self.fork_from.eq(self.fork_parent * self.classes + self.fork_class),
            self.fork_to.eq(self.fork_child * self.classes + self.fork_class),
        ]
        self.n = self.held_at[self.stream]
        self._steps(m)

    def _steps(self, m: Module) -> None:
        """The pages that this cycle's step is about."""
        command, answer, pages = self.command, self.answer, range(self.pages)
        straddles, extend = answer.bytes < command.bytes, self.after(PageOp.EXTEND)
        self.takes, self.handed = Signal(), Signal(range(self.pages))
        m.d.comb += [
            self.takes.eq(extend & (straddles | (answer.offset == 0))),
            self.handed.eq(Mux(straddles, answer.page2, answer.page)),
        ]
        info = data.View(self.words.info, self.spec.block.rams["infos"].read_data)
        drops = self.spec.step("DROP") & (info.first_token <= command.token)
        self.lets_go = Signal()  # the first page of the command's stream
        m.d.comb += self.lets_go.eq(self.spec.step("FREE_PAGE") | drops)
        self.goes = [self.has(p, self.stream) & (self.behind(p, self.stream) + 1 == self.n)
                     for p in pages]  # fmt: skip
        # The next page that the parent shares, and the one that is copied.
        rams, registers = self.spec.block.rams, self.spec.registers
        entry = data.View(self.words.entry, rams["entries"].read_data)
        self.is_partial = entry.end != self.page_bytes
        tokens = rams["tokens"].read_data
        self.forks = Signal()
        m.d.comb += self.forks.eq(
            self.spec.step("FORK_STREAM") & (tokens == registers["fork_token"])
            & ~(self.is_partial & (self.free == 0))
        )  # fmt: skip
        self.share_page = Signal(range(self.pages))
        rest = self.left.end != self.page_bytes
        for p in pages:
            at = self.behind(p, self.fork_from) + 1 == self.to_share + rest
            with m.If(self.has(p, self.fork_from) & at):
                m.d.comb += self.share_page.eq(p)

    def after(self, op):
        return self.good & (self.command.op == op)

    def is_class(self, p: int, wanted):
        return self.owner[p] == self.CLASS + wanted

    def has(self, p: int, stream):
        """Whether ``stream`` has page p."""
        if isinstance(stream, int):
            q, c = divmod(stream, self.classes)
            return (self.owner[p] == self.CLASS + c) & self.seqs[p][q]
        return Array(self.has(p, s) for s in range(self.streams))[stream]

    def has_at(self, page, stream):
        return (page < self.pages) & Array(self.has(p, stream) for p in range(self.pages))[page]

    def behind(self, p: int, stream):
        """Counts pages of ``stream`` after p; places wrap, since a chain may move on for ever."""
        following = self.following[stream] if isinstance(stream, int) else self.following_at[stream]
        return (following - 1 - self.place[p])[:4]

    def behind_at(self, page, stream):
        following = self.following[stream] if isinstance(stream, int) else self.following_at[stream]
        return (following - 1 - self.place_at[page])[:4]

    def follow(self, m: Module) -> None:
        spec, command, answer = self.spec, self.command, self.answer
        to_class = Signal(range(self.classes))
        to_sequence = Signal(range(self.sequences))
        vectors = self.vectors // self.sequences
        m.d.comb += [
            to_sequence.eq(self.to_vector // vectors),
            to_class.eq((self.to_vector % vectors) * self.slots + self.slot),
        ]
        for p in range(self.pages):

            def back(p=p):
                return [self.owner[p].eq(self.FREE), self.place[p].eq(self.free)]

            with m.If(self.takes & (self.handed == p)):
                m.d.sync += self.owner[p].eq(self.SLOT + command.slot)
            with m.If(self.owner[p] == self.SLOT + self.slot):
                with m.If(spec.step("COMMIT")):
                    m.d.sync += [
                        self.owner[p].eq(self.CLASS + to_class),
                        self.seqs[p].eq(1 << to_sequence),
                        self.place[p].eq(
                            self.following_at[self.to_vector * self.slots + self.slot]
                        ),
                    ]
                with m.If(spec.step("ABORT")):
                    m.d.sync += back()
            mine = Signal(self.sequences, name=f"mine_{p}")
            m.d.comb += mine.eq(1 << command.sequence)
            with m.If(self.lets_go & self.goes[p]):
                m.d.sync += self.seqs[p].eq(self.seqs[p] & ~mine)
                with m.If(self.holders[p] == 1):
                    m.d.sync += back()
            is_top = (self.owner[p] == self.FREE) & (self.place[p] + 1 == self.free)
            with m.If(self.forks & self.is_partial & is_top):
                m.d.sync += [
                    self.owner[p].eq(self.CLASS + self.fork_class),
                    self.seqs[p].eq(1 << self.fork_child),
                    self.place[p].eq(self.following_at[self.fork_from] - 1),
                ]
            shares = spec.step("FORK_SHARE") & (self.to_share != 0)
            with m.If(shares & (self.share_page == p)):
                m.d.sync += self.seqs[p].eq(self.seqs[p] | (1 << self.fork_child))
        for s in range(self.streams):
            q, c = divmod(s, self.classes)
            commits = some(o == self.SLOT + self.slot for o in self.owner)
            its = (to_sequence == q) & (to_class == c)
            with m.If(spec.step("COMMIT") & commits & its):
                m.d.sync += self.following[s].eq(self.following[s] + 1)
            with m.If(self.forks & (self.fork_to == s)):
                m.d.sync += self.following[s].eq(self.following_at[self.fork_from])
        with m.If(self.after(PageOp.OPEN)):
            m.d.sync += Array(self.states)[answer.sequence].eq(OPEN)
        with m.If(self.after(PageOp.CLOSE)):
            m.d.sync += Array(self.states)[command.sequence].eq(CLOSING)
            with m.If(command.sequence == self.fork_child):
                m.d.sync += self.forking.eq(0)
        with m.If(self.after(PageOp.VACATE)):
            m.d.sync += Array(self.states)[command.sequence].eq(VACANT)
        with m.If(self.after(PageOp.BEGIN)):
            m.d.sync += [
                self.appending.eq(1), self.extended.eq(0), self.to_vector.eq(self.vector)
            ]  # fmt: skip
        with m.If(self.after(PageOp.EXTEND)):
            m.d.sync += self.extended.eq(self.extended + 1)
        with m.If(self.after(PageOp.COMMIT) | self.after(PageOp.ABORT)):
            m.d.sync += self.appending.eq(0)
        with m.If(self.after(PageOp.FORK)):
            m.d.sync += [
                self.forking.eq(1), self.fork_parent.eq(command.sequence),
                self.fork_child.eq(answer.sequence), self.fork_class.eq(0),
                Array(self.states)[answer.sequence].eq(FORKING),
            ]  # fmt: skip
        with m.If(self.after(PageOp.FORK_STREAM)):
            m.d.sync += self.fork_class.eq(self.fork_class + 1)
        with m.If(self.after(PageOp.FORK_END)):
            m.d.sync += [self.forking.eq(0), Array(self.states)[self.fork_child].eq(OPEN)]


def _small() -> ForkTableSpec:
    return ForkTableSpec(WatchedTable(SmallForks()))


def _defect(name: str, method: str, old: str, new: str, meaning: str, depth: int, step: str):
    faulty = plant(Forks, method, old, new)

    class FaultyTable(WatchedTable):
        def elaborate(self, platform):
            with unittest.mock.patch.object(hdl.paging.page_forks, "Forks", faulty):
                return super().elaborate(platform)

    return Proof(
        f"defect-forks-{name}",
        lambda: ForkTableSpec(FaultyTable(SmallForks())),
        depth,
        meaning,
        mode="cases",
        only=(step,),
    )


# Cases of up to half a minute of one core, and cases of more.
MOST = (
    "reset", "WRITE_TABLES", "IDLE", "DECODE", "NEXT", "TRIM_CHECK", "BEGIN", "FREE_STREAM",
    "FORK_STREAM", "EXTEND", "COMMIT", "ABORT", "READ", "LOCATE", "ANSWER", "TRIM_STREAM", "LOOK",
    "DROP",
)  # fmt: skip
LONG = ("FREE_PAGE", "FORK_SHARE")
PROOFS = [
    Proof("ForkTable-most", _small, 2, mode="cases", only=MOST, covers=False),
    Proof("ForkTable-long", _small, 2, mode="cases", only=LONG, long=True, covers=False),
    Proof("ForkTable-covers", _small, 1, mode="bmc", long=True, cover_depth=16),
]
# Found a few cycles after some state in which the tables are right, in the step that is wrong.
DEFECTS = [
    _defect(
        "count",
        "let_go",
        "with m.If(others == 0):",
        "with m.If(others < 2):",
        "a page goes back while one other sequence has it",
        4,
        "FREE_PAGE",
    ),
    _defect(
        "partial",
        "fork_stream",
        "self.to_share.eq(entry.pages - is_partial),",
        "self.to_share.eq(entry.pages),",
        "a page that is not full is shared too",
        6,
        "FORK_STREAM",
    ),
    _defect(
        "tip",
        "follower",
        "return Mux(entry.has_tip & (page == entry.tip), entry.own, link)",
        "return link",
        "NEXT follows the parent's link after the tip",
        4,
        "NEXT",
    ),
    _defect(
        "link",
        "commit",
        "return (entry.pages != 0) & ~is_at_tip",
        "return entry.pages != 0",
        "a child changes the link that its parent follows",
        10,
        "COMMIT",
    ),
]
