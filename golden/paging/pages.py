"""The page table of the KV cache, command by command. Pure Python.

A stream, (sequence, layer, K or V, slot), is the records of its tokens one after the other, over a
chain of pages. A record takes at most half a page, so it lies in one page or straddles two. Every
command has one answer. A refused command changes nothing. Fields that an answer does not use are 0.
"""

import dataclasses
import enum
import itertools
import typing
from collections.abc import Iterator

from golden.paging.config import CacheConfig
from golden.paging.format import PageOp, Status


class PageCommand(typing.NamedTuple):
    """One command; fields that its op does not use are ignored."""

    op: int  # PageOp
    sequence: int = 0
    layer: int = 0
    kv: int = 0
    slot: int = 0
    token: int = 0
    bytes: int = 0
    page: int = 0


class PageResponse(typing.NamedTuple):
    """The answer to one command."""

    status: Status = Status.OK
    page: int = 0
    page2: int = 0
    offset: int = 0
    bytes: int = 0
    skip: int = 0
    sequence: int = 0


class _State(enum.IntEnum):
    VACANT = 0
    OPEN = 1
    CLOSING = 2
    FORKING = 3


@dataclasses.dataclass
class _Sequence:
    state: _State = _State.VACANT
    start: int = 0  # tokens below are forgotten
    pages: int = 0  # in the chains of its streams
    is_child: bool = False  # made by FORK


@dataclasses.dataclass
class _Page:
    next: int  # in its stream's chain or in the free list; of the last one: unspecified
    sharers: int = 0  # streams that have it in their chains, but one
    first_token: int = 0  # whose record is the first that starts in this page
    offset: int = 0  # byte where it starts


@dataclasses.dataclass
class _Stream:
    first: int = 0
    last: int = 0
    pages: int = 0
    bytes: int = 0  # from the first record that starts in page `first` on
    end: int = 0  # bytes used in page `last`
    tip: int | None = None  # of a child: last page that it has from its parent
    own: int = 0  # of a child: the page after `tip`, once it has one


@dataclasses.dataclass
class _Taken:
    """One slot of the open transaction."""

    bytes: int
    page: int | None  # the new page, where one was taken


@dataclasses.dataclass
class _Transaction:
    sequence: int
    layer: int
    kv: int
    token: int
    log: list[_Taken] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Fork:
    parent: int
    child: int
    token: int
    done: int = 0  # streams that the child has


