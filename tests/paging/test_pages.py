"""golden.paging.pages against a model that knows nothing of its tables.

The model keeps each record as bytes and each page of memory as bytes. It keeps the pages only as
sets: free, or owned by a stream. A record's place follows from its address in the stream, as if a
stream were one long file cut into pages. Freed pages are overwritten, so a read through an old
mapping cannot go unseen.

Shown to fail:

- trims one page too many, too few or to none;
- ``bytes`` without the offset of the page before or after;
- a straddling record's page with its own token or offset 0;
- an exact fit that takes a page;
- records after a full page read from it;
- pages of an abort or of a freed stream lost;
- tokens that outlive their stream;
- a start that falls or outlives its sequence;
- one token too many;
- a transaction of some slots;
- a vacated sequence with pages.

With forks, shown to fail:

- a page that goes back while another stream has it;
- a page that no stream has and that does not go back;
- a child that shares the page in which its parent goes on;
- a child that follows its parent's link after its tip;
- first tokens that the copy of a page lacks;
- a child without its parent's start, or without its tokens.
"""

import dataclasses
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.format import SCALE_BYTES
from golden.paging.format import PageOp, Status
from golden.paging.pages import PageCommand, PageTable

CONFIG = CacheConfig(
    kv=KvShape(heads=1, head_dim=48, block=16), sequences=3, layers=1, pages=23, page_bytes=256,
    max_tokens=45,
)  # fmt: skip
SLOTS, PAGE = CONFIG.kv.slots, CONFIG.page_bytes
WHERE = st.tuples(st.integers(0, 2), st.integers(0, 1))  # sequence, K or V
FIELDS = st.tuples(
    st.integers(0, 4), st.integers(0, 1), st.integers(0, 1), st.integers(0, 4),
    st.integers(0, 47), st.integers(0, 60), st.integers(0, 25),
)  # fmt: skip


