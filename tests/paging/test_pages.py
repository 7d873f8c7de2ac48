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
"""

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
    @initialize(seed=st.integers(0, 1 << 30))
    def begin(self, seed):
        self.rng = random.Random(seed)
        self.table = PageTable(CONFIG)
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

    def give_back(self, page):
        assert page not in self.free
        self.free.add(page)
        self.memory[page] = self.rng.randbytes(PAGE)

    def size(self, slot):
        low, high = CONFIG.kv.head_blocks, CONFIG.kv.sparse_bytes_max
        sizes = {0: CONFIG.kv.dense_bytes, 2: SCALE_BYTES}
        return sizes.get(slot) or self.rng.choice([low, high, self.rng.randint(low, high)])

    @rule()
    def open(self):
        used = {*self.start, *self.closing}
        if len(used) == CONFIG.sequences:
            self.ask(PageOp.OPEN, Status.TABLE_FULL)
            return
        number = self.ask(PageOp.OPEN).sequence
        assert number == min({*range(CONFIG.sequences)} - used)
        self.start[number] = 0
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
                page = self.ask(PageOp.NEXT, page=page).page
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
        if sequence not in self.start:
            self.ask(PageOp.CLOSE, Status.SEQUENCE_UNKNOWN, sequence=sequence)
        elif self.appending and self.appending[0] == sequence:
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
        if op > max(PageOp) or (op == PageOp.NEXT and command.page >= CONFIG.pages):
            status = Status.BAD_REQUEST
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
            places += chain
        assert sorted(places) == list(range(CONFIG.pages))


TestPageTable = PageTableModel.TestCase
TestPageTable.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("seed", range(4))
def test_long_lives(seed):
    """Sequences that fill the cache, are trimmed again and again, freed and opened anew."""
    rng = random.Random(seed)
    model = PageTableModel()
    model.begin(seed)
    for _ in range(400):
        kind = rng.random()
        if model.appending:
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