class PageTable:
    """State of the page table and the answer to each command.

    OPEN         -> sequence: the lowest vacant one is open, without tokens. TABLE_FULL.
    CLOSE        the sequence is closing: only FREE_STREAM and VACATE know it.
    FREE_STREAM  all pages of a stream go back; with the last slot the vector's tokens are 0.
    VACATE       a closing sequence without pages is vacant. BAD_REQUEST: it has pages.
    TRIM_CHECK   BEYOND_LENGTH: the vector has fewer tokens than ``token``.
    SET_START    -> skip: the start, the larger of ``token`` and the old one. Tokens below it are
                 forgotten; ``token`` 0 changes nothing. BAD_REQUEST: above max_tokens.
    TRIM_STREAM  -> skip: the bound. Pages in which no record of ``token`` or later starts go back,
                 but for the stream's last. From then on no page goes back, and no TRIM_CHECK fails,
                 at a token below the bound, whatever is appended.
                 BAD_REQUEST: ``token`` is above the sequence's start.
    BEGIN        opens the transaction that appends record ``token`` to all slots of a vector.
                 BAD_REQUEST: one is open. TOKEN_ORDER, LENGTH_LIMIT.
    EXTEND       -> page, offset, bytes, page2: the record of ``bytes`` bytes of ``slot`` goes to
                 ``bytes`` bytes from ``offset`` of ``page`` on; bytes beyond the page, if any, go
                 to ``page2`` from byte 0. BAD_REQUEST: no transaction, slots not in the order
                 0, 1, 2, .., or no such size of a record. OUT_OF_PAGES.
    COMMIT       the records of all slots belong to the vector. BAD_REQUEST: slots are missing.
    ABORT        the pages taken go back; nothing else has changed.
    READ         -> page, offset, bytes, skip: the records of tokens start..``token`` - 1 lie in
                 ``bytes`` bytes from ``offset`` of ``page`` on, along the chain; ``skip`` of them.
                 Records of variable size: all bytes of the chain; its first ``skip`` records are
                 before start.
                 BEYOND_LENGTH, EMPTY. BAD_REQUEST: TRIM_STREAM has not followed SET_START.
    NEXT         -> page: the one after ``page`` in the chain of the stream. A table without forks
                 looks at ``page`` alone.
    FORK         -> sequence: the lowest vacant one, which becomes a child of ``sequence`` and has
                 its start. CLOSE undoes what has been done. Until FORK_END no other op knows the
                 child. BAD_REQUEST: no forks, a fork under way, the sequence is a child itself.
                 TABLE_FULL. BEYOND_LENGTH: above max_tokens.
    FORK_STREAM  -> page, page2, bytes, skip: the child's next stream, in order of vectors and
                 slots. It has the full pages of the parent's stream. Where the last one is not
                 full, ``page2`` is a page for the first ``bytes`` bytes of that ``page``, which the
                 client copies. ``bytes`` 0: none. ``skip``: streams still to come.
                 BAD_REQUEST: no fork under way, no stream to come. BEYOND_LENGTH, TOKEN_ORDER:
                 the vector has fewer tokens than FORK said, or more. OUT_OF_PAGES.
    FORK_END     the child is open. BAD_REQUEST: no fork under way, streams still to come.

    A page goes back when the last stream that has it lets it go. While forks are allowed,
    FREE_STREAM gives pages back one by one, the first of the chain first.

    BAD_REQUEST: an op names a layer or slot beyond the configuration. SEQUENCE_UNKNOWN: an op names
    a sequence that is not open (FREE_STREAM, VACATE: not closing). BAD_REQUEST: CLOSE or
    TRIM_STREAM of the transaction's sequence, or of the parent while a fork is under way.

    The first status that applies is the answer, in this order:

    1. BAD_REQUEST for an unknown op or a field beyond the configuration
    2. SEQUENCE_UNKNOWN
    3. BAD_REQUEST
    4. the others as listed; READ's own BAD_REQUEST comes last

    The free list is a stack. At first page 0 is on top, then 1, 2, ...
    Source: Oaken, section 5.2; docs/blocks/paging_page_table.md.
    """

    def __init__(self, config: CacheConfig):
        self.config = config
        self._pages = [_Page((page + 1) % config.pages) for page in range(config.pages)]
        self._streams = [_Stream() for _ in range(config.streams)]
        self._tokens = [0] * config.vectors
        self._sequences = [_Sequence() for _ in range(config.sequences)]
        self._free_head = 0
        self._free_pages = config.pages
        self._transaction: _Transaction | None = None
        self._fork_now: _Fork | None = None

    @property
    def free_pages(self) -> int:
        return self._free_pages

    def command(self, command: PageCommand) -> PageResponse:
        """Carry out one command."""
        try:
            run = getattr(self, f"_{PageOp(command.op).name.lower()}")
        except ValueError:
            return PageResponse(Status.BAD_REQUEST)
        answer = run(command)
        return PageResponse(answer) if isinstance(answer, Status) else answer

    def chain(self, sequence: int, layer: int, kv: int, slot: int) -> Iterator[int]:
        """Pages of a stream, first to last; for tests."""
        yield from self._walk(self._streams[self.config.stream_index(sequence, layer, kv, slot)])

    def sharers(self, page: int) -> int:
        """Streams that have ``page``, but one; for tests."""
        return self._pages[page].sharers

    @property
    def shareable(self) -> int:
        """Pages that the next FORK_STREAM shares, if it succeeds; for tests."""
        fork, each = self._fork_now, self.config.streams // self.config.sequences
        if fork is None or fork.done == each:
            return 0
        stream = self._streams[fork.parent * each + fork.done]
        return stream.pages - (stream.pages > 0 and stream.end < self.config.page_bytes)

    def free_chain(self) -> Iterator[int]:
        """The free list, next to be taken first; for tests."""
        page = self._free_head
        for _ in range(self._free_pages):
            yield page
            page = self._pages[page].next

    @property
    def extended(self) -> int:
        """Slots extended in the open transaction; for tests."""
        return len(self._transaction.log) if self._transaction else 0

    def taken(self) -> list[int]:
        """Pages of the open transaction; for tests."""
        log = self._transaction.log if self._transaction else []
        return [entry.page for entry in log if entry.page is not None]

    def _check(self, command: PageCommand, state=_State.OPEN, *, layer=False, slot=False) -> Status:
        """BAD_REQUEST and SEQUENCE_UNKNOWN, for the fields that the op uses."""
        config = self.config
        if (layer and command.layer >= config.layers) or (slot and command.slot >= config.kv.slots):
            return Status.BAD_REQUEST
        if command.sequence >= config.sequences:
            return Status.SEQUENCE_UNKNOWN
        if self._sequences[command.sequence].state != state:
            return Status.SEQUENCE_UNKNOWN
        return Status.OK

    def _is_appending(self, sequence: int) -> bool:
        return self._transaction is not None and self._transaction.sequence == sequence

    def _is_forked(self, sequence: int) -> bool:
        return self._fork_now is not None and self._fork_now.parent == sequence

    def _vector(self, command: PageCommand) -> int:
        return self.config.vector_index(command.sequence, command.layer, command.kv)

    def _stream(self, command: PageCommand) -> _Stream:
        index = self.config.stream_index(command.sequence, command.layer, command.kv, command.slot)
        return self._streams[index]

    def _open(self, command):
        for number, sequence in enumerate(self._sequences):
            if sequence.state == _State.VACANT:
                sequence.state, sequence.start, sequence.is_child = _State.OPEN, 0, False
                return PageResponse(sequence=number)
        return Status.TABLE_FULL

    def _close(self, command):
        fork = self._fork_now
        if fork and fork.child == command.sequence:
            self._fork_now = None
        elif status := self._check(command):
            return status
        elif self._is_appending(command.sequence) or self._is_forked(command.sequence):
            return Status.BAD_REQUEST
        self._sequences[command.sequence].state = _State.CLOSING
        return Status.OK

    def _free_stream(self, command):
        if status := self._check(command, _State.CLOSING, layer=True, slot=True):
            return status
        stream = self._stream(command)
        if self.config.forks:
            for page in list(self._walk(stream)):
                self._let_go(page)
            self._sequences[command.sequence].pages -= stream.pages
            stream.tip = None
        elif stream.pages:
            self._pages[stream.last].next = self._free_head
            self._free_head = stream.first
            self._free_pages += stream.pages
            self._sequences[command.sequence].pages -= stream.pages
        stream.first = stream.last = stream.pages = stream.bytes = stream.end = 0
        if command.slot == self.config.kv.slots - 1:
            self._tokens[self._vector(command)] = 0
        return Status.OK

    def _vacate(self, command):
        if status := self._check(command, _State.CLOSING):
            return status
        if self._sequences[command.sequence].pages:
            return Status.BAD_REQUEST
        self._sequences[command.sequence].state = _State.VACANT
        return Status.OK

    def _trim_check(self, command):
        if status := self._check(command, layer=True):
            return status
        is_beyond = self._tokens[self._vector(command)] < command.token
        return Status.BEYOND_LENGTH if is_beyond else Status.OK

    def _set_start(self, command):
        if status := self._check(command):
            return status
        if command.token > self.config.max_tokens:
            return Status.BAD_REQUEST
        sequence = self._sequences[command.sequence]
        sequence.start = max(sequence.start, command.token)
        return PageResponse(skip=sequence.start)

    def _trim_stream(self, command):
        if status := self._check(command, layer=True, slot=True):
            return status
        sequence = self._sequences[command.sequence]
        is_held = self._is_appending(command.sequence) or self._is_forked(command.sequence)
        if is_held or command.token > sequence.start:
            return Status.BAD_REQUEST
        stream = self._stream(command)
        while stream.pages > 1:
            old = stream.first
            new = self._after(stream, old)
            if self._pages[new].first_token > command.token:
                break
            stream.first = new
            if old == stream.tip:
                stream.tip = None
            stream.pages -= 1
            stream.bytes -= self.config.page_bytes - self._pages[old].offset
            stream.bytes -= self._pages[new].offset
            sequence.pages -= 1
            self._let_go(old)
        return PageResponse(skip=self._bound(command, stream))

    def _bound(self, command: PageCommand, stream: _Stream) -> int:
        """The first token of the second page; a page still to come starts with a token to come."""
        if stream.pages > 1:
            return self._pages[self._after(stream, stream.first)].first_token
        return self._tokens[self._vector(command)]

    def _begin(self, command):
        if status := self._check(command, layer=True):
            return status
        if self._transaction is not None:
            return Status.BAD_REQUEST
        tokens = self._tokens[self._vector(command)]
        if command.token != tokens:
            return Status.TOKEN_ORDER
        if tokens == self.config.max_tokens:
            return Status.LENGTH_LIMIT
        self._transaction = _Transaction(command.sequence, command.layer, command.kv, command.token)
        return Status.OK

    def _extend(self, command):
        transaction, config = self._transaction, self.config
        if command.slot >= config.kv.slots or transaction is None:
            return Status.BAD_REQUEST
        if command.slot != len(transaction.log) or not self._is_size(command):
            return Status.BAD_REQUEST
        stream = self._appended(transaction, command.slot)
        room = config.page_bytes - stream.end if stream.pages else 0
        if command.bytes <= room:
            transaction.log.append(_Taken(command.bytes, None))
            return PageResponse(page=stream.last, offset=stream.end, bytes=command.bytes)
        if not self._free_pages:
            return Status.OUT_OF_PAGES
        new = self._free_head
        self._free_head = self._pages[new].next
        self._free_pages -= 1
        # The record that straddles, if one does, starts in the page before.
        self._pages[new].first_token = transaction.token + (room > 0)
        self._pages[new].offset = command.bytes - room if room else 0
        transaction.log.append(_Taken(command.bytes, new))
        if room:
            return PageResponse(page=stream.last, offset=stream.end, bytes=room, page2=new)
        return PageResponse(page=new, bytes=command.bytes)

    def _commit(self, command):
        transaction, config = self._transaction, self.config
        if transaction is None or len(transaction.log) != config.kv.slots:
            return Status.BAD_REQUEST
        for slot, entry in enumerate(transaction.log):
            stream = self._appended(transaction, slot)
            stream.bytes += entry.bytes
            stream.end += entry.bytes
            if entry.page is None:
                continue
            if stream.pages:
                # The link of the tip is the parent's.
                if stream.last == stream.tip:
                    stream.own = entry.page
                else:
                    self._pages[stream.last].next = entry.page
                stream.end -= config.page_bytes
            else:
                stream.first = entry.page
            stream.last = entry.page
            stream.pages += 1
            self._sequences[transaction.sequence].pages += 1
        vector = config.vector_index(transaction.sequence, transaction.layer, transaction.kv)
        self._tokens[vector] += 1
        self._transaction = None
        return Status.OK

    def _abort(self, command):
        if self._transaction is None:
            return Status.BAD_REQUEST
        for page in self.taken():
            self._release(page)
        self._transaction = None
        return Status.OK

    def _read(self, command):
        if status := self._check(command, layer=True, slot=True):
            return status
        if command.token > self._tokens[self._vector(command)]:
            return Status.BEYOND_LENGTH
        start = self._sequences[command.sequence].start
        if command.token <= start:
            return Status.EMPTY
        stream = self._stream(command)
        page = self._pages[stream.first]
        skip = start - page.first_token
        kind = self.config.kv.kind(command.slot)
        if not kind.is_fixed:
            return PageResponse(
                page=stream.first, offset=page.offset, bytes=stream.bytes, skip=skip
            )
        record = kind.most
        offset = page.offset + skip * record
        if offset > self.config.page_bytes:
            return Status.BAD_REQUEST
        count = command.token - start
        size = count * record
        if offset == self.config.page_bytes:
            # The page was full when all its tokens were trimmed: the records start in the next.
            follower = self._after(stream, stream.first)
            return PageResponse(page=follower, bytes=size, skip=count)
        return PageResponse(page=stream.first, offset=offset, bytes=size, skip=count)

    def _next(self, command):
        if command.page >= self.config.pages:
            return Status.BAD_REQUEST
        if not self.config.forks:
            return PageResponse(page=self._pages[command.page].next)
        if status := self._check(command, layer=True, slot=True):
            return status
        return PageResponse(page=self._after(self._stream(command), command.page))

    def _fork(self, command):
        if not self.config.forks:
            return Status.BAD_REQUEST
        if status := self._check(command):
            return status
        parent = self._sequences[command.sequence]
        if self._fork_now or parent.is_child:
            return Status.BAD_REQUEST
        states = [sequence.state for sequence in self._sequences]
        if _State.VACANT not in states:
            return Status.TABLE_FULL
        if command.token > self.config.max_tokens:
            return Status.BEYOND_LENGTH
        child = states.index(_State.VACANT)
        self._sequences[child] = _Sequence(_State.FORKING, parent.start, is_child=True)
        self._fork_now = _Fork(command.sequence, child, command.token)
        return PageResponse(sequence=child)

    def _fork_stream(self, command):
        fork, config = self._fork_now, self.config
        each = config.streams // config.sequences
        if fork is None or fork.done == each:
            return Status.BAD_REQUEST
        parent = self._streams[fork.parent * each + fork.done]
        vectors = [sequence * 2 * config.layers for sequence in (fork.parent, fork.child)]
        vectors = [first + fork.done // config.kv.slots for first in vectors]
        if tokens := self._tokens[vectors[0]] - fork.token:
            return Status.TOKEN_ORDER if tokens > 0 else Status.BEYOND_LENGTH
        is_partial = parent.pages > 0 and parent.end < config.page_bytes
        if is_partial and not self._free_pages:
            return Status.OUT_OF_PAGES
        copy = self._copied(parent.last) if is_partial else 0
        shared = [*itertools.islice(self._walk(parent), parent.pages - is_partial)]
        for page in shared:
            self._pages[page].sharers += 1
        child = dataclasses.replace(parent)
        if is_partial:
            child.last = child.own = copy
        if shared:
            child.tip = shared[-1]
        else:
            child.first = copy
        self._streams[fork.child * each + fork.done] = child
        self._sequences[fork.child].pages += child.pages
        fork.done += 1
        if fork.done % config.kv.slots == 0:
            self._tokens[vectors[1]] = fork.token
        left = each - fork.done
        if not is_partial:
            return PageResponse(skip=left)
        return PageResponse(page=parent.last, page2=copy, bytes=parent.end, skip=left)

    def _copied(self, page: int) -> int:
        """Takes a page for the records of ``page``."""
        new = self._free_head
        self._free_head = self._pages[new].next
        self._free_pages -= 1
        self._pages[new].first_token = self._pages[page].first_token
        self._pages[new].offset = self._pages[page].offset
        return new

    def _fork_end(self, command):
        fork, config = self._fork_now, self.config
        if fork is None or fork.done < config.streams // config.sequences:
            return Status.BAD_REQUEST
        self._sequences[fork.child].state = _State.OPEN
        self._fork_now = None
        return Status.OK

    def _after(self, stream: _Stream, page: int) -> int:
        """The page after ``page`` in the chain of ``stream``."""
        return stream.own if page == stream.tip else self._pages[page].next

    def _walk(self, stream: _Stream) -> Iterator[int]:
        """Pages of ``stream``, first to last."""
        page = stream.first
        for _ in range(stream.pages):
            yield page
            page = self._after(stream, page)

    def _let_go(self, page: int) -> None:
        """A stream has ``page`` no more."""
        if self._pages[page].sharers:
            self._pages[page].sharers -= 1
        else:
            self._release(page)

    def _release(self, page: int) -> None:
        self._pages[page].next = self._free_head
        self._free_head = page
        self._free_pages += 1

    def _appended(self, to: _Transaction, slot: int) -> _Stream:
        return self._streams[self.config.stream_index(to.sequence, to.layer, to.kv, slot)]

    def _is_size(self, command: PageCommand) -> bool:
        kind = self.config.kv.kind(command.slot)
        return kind.least <= command.bytes <= kind.most
