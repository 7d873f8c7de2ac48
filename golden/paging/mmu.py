"""The paged KV cache, request by request: records in, statuses and memory words out. Pure Python.

One request is over before the next begins. The hardware works on several; its docstring and page
say which orders are possible then.
"""

import dataclasses
import typing
from collections.abc import Callable, Sequence

from golden.paging.config import CacheConfig
from golden.paging.format import Op, PageOp, Status
from golden.paging.pages import PageCommand, PageResponse, PageTable


class Request(typing.NamedTuple):
    """Fields of hdl.paging.layouts.REQUEST_LAYOUT, in order."""

    op: int
    tag: int = 0
    sequence: int = 0
    layer: int = 0
    kv: int = 0
    head: int = 0
    heads: int = 0
    token: int = 0


class Word(typing.NamedTuple):
    """One word of a transfer, fields of hdl.paging.layouts.word_layout."""

    data: int
    first: int
    end: int
    error: int  # the worst response so far in the transfer
    last: int


class _ByKind:
    """A record whose ``transfers`` and ``skips`` are attributes by their names, too."""

    def __getattr__(self, name: str):
        for fields in ("transfers", "skips"):
            found = self.__dict__.get(fields, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")


@dataclasses.dataclass(frozen=True)
class HeadRead(_ByKind):
    """The words that a READ gives of one head."""

    head: int
    tokens: int
    skips: dict[str, int]  # by field of the info, as RecordShape.skips names them
    transfers: dict[str, tuple[Word, ...]]  # by kind of record that each head has


@dataclasses.dataclass(frozen=True)
class Answer(_ByKind):
    status: Status
    sequence: int
    heads: tuple[HeadRead, ...] = ()
    # By kind of record that the vector has once; empty where nothing is read.
    transfers: dict[str, tuple[Word, ...]] = dataclasses.field(default_factory=dict)


def joined(words: Sequence[Word], word_bytes: int) -> bytes:
    """The bytes that count of a transfer."""
    return b"".join(
        word.data.to_bytes(word_bytes, "little")[word.first : word.end] for word in words
    )


def _no_errors(address: int, is_write: bool) -> int:
    return 0


class Mmu:
    """A cache of ``config`` in memory words of ``data_bits``, page 0 at address 0.

    ``respond(address, is_write)`` is the response of the word at ``address``: 0, 2 or 3. A word
    written with an error is in memory nevertheless. ``memory`` holds every byte.
    """

    def __init__(
        self,
        config: CacheConfig,
        data_bits: int,
        respond: Callable[[int, bool], int] = _no_errors,
    ):
        self.config, self.word_bytes, self.respond = config, data_bits // 8, respond
        self.table = PageTable(config)
        self.memory = bytearray(config.pages * config.page_bytes)
        # By sequence, from its first TRIM on: no TRIM below this token does anything in a vector.
        self._bounds: dict[int, list[int]] = {}

    @property
    def free_pages(self) -> int:
        return self.table.free_pages

    def request(self, request: Request, records: Sequence[bytes] = ()) -> Answer:
        """Carry out one request; ``records`` are those of an APPEND, in order of slots."""
        if request.op == Op.OPEN:
            found = self._table(PageOp.OPEN)
            return Answer(found.status, found.sequence)
        if request.op == Op.APPEND:
            return Answer(self._append(request, records), request.sequence)
        if request.op == Op.READ:
            return self._read(request)
        if request.op == Op.TRIM:
            return Answer(self._trim(request), request.sequence)
        if request.op == Op.FREE:
            return Answer(self._free(request.sequence), request.sequence)
        if request.op == Op.FORK:
            return self._fork(request)
        return Answer(Status.BAD_REQUEST, request.sequence)

    def _table(self, op: PageOp, **fields) -> PageResponse:
        return self.table.command(PageCommand(op, **fields))

    def _streams(self) -> list[dict[str, int]]:
        config = self.config
        return [
            {"layer": layer, "kv": kv, "slot": slot}
            for layer in range(config.layers)
            for kv in range(2)
            for slot in range(config.kv.slots)
        ]

    def _free(self, sequence: int) -> Status:
        if status := self._table(PageOp.CLOSE, sequence=sequence).status:
            return status
        self._bounds.pop(sequence, None)
        for each in self._streams():
            self._table(PageOp.FREE_STREAM, sequence=sequence, **each)
        return self._table(PageOp.VACATE, sequence=sequence).status

    def _fork(self, request: Request) -> Answer:
        """Each stream in turn: all are tried, so the worst response of all copies tells."""
        begun = self._table(PageOp.FORK, sequence=request.sequence, token=request.token)
        if begun.status:
            return Answer(begun.status, request.sequence)
        found, worst = PageResponse(skip=1), 0
        while found.skip:
            found = self._table(PageOp.FORK_STREAM)
            if found.bytes:
                worst = max(worst, self._copy(found.page, found.page2, found.bytes))
        if status := found.status or _error(worst):
            self._free(begun.sequence)
            return Answer(status, request.sequence)
        self._table(PageOp.FORK_END)
        return Answer(Status.OK, begun.sequence)

    def _copy(self, source: int, target: int, count: int) -> int:
        """A page's first ``count`` bytes; returns the worst response."""
        size, page_bytes = self.word_bytes, self.config.page_bytes
        worst = 0
        for at in range(0, count, size):
            old, new = source * page_bytes + at, target * page_bytes + at
            worst = max(worst, self.respond(old, False), self.respond(new, True))
        old, new = source * page_bytes, target * page_bytes
        self.memory[new : new + count] = self.memory[old : old + count]
        return worst

    def _trim(self, request: Request) -> Status:
        config, named = self.config, {"sequence": request.sequence, "token": request.token}
        vectors = [(layer, kv) for layer in range(config.layers) for kv in range(2)]
        bounds = self._bounds.get(request.sequence, [0] * len(vectors))
        walked = [n for n, bound in enumerate(bounds) if request.token >= bound]
        for n in walked:
            layer, kv = vectors[n]
            answer = self._table(PageOp.TRIM_CHECK, layer=layer, kv=kv, **named)
            if answer.status:
                return answer.status
        self._table(PageOp.SET_START, **named)
        for n in walked:
            layer, kv = vectors[n]
            bounds[n] = min(
                self._table(PageOp.TRIM_STREAM, layer=layer, kv=kv, slot=slot, **named).skip
                for slot in range(config.kv.slots)
            )
        self._bounds[request.sequence] = bounds
        return Status.OK

    def _append(self, request: Request, records: Sequence[bytes]) -> Status:
        named = {"sequence": request.sequence, "layer": request.layer, "kv": request.kv}
        status = self._table(PageOp.BEGIN, token=request.token, **named).status
        if status:
            return status
        worst = 0
        for slot, record in enumerate(records):
            place = self._table(PageOp.EXTEND, slot=slot, bytes=len(record))
            if place.status:
                status = place.status
                if status == Status.BAD_REQUEST:  # no size of such a record
                    status = Status.VECTOR_LENGTH
                break
            parts = [(place.page, place.offset, record[: place.bytes])]
            parts.append((place.page2, 0, record[place.bytes :]))
            for page, offset, part in parts:
                if part:
                    worst = max(worst, self._write(page, offset, part))
        status = status or _error(worst)
        self._table(PageOp.ABORT if status else PageOp.COMMIT)
        return status

    def _write(self, page: int, offset: int, part: bytes) -> int:
        start = page * self.config.page_bytes + offset
        self.memory[start : start + len(part)] = part
        size = self.word_bytes
        words = range(start // size * size, start + len(part), size)
        return max(self.respond(address, True) for address in words)

    def _read(self, request: Request) -> Answer:
        config, kv = self.config, self.config.kv
        end = request.head + request.heads
        if request.layer >= config.layers or not request.heads or end > kv.parts:
            return Answer(Status.BAD_REQUEST, request.sequence)

        named = {"sequence": request.sequence, "layer": request.layer, "kv": request.kv}

        def find(slot: int) -> PageResponse:
            return self._table(PageOp.READ, slot=slot, token=request.token, **named)

        def words(slot: int, place: PageResponse) -> tuple[Word, ...]:
            return self._words(place, {"slot": slot, **named})

        first = find(0)
        if first.status:
            return Answer(first.status, request.sequence)
        own = {kind.name: find(kv.slot(kind.name)) for kind in kv.per_vector}
        transfers = {name: words(kv.slot(name), place) for name, place in own.items()}
        heads = []
        for head in range(request.head, end):
            places = {kind.name: find(kv.slot(kind.name, head)) for kind in kv.per_head}
            skips = {field: (places | own)[name].skip for name, field in kv.skips.items()}
            given = {name: words(kv.slot(name, head), place) for name, place in places.items()}
            heads.append(HeadRead(head, self._tokens(request), skips, given))
        every = [*transfers.values(), *(each for head in heads for each in head.transfers.values())]
        worst = max(each[-1].error for each in every)
        return Answer(_error(worst), request.sequence, tuple(heads), transfers)

    def _tokens(self, request: Request) -> int:
        """Tokens of a READ: from the sequence's start on."""
        start = self._table(PageOp.SET_START, sequence=request.sequence).skip
        return request.token - start

    def _words(self, place: PageResponse, named: dict[str, int]) -> tuple[Word, ...]:
        """The words of a transfer along the chain of the stream that is named."""
        size, page_bytes = self.word_bytes, self.config.page_bytes
        page, offset, left = place.page, place.offset, place.bytes
        words: list[Word] = []
        worst = 0
        while left:
            if offset == page_bytes:
                page, offset = self._table(PageOp.NEXT, page=page, **named).page, 0
            first = offset % size
            address = page * page_bytes + offset - first
            end = min(size, first + left)
            worst = max(worst, self.respond(address, False))
            data = int.from_bytes(self.memory[address : address + size], "little")
            left -= end - first
            offset += end - first
            words.append(Word(data, first, end, worst, int(not left)))
        return tuple(words)


def _error(worst: int) -> Status:
    """Returns the status of the worst response."""
    return {2: Status.SLAVE_ERROR, 3: Status.DECODE_ERROR}.get(worst, Status.OK)
