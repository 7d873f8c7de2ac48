"""Replays the log of senbazuru/runs/soak/main.cpp on a model of its own and checks all of it.

The model knows no page table. A stream is the bytes of its records one after the other. Byte i
of it lies at offset i % page_bytes of its page number i // page_bytes. So the sizes of the records
alone say how many pages it has, which a trim releases and where a read begins. The model learns
from the write bursts which pages these are. A page must be free when a stream first writes to it,
or of a request that is just then releasing it. From then on that stream alone reads and writes it.
Free pages are all pages less those of all streams.

A FORK gives a child the parent's streams, full pages included. So a page may have several streams,
which read it; none writes to it any more. The page is free when the last of them lets it go, in any
order. The model finds the child's copies of the last pages among the write bursts, by their bytes.

Requests of one kind end in order, and take effect on a sequence in the order in which they were
accepted. Where two kinds may overtake each other, the model allows a window and no more:

- a READ may or may not see the APPENDs that were in flight with it;
- pages that a FREE or TRIM in flight is releasing may or may not be free for an APPEND;
- so may those that a FORK takes, or gives back as it fails;
- the child of such a FORK may or may not be vacant for an OPEN;
- pages of an APPEND in flight may or may not be free for a FORK, and the sequence of an OPEN.
"""

import bisect
import collections
import dataclasses
import struct

import numpy as np

from golden.paging.config import CacheConfig
from golden.paging.format import Op, Status

_TABLE = 1 << 16
_NEVER = 0xFFFFFFFF
_MASK = (1 << 64) - 1
_KINDS = ("dense", "sparse", "scale")
_OPS = {op.value: op.name for op in Op}
_STATUSES = {status.value: status.name for status in Status}


class Mismatch(AssertionError):
    """The hardware and the model differ."""