class Stream:
    """Consecutive records, cut into pages of a file."""

    def __init__(self):
        self.records: list[bytes] = []
        self.pages: set[int] = set()
        self.dropped = 0  # pages of the file that are forgotten

    def address(self, token: int) -> int:
        return sum(map(len, self.records[:token]))

    def file_pages(self) -> int:
        return -(-self.address(len(self.records)) // PAGE)


class PageTableModel(RuleBasedStateMachine):
    config = CONFIG
    forking = None  # (parent, child, token, streams done)
    children: frozenset[int] = frozenset()

    @initialize(seed=st.integers(0, 1 << 30))
    def begin(self, seed):
        self.rng = random.Random(seed)
        self.table = PageTable(self.config)
        self.memory = [self.rng.randbytes(PAGE) for _ in range(CONFIG.pages)]
        self.free = set(range(CONFIG.pages))
        self.streams: dict[tuple[int, int, int], Stream] = {}
        self.start: dict[int, int] = {}  # of the open sequences
        self.closing: set[int] = set()
        self.appending = None  # (sequence, kv, per slot (record, page taken))
        self.open()

    def ask(self, op, expected=Status.OK, **fields):
        answer = self.table.command(PageCommand(op, **fields))
        assert answer.status == expected, (op, fields)
        if answer.status != Status.OK:
            assert not any(answer[1:])
        return answer

    def holders(self, page):
        return [key for key, stream in self.streams.items() if page in stream.pages]

    def give_back(self, page):
        assert page not in self.free
        if self.holders(page):
            return
        self.free.add(page)
        self.memory[page] = self.rng.randbytes(PAGE)

    def size(self, slot):
        low, high = CONFIG.kv.head_blocks, CONFIG.kv.sparse_bytes_max
        sizes = {0: CONFIG.kv.dense_bytes, 2: SCALE_BYTES}
        return sizes.get(slot) or self.rng.choice([low, high, self.rng.randint(low, high)])

    @rule()
    def open(self):
        used = {*self.start, *self.closing, *(self.forking or ())[1:2]}
        if len(used) == CONFIG.sequences:
            self.ask(PageOp.OPEN, Status.TABLE_FULL)
            return
        number = self.ask(PageOp.OPEN).sequence
        assert number == min({*range(CONFIG.sequences)} - used)
        self.start[number] = 0
        self.children -= {number}
        for kv in (0, 1):
            self.streams.update({(number, kv, slot): Stream() for slot in range(SLOTS)})

    @precondition(lambda self: self.appending is None)
    @rule(where=WHERE, distance=st.sampled_from([0, 0, 0, 0, 1, -1]))
    def begin_append(self, where, distance):
        sequence, kv = where
        if sequence not in self.start:
            self.ask(PageOp.BEGIN, Status.SEQUENCE_UNKNOWN, sequence=sequence, kv=kv)
            return
        tokens = len(self.streams[sequence, kv, 0].records)
        token = max(0, tokens + distance)
        expected = Status.OK
        if token != tokens:
            expected = Status.TOKEN_ORDER
        elif tokens == CONFIG.max_tokens:
            expected = Status.LENGTH_LIMIT
        self.ask(PageOp.BEGIN, expected, sequence=sequence, kv=kv, token=token)
        if expected == Status.OK:
            self.appending = (sequence, kv, [])

    def extend_one(self) -> Status:
        sequence, kv, log = self.appending
        slot = len(log)
        stream = self.streams[sequence, kv, slot]
        record = self.rng.randbytes(self.size(slot))
        room = stream.file_pages() * PAGE - stream.address(len(stream.records))
        if len(record) > room and not self.free:
            self.ask(PageOp.EXTEND, Status.OUT_OF_PAGES, slot=slot, bytes=len(record))
            return Status.OUT_OF_PAGES
        answer = self.ask(PageOp.EXTEND, slot=slot, bytes=len(record))
        pieces, taken = [(answer.page, answer.offset, record[: answer.bytes])], None
        if len(record) > room:
            taken = answer.page2 if room else answer.page
            self.free.remove(taken)
            assert answer.bytes == (room or len(record))
        if answer.bytes < len(record):
            pieces.append((answer.page2, 0, record[answer.bytes :]))
        for page, offset, data in pieces:
            assert page in stream.pages or page == taken
            assert len(self.holders(page)) == (page in stream.pages), "a shared page is written"
            word = self.memory[page]
            self.memory[page] = word[:offset] + data + word[offset + len(data) :]
            assert len(self.memory[page]) == PAGE
        log.append((record, taken))
        return Status.OK

    @precondition(lambda self: self.appending and len(self.appending[2]) < SLOTS)
    @rule(count=st.integers(1, SLOTS))
    def extend(self, count):
        for _ in range(min(count, SLOTS - len(self.appending[2]))):
            if self.extend_one() != Status.OK:
                break

    @precondition(lambda self: self.appending)
    @rule()
    def commit(self):
        sequence, kv, log = self.appending
        if len(log) < SLOTS:
            self.ask(PageOp.COMMIT, Status.BAD_REQUEST)
            return
        self.ask(PageOp.COMMIT)
        for slot, (record, taken) in enumerate(log):
            stream = self.streams[sequence, kv, slot]
            stream.records.append(record)
            stream.pages |= {taken} - {None}
        self.appending = None

    @precondition(lambda self: self.appending)
    @rule()
    def abort(self):
        self.ask(PageOp.ABORT)
        for _, taken in self.appending[2]:
            if taken is not None:
                self.give_back(taken)
        self.appending = None

    @precondition(lambda self: self.appending is None and self.start)
    @rule(number=st.integers(0, 5), count=st.integers(1, 45))
    def append_many(self, number, count):
        sequence = sorted(self.start)[number // 2 % len(self.start)]
        for _ in range(count):
            self.begin_append((sequence, number % 2), 0)
            while self.appending and len(self.appending[2]) < SLOTS:
                if self.extend_one() != Status.OK:
                    self.abort()
                    return
            if self.appending:
                self.commit()

    @precondition(lambda self: self.start)
    @rule(back=st.integers(-1, 3))
    def read_all(self, back):
        for sequence in range(CONFIG.sequences):
            for kv in (0, 1):
                for slot in range(SLOTS):
                    self.read(sequence, kv, slot, back)

    def read(self, sequence, kv, slot, back):
        fields = {"sequence": sequence, "kv": kv, "slot": slot}
        if sequence not in self.start:
            self.ask(PageOp.READ, Status.SEQUENCE_UNKNOWN, **fields)
            return
        stream, start = self.streams[sequence, kv, slot], self.start[sequence]
        token = max(0, len(stream.records) - back)
        if token > len(stream.records):
            self.ask(PageOp.READ, Status.BEYOND_LENGTH, **fields, token=token)
            return
        if token <= start:
            self.ask(PageOp.READ, Status.EMPTY, **fields, token=token)
            return
        answer = self.ask(PageOp.READ, **fields, token=token)
        got, page, offset = b"", answer.page, answer.offset
        assert offset < PAGE
        while len(got) < answer.bytes:
            assert page in stream.pages
            got += self.memory[page][offset : offset + answer.bytes - len(got)]
            offset = 0
            if len(got) < answer.bytes:
                page = self.ask(PageOp.NEXT, page=page, **fields).page
        if slot == 1:
            # From the first record that starts in a page that is left, to the very end.
            assert got == b"".join(stream.records[start - answer.skip :])
            starts = [stream.address(n) for n in range(start + 1)]
            assert answer.skip == sum(s >= stream.dropped * PAGE for s in starts) - 1
        else:
            assert got == b"".join(stream.records[start:token])
            assert answer.skip == token - start

    @precondition(lambda self: self.start)
    @rule(number=st.integers(0, 2), part=st.sampled_from([0, 0.25, 0.5, 0.8, 1]))
    def trim(self, number, part):
        sequence = sorted(self.start)[number % len(self.start)]
        if self.appending and self.appending[0] == sequence:
            return
        if self.forking and self.forking[0] == sequence:
            self.ask(PageOp.TRIM_STREAM, Status.BAD_REQUEST, sequence=sequence)
            return
        tokens = [len(self.streams[sequence, kv, 0].records) for kv in (0, 1)]
        token = round(part * min(tokens))
        for kv in (0, 1):
            fields = {"sequence": sequence, "kv": kv}
            self.ask(PageOp.TRIM_CHECK, **fields, token=tokens[kv])
            self.ask(PageOp.TRIM_CHECK, Status.BEYOND_LENGTH, **fields, token=tokens[kv] + 1)
        self.ask(PageOp.SET_START, sequence=sequence, token=token)
        self.start[sequence] = max(token, self.start[sequence])
        for kv in (0, 1):
            for slot in range(SLOTS):
                fields = {"sequence": sequence, "kv": kv, "slot": slot}
                self.ask(PageOp.TRIM_STREAM, **fields, token=token)
                stream = self.streams[sequence, kv, slot]
                dropped = min(stream.address(token) // PAGE, max(0, stream.file_pages() - 1))
                dropped = max(dropped, stream.dropped)
                self.drop(fields, stream, dropped - stream.dropped)
                stream.dropped = dropped
                self.read(sequence, kv, slot, 0)

    def drop(self, fields, stream, count):
        """``count`` pages have gone back: those that the chain has no more."""
        gone = stream.pages - set(self.table.chain(layer=0, **fields))
        assert len(gone) == count
        for page in gone:
            stream.pages.remove(page)
            self.give_back(page)

    @precondition(lambda self: self.start)
    @rule(sequence=st.integers(0, 2))
    def close(self, sequence):
        if self.forking and self.forking[1] == sequence:
            return
        if sequence not in self.start:
            self.ask(PageOp.CLOSE, Status.SEQUENCE_UNKNOWN, sequence=sequence)
        elif sequence in [each[0] for each in (self.appending, self.forking) if each]:
            self.ask(PageOp.CLOSE, Status.BAD_REQUEST, sequence=sequence)
        else:
            self.ask(PageOp.CLOSE, sequence=sequence)
            del self.start[sequence]
            self.closing.add(sequence)

    @precondition(lambda self: self.closing)
    @rule(count=st.integers(1, 2 * SLOTS), last=st.booleans())
    def free_some(self, count, last):
        """Some streams of a closing sequence; once all of it has gone, it is vacant."""
        sequence = min(self.closing)
        held = [key for key in self.streams if key[0] == sequence]
        for key in held[-count:] if last else held[:count]:
            self.ask(PageOp.FREE_STREAM, sequence=key[0], kv=key[1], slot=key[2])
            for page in self.streams.pop(key).pages:
                self.give_back(page)
        has_pages = any(self.streams[key].pages for key in self.streams if key[0] == sequence)
        if has_pages:
            self.ask(PageOp.VACATE, Status.BAD_REQUEST, sequence=sequence)
        elif not any(key[0] == sequence for key in self.streams):
            self.ask(PageOp.VACATE, sequence=sequence)
            self.closing.remove(sequence)

    @rule(op=st.integers(0, 15), fields=FIELDS)
    def refused(self, op, fields):
        """Commands that must be refused or change nothing, by the model's own judgement."""
        command = PageCommand(op, *fields)
        status = None
        if op == PageOp.NEXT and command.page >= CONFIG.pages:
            status = Status.BAD_REQUEST
        elif op in (PageOp.FORK, PageOp.FORK_STREAM, PageOp.FORK_END):
            status = self.refused_fork(command)
        elif op in (PageOp.READ, PageOp.TRIM_CHECK, PageOp.TRIM_STREAM, PageOp.BEGIN):
            by_slot = op in (PageOp.READ, PageOp.TRIM_STREAM)
            if command.layer or (by_slot and command.slot >= SLOTS):
                status = Status.BAD_REQUEST
            elif command.sequence not in self.start:
                status = Status.SEQUENCE_UNKNOWN
            elif op == PageOp.BEGIN and self.appending:
                status = Status.BAD_REQUEST
            elif op == PageOp.TRIM_STREAM and command.token > self.start[command.sequence]:
                status = Status.BAD_REQUEST
        elif op == PageOp.CLOSE and self.forking and self.forking[1] == command.sequence:
            return
        elif op in (PageOp.CLOSE, PageOp.SET_START) and command.sequence not in self.start:
            status = Status.SEQUENCE_UNKNOWN
        elif op == PageOp.SET_START and command.token > CONFIG.max_tokens:
            status = Status.BAD_REQUEST
        elif op == PageOp.FREE_STREAM and (command.layer or command.slot >= SLOTS):
            status = Status.BAD_REQUEST
        elif op in (PageOp.FREE_STREAM, PageOp.VACATE) and command.sequence not in self.closing:
            status = Status.SEQUENCE_UNKNOWN
        elif op in (PageOp.EXTEND, PageOp.COMMIT, PageOp.ABORT):
            if self.appending is None:
                status = Status.BAD_REQUEST
            elif op == PageOp.EXTEND:
                slot = len(self.appending[2])
                is_size = {0: command.bytes == 24, 1: 3 <= command.bytes <= 51}.get(
                    slot, command.bytes == 12
                )
                if command.slot != slot or slot == SLOTS or not is_size:
                    status = Status.BAD_REQUEST
        if status is not None:
            answer = self.table.command(command)
            assert answer == (status, 0, 0, 0, 0, 0, 0)

    def refused_fork(self, command):
        return Status.BAD_REQUEST

    @invariant()
    def every_page_is_somewhere(self):
        """free + owned = total, and no page in two places."""
        taken = (
            [page for _, page in self.appending[2] if page is not None] if self.appending else []
        )
        assert self.table.free_pages == len(self.free)
        assert sorted(self.table.free_chain()) == sorted(self.free)
        assert self.table.taken() == taken
        places = [*self.free, *taken]
        for (sequence, kv, slot), stream in self.streams.items():
            chain = list(self.table.chain(sequence, 0, kv, slot))
            assert len(chain) == stream.file_pages() - stream.dropped
            assert set(chain) == stream.pages
            places += [page for page in chain if self.holders(page)[0] == (sequence, kv, slot)]
        assert sorted(places) == list(range(CONFIG.pages))


class ForkModel(PageTableModel):
    """Sequences share pages. A child's records are those that its parent had, whatever follows."""

    config = dataclasses.replace(CONFIG, forks=True)

    def size(self, slot):
        """Records of variable size fill their page exactly where they can."""
        if slot == 1:
            stream = self.streams[*self.appending[:2], 1]
            room = PAGE - stream.address(len(stream.records)) % PAGE
            if CONFIG.kv.head_blocks <= room <= CONFIG.kv.sparse_bytes_max:
                return room
        return super().size(slot)

    def refused_fork(self, command):
        if command.op != PageOp.FORK:
            return None if self.forking else Status.BAD_REQUEST
        if command.sequence not in self.start:
            return Status.SEQUENCE_UNKNOWN
        return Status.BAD_REQUEST if self.forking or command.sequence in self.children else None

    @precondition(lambda self: self.start and not self.forking)
    @rule(
        number=st.integers(0, 2),
        distance=st.sampled_from([0, 0, 0, 0, 1, -1]),
        kv=st.integers(0, 1),
    )
    def fork(self, number, distance, kv):
        parent = sorted(self.start)[number % len(self.start)]
        token = max(0, len(self.streams[parent, kv, 0].records) + distance)
        vacant = {*range(CONFIG.sequences)} - {*self.start, *self.closing}
        if parent in self.children:
            self.ask(PageOp.FORK, Status.BAD_REQUEST, sequence=parent, token=token)
        elif not vacant:
            self.ask(PageOp.FORK, Status.TABLE_FULL, sequence=parent, token=token)
        elif token > CONFIG.max_tokens:
            self.ask(PageOp.FORK, Status.BEYOND_LENGTH, sequence=parent, token=token)
        else:
            child = self.ask(PageOp.FORK, sequence=parent, token=token).sequence
            assert child == min(vacant)
            self.forking = (parent, child, token, 0)
            self.fork_start = self.start[parent]
            streams = [(child, kv, slot) for kv in (0, 1) for slot in range(SLOTS)]
            self.streams.update({key: Stream() for key in streams})

    @precondition(lambda self: self.forking)
    @rule(count=st.integers(1, 2 * SLOTS))
    def fork_streams(self, count):
        for _ in range(count):
            if self.forking[3] < 2 * SLOTS and not self.fork_stream():
                return

    def fork_stream(self) -> bool:
        """The child's next stream; whether it has it."""
        parent, child, token, done = self.forking
        kv, slot = divmod(done, SLOTS)
        old, new = self.streams[parent, kv, slot], self.streams[child, kv, slot]
        expected, part = Status.OK, old.address(len(old.records)) % PAGE
        if token != len(old.records):
            is_short = len(old.records) < token
            expected = Status.BEYOND_LENGTH if is_short else Status.TOKEN_ORDER
        elif part and not self.free:
            expected = Status.OUT_OF_PAGES
        answer = self.ask(PageOp.FORK_STREAM, expected)
        if expected != Status.OK:
            return False
        assert (answer.bytes, answer.skip) == (part, 2 * SLOTS - done - 1)
        new.records, new.dropped, new.pages = [*old.records], old.dropped, {*old.pages}
        if part:
            assert answer.page in old.pages
            assert self.holders(answer.page2) == []
            self.free.remove(answer.page2)
            new.pages ^= {answer.page, answer.page2}
            copied = self.memory[answer.page][:part]
            self.memory[answer.page2] = copied + self.memory[answer.page2][part:]
        self.forking = (parent, child, token, done + 1)
        return True

    @precondition(lambda self: self.forking)
    @rule()
    def fork_end(self):
        _, child, _, done = self.forking
        if done < 2 * SLOTS:
            self.ask(PageOp.FORK_END, Status.BAD_REQUEST)
            return
        self.ask(PageOp.FORK_STREAM, Status.BAD_REQUEST)
        self.ask(PageOp.FORK_END)
        self.start[child] = self.fork_start
        self.children |= {child}
        self.forking = None

    @precondition(lambda self: self.forking)
    @rule()
    def fork_undone(self):
        child = self.forking[1]
        self.ask(PageOp.READ, Status.SEQUENCE_UNKNOWN, sequence=child, token=1)
        self.ask(PageOp.CLOSE, sequence=child)
        self.closing.add(child)
        self.forking = None

    @invariant()
    def sharers_are_counted(self):
        for page in {*range(CONFIG.pages)} - self.free:
            holders = self.holders(page)
            assert self.table.sharers(page) == max(0, len(holders) - 1)
            assert len({key[1:] for key in holders}) <= 1, "streams of several slots"


TestPageTable = PageTableModel.TestCase
TestPageTable.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestForks = ForkModel.TestCase
TestForks.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def step_of_a_fork(model: ForkModel, rng: random.Random) -> None:
    kind = rng.random()
    if not model.forking:
        if not model.start:
            model.open()
        number = rng.randrange(len(model.start))
        parent = sorted(model.start)[number]
        if rng.random() < 0.5:
            model.trim(number, 0.5)
        lengths = [len(model.streams[parent, kv, 0].records) for kv in (0, 1)]
        if not model.appending and lengths[0] != lengths[1]:
            shorter = lengths.index(min(lengths))
            model.append_many(2 * number + shorter, abs(lengths[0] - lengths[1]))
        model.fork(number, 0, rng.randrange(2))
    elif kind < 0.7:
        model.fork_streams(rng.randrange(1, 2 * SLOTS + 1))
    elif kind < 0.95:
        model.fork_end()
        model.read_all(0)
    else:
        model.fork_undone()


@pytest.mark.parametrize("make", [PageTableModel, ForkModel])
@pytest.mark.parametrize("seed", range(4))
def test_long_lives(seed, make):
    """Sequences that fill the cache, are trimmed again and again, freed and opened anew."""
    rng = random.Random(seed)
    model = make()
    model.begin(seed)
    for _ in range(400):
        kind = rng.random()
        if make is ForkModel and rng.random() < 0.3:
            step_of_a_fork(model, rng)
        elif model.appending:
            model.abort() if kind < 0.5 else model.commit()
        elif not model.start or kind < 0.05:
            model.open()
        elif kind < 0.5:
            model.append_many(rng.randrange(6), rng.choice([3, 20]))
        elif kind < 0.85:
            model.trim(rng.randrange(3), rng.choice([0, 0.3, 0.9, 1]))
        elif kind < 0.93:
            model.read_all(rng.randrange(3))
        elif kind < 0.96:
            model.begin_append((min(model.start), 0), 0)
            if model.appending:
                model.extend(rng.randrange(SLOTS + 1))
        else:
            model.close(min(model.start))
            while model.closing:
                model.free_some(2 * SLOTS, last=False)
        model.every_page_is_somewhere()