def _splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Contents:
    """The bytes of every record, as main.cpp makes them."""

    def __init__(self, seed: int, config: CacheConfig):
        self.config, self.seed = config, _splitmix(seed)
        words = np.array(
            [_splitmix((self.seed + k) & _MASK) for k in range(_TABLE // 8)], dtype="<u8"
        )
        table = words.tobytes()
        self.table = table + table[: config.page_bytes]

    def records(self, number: int, bad: int) -> list[bytes]:
        """The records of all slots; an empty one where the APPEND was given a wrong size."""
        kv, found = self.config.kv, []
        for slot in range(kv.slots):
            h = _splitmix(self.seed ^ _splitmix(number * 512 + slot))
            kind = kv.kind(slot)
            size = kind.most
            if not kind.is_fixed:
                size = kind.least + (h >> 32) % (kind.most - kind.least + 1)
            at = h % _TABLE
            found.append(self.table[at : at + size] if slot != bad else b"")
        return found


class Stream:
    """Records of one (sequence, layer, K or V, slot)."""

    def __init__(self):
        self.data = bytearray()
        self.begins = [0]  # of each record, and of the next
        self.first_page = 0
        self.pages: dict[int, int] = {}  # number in the stream -> page

    def page_count(self, page_bytes: int) -> int:
        return -(-len(self.data) // page_bytes) - self.first_page

    def first_token(self, number: int, page_bytes: int) -> int:
        """The first token whose record begins in page ``number``, or after it."""
        return bisect.bisect_left(self.begins, number * page_bytes)

    def copied(self, page_bytes: int) -> int | None:
        """The number of the page that a child of it has anew: the last one, if it is not full."""
        number, used = divmod(len(self.data), page_bytes)
        return number if used else None

    def child(self, page_bytes: int, copy: int | None) -> "Stream":
        """The same records; ``copy`` in place of the page that is not full."""
        made = Stream()
        made.data, made.begins = bytearray(self.data), list(self.begins)
        made.first_page, made.pages = self.first_page, dict(self.pages)
        if copy is not None:
            made.pages[len(self.data) // page_bytes] = copy
        return made


class Page:
    """Streams that have a page, at the same place of each."""

    def __init__(self, number: int, stream: Stream):
        self.number, self.streams = number, {id(stream): stream}

    def has(self, stream: Stream, number: int) -> bool:
        return self.number == number and id(stream) in self.streams


class Sequence:
    def __init__(self, vectors: int, slots: int):
        self.start = 0
        self.is_child = False
        self.vectors = [[Stream() for _ in range(slots)] for _ in range(vectors)]

    def tokens(self, vector: int) -> int:
        return len(self.vectors[vector][0].begins) - 1

    def streams(self):
        return (stream for vector in self.vectors for stream in vector)


@dataclasses.dataclass(slots=True)
class Request:
    cycle: int
    op: int
    tag: int
    sequence: int
    layer: int
    kv: int
    head: int
    heads: int
    token: int
    number: int
    bad: int
    known: bool = False  # the sequence is open in the order of requests
    tokens: int = 0  # READ: committed when it was accepted
    then: "Counts | None" = None  # when it was accepted
    vacant: tuple[int, ...] = ()  # OPEN: sequences that surely were
    copies: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # FORK: page, response
    is_done: bool = False  # FREE: seen by its consequences, its status is yet to come


@dataclasses.dataclass
class Counts:
    """Counts what statuses have told so far."""

    released: int = 0  # pages, by TRIM and FREE
    appended: int = 0  # pages, by APPENDs
    copied: int = 0  # pages, by FORKs
    opened: int = 0  # OPENs
    lost: int = 0  # APPENDs that failed after a page
    undone: int = 0  # FORKs that failed after they had a child
    undone_pages: int = 0  # their copies


class Checker:
    def __init__(self, config: CacheConfig, data_bits: int, seed: int):
        self.config, self.size = config, data_bits // 8
        self.contents = Contents(seed, config)
        self.changes = (Op.TRIM, Op.FREE, Op.FORK) if config.forks else (Op.TRIM, Op.FREE)
        self.open: dict[int, Sequence] = {}  # whose pages are not all released
        self.closing: set[int] = set()  # of which a FREE is in flight
        self.known: set[int] = set()
        self.pending = {kind: collections.deque() for kind in ("read", "append", "change", "other")}
        self.tags: dict[int, Request] = {}
        self.owners: dict[int, Page] = {}
        self.early: dict[tuple[int, int], Page] = {}  # taken before its release was reported
        self.writes = collections.deque()
        self.reads: list[list] = []  # AR bursts not yet explained: address, beats, responses
        self.transfers = {kind: collections.deque() for kind in _KINDS}
        self.infos, self.told = collections.deque(), collections.deque()
        self.owned_pages = 0
        self.counts = Counts()
        self.statuses = collections.Counter()
        self.cycle = self.requests = self.drains = self.bytes_read = self.bytes_written = 0
        self.pages_taken = self.pages_shared = 0
        self.most_pages = self.most_shared = 0
        self.end: dict[str, int] = {}
        self.ended = False

    # ---------------------------------------------------------------- the log

    def feed(self, frame: bytes) -> None:
        """Check the events of one frame."""
        at, size = 0, len(frame)
        unpack = struct.unpack_from
        while at < size:
            kind = frame[at]
            at += 1
            if kind == 0x51:  # Q
                values = unpack("<Q7BIIB", frame, at)
                at += 24
                self._request(Request(*values))
            elif kind == 0x53:  # S
                cycle, tag, op, status, sequence = unpack("<Q4B", frame, at)
                at += 12
                self.cycle = cycle
                self._status(tag, op, status, sequence)
            elif kind == 0x57:  # W
                address, count, resp = unpack("<IHB", frame, at)
                at += 7
                self.writes.append((address, frame[at : at + count], resp))
                at += count
            elif kind == 0x41:  # A
                address, beats = unpack("<IH", frame, at)
                at += 6
                self.reads.append([address, beats, frame[at : at + beats]])
                at += beats
            elif kind == 0x54:  # T
                channel, first, words, slave, decode, count = unpack("<BBIIII", frame, at)
                at += 18
                data = frame[at : at + count]
                at += count
                self.transfers[_KINDS[channel]].append((first, words, slave, decode, data))
            elif kind == 0x49:  # I
                self.told.append(unpack("<BBIIBB", frame, at))
                at += 12
                self._compare_infos()
            elif kind == 0x46:  # F
                (free,) = unpack("<I", frame, at)
                at += 4
                self._at_rest(free)
            elif kind == 0x42:  # B
                at += 16
            elif kind == 0x45:  # E
                names = ("cycles", "write_bursts", "read_bursts", "write_errors", "read_errors")
                values = unpack("<6Q", frame, at)
                at += 48
                self.end = dict(zip((*names, "drains"), values, strict=True))
                self._at_end()
            elif kind == 0x58:  # X
                cycle, count = unpack("<QI", frame, at)
                at += 12
                raise Mismatch(f"cycle {cycle}: {frame[at : at + count].decode()}")
            else:
                raise Mismatch(f"no such event: {kind}")

    def _fail(self, request: Request, why: str) -> None:
        op = _OPS.get(request.op, request.op)
        raise Mismatch(f"cycle {self.cycle}, {op}: {why} ({request})")

    # ---------------------------------------------------------------- requests and statuses

    def _kind(self, op: int) -> str:
        if op == Op.READ:
            return "read"
        if op == Op.APPEND:
            return "append"
        return "change" if op in self.changes else "other"

    def _request(self, request: Request) -> None:
        self.requests += 1
        self.cycle = request.cycle
        self.tags[request.tag] = request
        self.pending[self._kind(request.op)].append(request)
        request.known = request.sequence in self.known
        if request.op == Op.FREE:
            self.known.discard(request.sequence)
            if request.known:
                self.closing.add(request.sequence)
        request.then = dataclasses.replace(self.counts)
        if request.op == Op.OPEN:
            request.vacant = tuple(q for q in range(self.config.sequences) if q not in self.open)
        if request.known and request.op == Op.READ and request.layer < self.config.layers:
            sequence = self.open[request.sequence]
            request.tokens = sequence.tokens(request.layer * 2 + request.kv)

    def _status(self, tag: int, op: int, status: int, sequence: int) -> None:
        request = self.tags.pop(tag, None)
        if request is None:
            raise Mismatch(f"cycle {self.cycle}: status for tag {tag}, which is not in use")
        queue = self.pending[self._kind(request.op)]
        if queue[0] is not request:
            self._fail(request, f"its status came before that of {queue[0]}")
        queue.popleft()
        if op != request.op:
            self._fail(request, f"status says op {op}")
        names_child = op == Op.FORK and self.config.forks and status == Status.OK
        if request.op != Op.OPEN and not names_child and sequence != request.sequence:
            self._fail(request, f"status says sequence {sequence}")
        name = _OPS[op] if op <= Op.FREE or op in self.changes else "others"
        self.statuses[name, _STATUSES.get(status, "?")] += 1
        if request.op == Op.OPEN:
            self._open(request, status, sequence)
            return
        expected = self._refusal(request)
        if expected != Status.OK:
            self._expect(request, status, expected)
        elif request.op == Op.READ:
            self._read(request, status)
        elif request.op == Op.APPEND:
            self._append(request, status)
        elif request.op == Op.TRIM:
            self._trim(request, status)
        elif request.op == Op.FORK:
            self._fork(request, status, sequence)
        else:
            self._free(request, status)

    def _expect(self, request: Request, status: int, *expected: int) -> None:
        if status not in expected:
            names = " or ".join(_STATUSES[each] for each in expected)
            self._fail(request, f"{_STATUSES.get(status, status)}, expected {names}")

    def _refusal(self, request: Request) -> Status:
        op, config = request.op, self.config
        if op not in (Op.APPEND, Op.READ, *self.changes):
            return Status.BAD_REQUEST
        if op in (Op.APPEND, Op.READ) and request.layer >= config.layers:
            return Status.BAD_REQUEST
        if op == Op.READ and not 0 < request.heads <= config.kv.heads - request.head:
            return Status.BAD_REQUEST
        return Status.OK if request.known else Status.SEQUENCE_UNKNOWN

    def _open(self, request: Request, status: int, sequence: int) -> None:
        everyone = range(self.config.sequences)
        # A FORK has its child before it is known how it ends.
        hidden = bool(self._forking() or self.counts.undone > request.then.undone)
        if status == Status.TABLE_FULL:
            vacant = [q for q in request.vacant if q not in self.open]
            if len(vacant) > hidden:
                self._fail(request, f"TABLE_FULL, but {vacant} are vacant")
            return
        self._expect(request, status, Status.OK, Status.TABLE_FULL)
        if sequence not in everyone or sequence in self.known:
            self._fail(request, f"opened {sequence}, which is not vacant")
        if sequence in self.open:  # its FREE has ended but not been reported yet
            if sequence not in self.closing:
                self._fail(request, f"opened {sequence}, which is open")
            request_of_free = next(
                each for each in self.pending["change"]
                if each.op == Op.FREE and each.known and each.sequence == sequence
            )  # fmt: skip
            self._release_all(sequence)
            request_of_free.is_done = True
        lower = [q for q in request.vacant if q < sequence and q not in self.open]
        if len(lower) > hidden:
            self._fail(request, f"opened {sequence}, but {lower} are vacant")
        self.counts.opened += 1
        self.known.add(sequence)
        self.open[sequence] = Sequence(self.config.layers * 2, self.config.kv.slots)

    # ---------------------------------------------------------------- FREE and TRIM

    def _release_all(self, sequence: int) -> None:
        for stream in self.open[sequence].streams():
            last = stream.first_page + stream.page_count(self.config.page_bytes)
            self._release(stream, stream.first_page, last)
        del self.open[sequence]
        self.closing.discard(sequence)

    def _release(self, stream: Stream, first: int, last: int) -> None:
        for number in range(first, last):
            at = stream.pages.pop(number)
            page = self.owners.get(at)
            is_early = page is None or not page.has(stream, number)
            if is_early:
                page = self.early.pop((id(stream), number), None)
                if page is None:
                    raise Mismatch(f"cycle {self.cycle}: page {at} is not its stream's any more")
            del page.streams[id(stream)]
            if not page.streams:
                self.owned_pages -= 1
                self.counts.released += 1
                if not is_early:
                    del self.owners[at]
        stream.first_page = last

    def _free(self, request: Request, status: int) -> None:
        self._expect(request, status, Status.OK)
        if not request.is_done:
            self._release_all(request.sequence)

    def _drops(self, stream: Stream, token: int) -> int:
        """Pages that a TRIM to ``token`` releases."""
        page_bytes = self.config.page_bytes
        drops, pages = 0, stream.page_count(page_bytes)
        while drops < pages - 1:
            if stream.first_token(stream.first_page + drops + 1, page_bytes) > token:
                break
            drops += 1
        return drops

    def _trim(self, request: Request, status: int) -> None:
        sequence = self.open[request.sequence]
        vectors = range(len(sequence.vectors))
        if any(sequence.tokens(vector) < request.token for vector in vectors):
            self._expect(request, status, Status.BEYOND_LENGTH)
            return
        self._expect(request, status, Status.OK)
        sequence.start = max(sequence.start, request.token)
        for stream in sequence.streams():
            first = stream.first_page
            self._release(stream, first, first + self._drops(stream, request.token))

    def _going(self) -> dict[Page, set[int]]:
        """The streams of each page that may have let it go by now: requests in flight say so."""
        found: dict[Page, set[int]] = {}
        for request in self.pending["change"]:
            if not request.known or request.is_done or request.op == Op.FORK:
                continue
            for stream in self.open[request.sequence].streams():
                count = stream.page_count(self.config.page_bytes)
                if request.op == Op.TRIM:
                    count = self._drops(stream, request.token)
                for number in range(stream.first_page, stream.first_page + count):
                    key = id(stream), number
                    page = self.early.get(key) or self.owners[stream.pages[number]]
                    found.setdefault(page, set()).add(id(stream))
        return found

    def _releasing(self) -> int:
        """Pages that requests in flight may have released by now."""
        return sum(by >= page.streams.keys() for page, by in self._going().items())

    def _is_releasing(self, page: int) -> bool:
        owner = self.owners[page]
        return self._going().get(owner, set()) >= owner.streams.keys()

    # ---------------------------------------------------------------- FORK

    def _forking(self) -> Request | None:
        """The FORK that may be under way: statuses of those before it have come."""
        first = self.pending["change"][0] if self.pending["change"] else None
        return first if first is not None and first.op == Op.FORK and first.known else None

    def _fork(self, request: Request, status: int, sequence: int) -> None:
        """Nothing of the parent changes while its FORK is under way."""
        config, counts, then = self.config, self.counts, request.then
        parent = self.open[request.sequence]
        if parent.is_child:
            self._expect(request, status, Status.BAD_REQUEST)
            return
        vacant = [q for q in range(config.sequences) if q not in self.open]
        opening = sum(each.op == Op.OPEN for each in self.pending["other"])
        if status == Status.TABLE_FULL:
            if len(vacant) > opening:
                self._fail(request, f"TABLE_FULL, but {vacant} are vacant")
            return
        if not vacant and counts.opened == then.opened:
            self._expect(request, status, Status.TABLE_FULL)
        if request.token > config.max_tokens:
            self._expect(request, status, Status.BEYOND_LENGTH)
            return
        wanted, refusal = self._wanted_copies(request)
        free = config.pages - self.owned_pages
        # Of the APPENDs under way at the same time only one has pages that no status told of.
        hidden = bool(self.pending["append"] or counts.lost > then.lost)
        surely, most = free - hidden * config.kv.slots, free + counts.appended - then.appended
        expected = [refusal] if len(wanted) <= most else []
        if len(wanted) > surely:
            expected.append(Status.OUT_OF_PAGES)
        if status in (Status.SLAVE_ERROR, Status.DECODE_ERROR) and Status.OK in expected:
            expected.append(Status(status))  # judged by its responses below
        self._expect(request, status, *expected)
        while len(request.copies) < len(wanted) and self._take_copy(request, wanted):
            pass
        copies, worst = request.copies, 0
        for stream, (_, response) in zip(wanted, copies, strict=False):
            number = stream.copied(config.page_bytes)
            begin, end = number * config.page_bytes, len(stream.data)
            for each in (response, *self._bursts(request, "copy", stream, begin, end)):
                worst |= each
        if status == Status.OUT_OF_PAGES:
            if not surely <= len(copies) <= min(most, len(wanted) - 1):
                self._fail(request, f"OUT_OF_PAGES after {len(copies)} pages of {len(wanted)}")
        elif len(copies) < len(wanted):
            self._fail(request, f"page {len(copies)} of {len(wanted)} was not copied")
        if refusal == Status.OK and status != Status.OUT_OF_PAGES:
            by_worst = {0: Status.OK, 2: Status.SLAVE_ERROR, 3: Status.DECODE_ERROR}
            self._expect(request, status, by_worst[worst])
        if status != Status.OK:
            counts.undone += 1
            counts.undone_pages += len(copies)
            return
        lower = [q for q in vacant if q < sequence]
        if sequence not in vacant or len(lower) > opening:
            self._fail(request, f"its child is {sequence}, but {vacant} are vacant")
        for page, _ in copies:
            if page in self.owners:
                self._fail(request, f"copied to page {page}, which has an owner")
        self._add_child(parent, sequence, iter([page for page, _ in copies]))
        counts.copied += len(copies)
        self.pages_taken += len(copies)
        self.owned_pages += len(copies)

    def _wanted_copies(self, request: Request) -> tuple[list[Stream], Status]:
        """Streams with a page to be copied before the FORK ends, and how: OUT_OF_PAGES apart."""
        parent, wanted = self.open[request.sequence], []
        for number, vector in enumerate(parent.vectors):
            tokens = parent.tokens(number)
            if tokens != request.token:
                too_long = tokens > request.token
                return wanted, Status.TOKEN_ORDER if too_long else Status.BEYOND_LENGTH
            wanted += [each for each in vector if each.copied(self.config.page_bytes) is not None]
        return wanted, Status.OK

    def _take_copy(self, request: Request, wanted: list[Stream], is_first=False) -> bool:
        """Take the write bursts of the FORK's next copy, if they are there; or come first."""
        page_bytes, made = self.config.page_bytes, request.copies
        stream = wanted[len(made)]
        data = bytes(stream.data[stream.copied(page_bytes) * page_bytes :])
        for first in range(1 if is_first else len(self.writes)):
            page, at, worst, last = self.writes[first][0] // page_bytes, 0, 0, first
            while at < len(data) and last < len(self.writes):
                address, part, response = self.writes[last]
                if address != page * page_bytes + at or part != data[at : at + len(part)]:
                    break
                at, worst, last = at + len(part), worst | response, last + 1
            # A FORK that fails gives pages back before its status, so they may have owners again.
            if at == len(data) and all(page != each for each, _ in made):
                for _ in range(first, last):
                    del self.writes[first]
                made.append((page, worst))
                return True
        return False

    def _skip_copies(self, stream: Stream, record: bytes) -> None:
        """Take the write bursts of a FORK's copies that come before those of ``record``."""
        fork = self._forking()
        if fork is None or self.open[fork.sequence].is_child:
            return
        wanted, _ = self._wanted_copies(fork)
        while self.writes and len(fork.copies) < len(wanted) and not self._is_next(stream, record):
            if not self._take_copy(fork, wanted, is_first=True):
                break

    def _add_child(self, parent: Sequence, number: int, copies) -> None:
        page_bytes = self.config.page_bytes
        child = Sequence(len(parent.vectors), self.config.kv.slots)
        child.start, child.is_child = parent.start, True
        for vector, its in zip(parent.vectors, child.vectors, strict=True):
            for slot, stream in enumerate(vector):
                copied = stream.copied(page_bytes)
                copy = next(copies) if copied is not None else None
                its[slot] = made = stream.child(page_bytes, copy)
                for at, page in made.pages.items():
                    if at == copied:
                        self.owners[page] = Page(at, made)
                    else:
                        self.owners[page].streams[id(made)] = made
                        self.pages_shared += 1
        self.known.add(number)
        self.open[number] = child

    # ---------------------------------------------------------------- APPEND

    def _append(self, request: Request, status: int) -> None:
        config = self.config
        sequence = self.open[request.sequence]
        streams = sequence.vectors[request.layer * 2 + request.kv]
        tokens = sequence.tokens(request.layer * 2 + request.kv)
        if request.token != tokens:
            self._expect(request, status, Status.TOKEN_ORDER)
            return
        if tokens == config.max_tokens:
            self._expect(request, status, Status.LENGTH_LIMIT)
            return
        records = self.contents.records(request.number, request.bad)
        limit = request.bad if request.bad < config.kv.slots else config.kv.slots
        page_bytes = config.page_bytes
        needed = 0  # pages for the records in front of a bad one
        for stream, record in zip(streams[:limit], records, strict=False):
            have = -(-len(stream.data) // page_bytes)
            needed += -(-(len(stream.data) + len(record)) // page_bytes) - have
        free = config.pages - self.owned_pages
        # Pages released since this request was accepted may have come too late for it.
        counts, then = self.counts, request.then
        surely = free - (counts.released - then.released)
        most = free + self._releasing()
        # FORKs may have taken theirs before it, or after it.
        surely -= counts.undone_pages - then.undone_pages
        if self._forking():
            surely -= self.config.streams // self.config.sequences
        most += counts.copied - then.copied
        expected = []
        if needed <= most:
            expected.append(Status.VECTOR_LENGTH if limit < config.kv.slots else Status.OK)
        if needed > surely:
            expected.append(Status.OUT_OF_PAGES)
        if status in (Status.SLAVE_ERROR, Status.DECODE_ERROR) and Status.OK in expected:
            expected.append(Status(status))  # judged by its responses below
        self._expect(request, status, *expected)

        worst, taken = 0, []
        if limit:
            self._skip_copies(streams[0], records[0])
        for slot, stream in enumerate(streams):
            if slot == limit or (status == Status.OUT_OF_PAGES and not self._is_next(
                stream, records[slot]
            )):  # fmt: skip
                break
            worst |= self._written(request, stream, records[slot], taken)
        else:
            if status == Status.OUT_OF_PAGES:
                self._fail(request, "OUT_OF_PAGES, but every record was written")
        self.pages_taken += len(taken)
        if status in (Status.OK, Status.SLAVE_ERROR, Status.DECODE_ERROR):
            by_worst = {0: Status.OK, 2: Status.SLAVE_ERROR, 3: Status.DECODE_ERROR}
            self._expect(request, status, by_worst[worst])
        if status != Status.OK:
            self.counts.lost += bool(taken) or status == Status.OUT_OF_PAGES
            for stream, number, page in taken:
                del self.owners[page]
                del stream.pages[number]
            return
        self.owned_pages += len(taken)
        self.counts.appended += len(taken)
        for stream, record in zip(streams, records, strict=True):
            stream.data += record
            stream.begins.append(len(stream.data))
            self.bytes_written += len(record)

    def _is_next(self, stream: Stream, record: bytes) -> bool:
        """The next write bursts are this record."""
        got = b""
        for _, data, _ in self.writes:
            got += data
            if len(got) >= len(record):
                break
        page = stream.pages.get(len(stream.data) // self.config.page_bytes)
        place = len(stream.data) % self.config.page_bytes
        return got == record and (
            place == 0 or self.writes[0][0] == page * self.config.page_bytes + place
        )

    def _written(self, request: Request, stream: Stream, record: bytes, taken: list) -> int:
        """Take the bursts that append ``record`` to ``stream``; returns their responses."""
        page_bytes, at, worst = self.config.page_bytes, 0, 0
        while at < len(record):
            if not self.writes:
                self._fail(request, "its bytes were not all written")
            address, data, resp = self.writes.popleft()
            worst |= resp
            if record[at : at + len(data)] != data:
                self._fail(request, f"wrong bytes written at {address:#x}")
            page, place = divmod(address, page_bytes)
            number, offset = divmod(len(stream.data) + at, page_bytes)
            if place != offset or place + len(data) > page_bytes:
                self._fail(request, f"written at {address:#x}, not at offset {offset:#x} of a page")
            if number in stream.pages:
                if stream.pages[number] != page:
                    self._fail(request, f"written to page {page}, not {stream.pages[number]}")
                if len(self.owners[page].streams) > 1:
                    self._fail(request, f"written to page {page}, which others read")
            else:
                if page in self.owners:
                    if not self._is_releasing(page):
                        self._fail(request, f"written to page {page}, which has an owner")
                    old = self.owners[page]
                    self.early |= {(each, old.number): old for each in old.streams}
                self.owners[page] = Page(number, stream)
                stream.pages[number] = page
                taken.append((stream, number, page))
            at += len(data)
        return worst

    # ---------------------------------------------------------------- READ

    def _read(self, request: Request, status: int) -> None:
        sequence = self.open[request.sequence]
        vector = request.layer * 2 + request.kv
        streams = sequence.vectors[vector]
        tokens, start, token = sequence.tokens(vector), sequence.start, request.token
        late = self._unreported(request, tokens)
        if token > tokens + len(late):
            self._expect(request, status, Status.BEYOND_LENGTH)
            return
        if token > request.tokens and status == Status.BEYOND_LENGTH:
            return
        if token <= start:
            self._expect(request, status, Status.EMPTY)
            return
        scale, dense = (self.config.kv.named(name).most for name in ("scale", "dense"))
        slot = 2 * self.config.kv.heads
        errors = self._transfer(request, streams, slot, start * scale, token * scale, late)
        for head in range(request.head, request.head + request.heads):
            slot = 2 * head
            errors |= self._transfer(request, streams, slot, start * dense, token * dense, late)
            sparse = streams[slot + 1]
            first = sparse.first_token(sparse.first_page, self.config.page_bytes)
            errors |= self._transfer(request, streams, slot + 1, sparse.begins[first], None, late)
            info = request.tag, head, token - start, start - first
            is_last = head == request.head + request.heads - 1
            self.infos.append((*info, int(head == request.head), int(is_last)))
        self._compare_infos()
        by_errors = {0: Status.OK, 2: Status.SLAVE_ERROR, 3: Status.DECODE_ERROR}
        self._expect(request, status, by_errors[errors])

    def _unreported(self, request: Request, tokens: int) -> list[Request]:
        """APPENDs to this vector that may have been committed, but have no status yet."""
        place, found = (request.sequence, request.layer, request.kv), []
        for each in self.pending["append"]:
            same = (each.sequence, each.layer, each.kv) == place
            if same and each.known and each.token == tokens + len(found):
                found.append(each)
        return found

    def _transfer(self, request, streams, slot, begin, end, late) -> int:
        """The next transfer is bytes ``begin``.. of a stream; returns its worst response."""
        kind = "scale" if slot == len(streams) - 1 else _KINDS[slot % 2]
        stream = streams[slot]
        if not self.transfers[kind]:
            self._fail(request, f"its status came before its {kind} words")
        first, words, since_slave, since_decode, data = self.transfers[kind].popleft()
        self.bytes_read += len(data)
        expected = stream.data
        is_whole = end is None  # sparse: all records, at least those that were there
        if is_whole:
            end = begin + len(data)
        if end > len(expected):
            expected = bytes(expected)
            for each in late:
                if len(expected) < end:
                    expected += self.contents.records(each.number, each.bad)[slot]
            ends_well = len(expected) == end
        else:
            least = stream.begins[request.tokens]
            ends_well = end >= least and end in (
                stream.begins[bisect.bisect_left(stream.begins, end)], len(expected)
            )  # fmt: skip
        if is_whole and not ends_well:
            self._fail(request, f"sparse: {len(data)} bytes, which end in a record")
        if data != expected[begin:end]:
            wrong = next(
                (i for i, pair in enumerate(zip(data, expected[begin:end], strict=False))
                 if pair[0] != pair[1]), min(len(data), end - begin),
            )  # fmt: skip
            self._fail(
                request,
                f"{kind}: {len(data)} bytes instead of {end - begin}, byte {wrong} is the first "
                "that differs",
            )
        if first != begin % self.config.page_bytes % self.size:
            self._fail(request, f"{kind}: the first word begins at byte {first}")
        responses = self._bursts(request, kind, stream, begin, end)
        if words != len(responses):
            self._fail(request, f"{kind}: {words} words instead of {len(responses)}")
        slave = next((k for k, resp in enumerate(responses) if resp >= 2), _NEVER)
        decode = next((k for k, resp in enumerate(responses) if resp == 3), _NEVER)
        if (slave, decode) != (since_slave, since_decode):
            self._fail(
                request, f"{kind}: errors from words {since_slave}, {since_decode} on, "
                f"not {slave}, {decode}"
            )  # fmt: skip
        return max(responses)

    def _bursts(self, request, kind: str, stream: Stream, begin: int, end: int) -> list[int]:
        """Responses to the words of bytes begin..end - 1; their bursts are explained by it."""
        page_bytes, size, responses = self.config.page_bytes, self.size, []
        at = begin
        while at < end:
            number, offset = divmod(at, page_bytes)
            stop = min(end - number * page_bytes, page_bytes)  # in this page
            place = offset // size * size
            while place < stop:
                page = stream.pages.get(number)
                index = self._find_burst(page, place)
                if index is None:
                    self._fail(request, f"{kind}: bytes {at}.. were not read from page {page}")
                _, beats, given = self.reads.pop(index)
                if place + beats * size > -(-stop // size) * size:
                    self._fail(request, f"{kind}: a burst reads on behind byte {end}")
                responses += given
                place += beats * size
            at = number * page_bytes + page_bytes
        return responses

    def _find_burst(self, page: int | None, place: int) -> int | None:
        """The first read burst at ``place`` of ``page``.

        None for the page of an APPEND that is not reported: any page without an owner.
        """
        page_bytes = self.config.page_bytes
        for index, (address, _, _) in enumerate(self.reads):
            if page is not None:
                if address == page * page_bytes + place:
                    return index
            elif address % page_bytes == place:
                other = address // page_bytes
                if other not in self.owners or self._is_releasing(other):
                    return index
        return None

    def _compare_infos(self) -> None:
        while self.infos and self.told:
            expected, told = self.infos.popleft(), self.told.popleft()
            if expected != told:
                raise Mismatch(f"cycle {self.cycle}: info {told}, expected {expected}")

    # ---------------------------------------------------------------- at rest

    def _at_rest(self, free: int) -> None:
        self.drains += 1
        left = {
            "requests": len(self.tags),
            "writes": len(self.writes),
            "reads": len(self.reads),
            "infos": len(self.infos) + len(self.told),
            "transfers": sum(map(len, self.transfers.values())),
            "pages taken too early": len(self.early),
        }
        if any(left.values()):
            raise Mismatch(f"cycle {self.cycle}: idle, but not explained: {left}")
        streams = [each for sequence in self.open.values() for each in sequence.streams()]
        assert all(len(each.pages) == each.page_count(self.config.page_bytes) for each in streams)
        pages = len({page for each in streams for page in each.pages.values()})
        assert pages == self.owned_pages == len(self.owners)
        self.most_pages = max(self.most_pages, pages)
        shared = sum(len(each.streams) > 1 for each in self.owners.values())
        self.most_shared = max(self.most_shared, shared)
        if free != self.config.pages - pages:
            raise Mismatch(
                f"cycle {self.cycle}: {free} free pages, {pages} of {self.config.pages} owned"
            )

    def _at_end(self) -> None:
        if self.open or self.owners:
            raise Mismatch("at the end: some sequence is open")
        self.ended = True
