"""Who may touch which byte of the pages: a model that knows no page table.

``Owners`` follows what a host requests: sequences that are opened and freed, and steps. Of a step
it has the commands of the unit CACHE in order, the batch, and each word that the pages' memory
gave or took. From the commands it knows whose record comes next, and from golden's records how
long it is. The page is what the chip chose. The rules are:

| event | rule |
|---|---|
| the first byte of a page | nobody has the page |
| every other byte | it follows the last byte of its own stream |
| a word is read | its sequence has a place of the step, and wrote to that word before |
| a step that is done | each ATTEND reads each word of its own streams once, and no other word |
| FREE | the pages are nobody's; nothing in them counts as written. Those that others have stay |
| FORK | of each stream the last page is copied, if it is not full, to a page that nobody has |
| a page of several sequences | each of them reads it; none writes to it |
| after each step | all bytes of all sequences are those of golden's records |

A stream is (sequence, layer, K or V, slot). A step that failed may leave out vectors, and may write
some that golden does not know. These count as ``lost``. They too must be in pages of the step's
own sequences, or in pages that nobody has.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from golden.kllm.cache import Place
from golden.kllm.isa import Opcode
from golden.paging.config import CacheConfig
from golden.paging.format import Kv

Stream = tuple[int, int, int, int]
# The records of the last of these tokens, by layer, K or V, and slot; None: not known.
Oracle = Callable[[tuple[int, ...], int, int], Sequence[bytes] | None]
_NEVER = -1


class Violation(AssertionError):
    """A word that was read or written against a rule."""


class Access(NamedTuple):
    """A word of the pages' memory; bytes: offsets that were written, () of a read."""

    cycle: int
    address: int
    bytes: tuple[int, ...]
    is_write: bool
    is_error: bool


class CacheCommand(NamedTuple):
    """A command of the unit CACHE."""

    opcode: Opcode
    tokens: int
    layer: int
    kv: int
    place: int


class _Vector(NamedTuple):
    """An APPEND of one place."""

    sequence: int
    layer: int
    kv: int
    records: Sequence[bytes] | None


class _Byte(NamedTuple):
    cycle: int
    address: int
    is_error: bool


@dataclasses.dataclass
class _Stream:
    pages: list[int] = dataclasses.field(default_factory=list)
    end: int = 0  # bytes in the last page


@dataclasses.dataclass
class Counts:
    """Counts what was compared.

    vectors: of K or V, that went to the right bytes and equal golden's; words: their elements
    lost: words written in failed steps that are none of these; read: words of pages
    again: bytes of pages that were compared once more, after a step
    forks: that gave a child
    """

    steps: int = 0
    failed: int = 0
    vectors: int = 0
    words: int = 0
    lost: int = 0
    read: int = 0
    written: int = 0
    again: int = 0
    forks: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        mine, others = dataclasses.astuple(self), dataclasses.astuple(other)
        return Counts(*(a + b for a, b in zip(mine, others, strict=True)))


class Owners:
    """``config``: of one engine; word_bytes: of the pages' memory; oracle: golden's records."""

    def __init__(self, config: CacheConfig, word_bytes: int, oracle: Oracle) -> None:
        self.config, self.word_bytes, self.oracle = config, word_bytes, oracle
        self.size = config.pages * config.page_bytes
        self.counts = Counts()
        self.most_shared = 0  # pages that several sequences had at a time
        self.reset()

    def reset(self) -> None:
        """No sequence is open."""
        self.owner: dict[int, Stream] = {}  # of a page
        self.shared: dict[int, set[int]] = {}  # sequences of a page that several have
        self.astray: dict[int, set[int]] = {}  # pages of lost words: the sequences of the step
        self.history: dict[int, list[int]] = {}  # tokens of each open sequence
        self.streams: dict[Stream, _Stream] = {}
        self.since = np.full(self.size, _NEVER, dtype=np.int64)  # cycle in which it was written
        self.wanted = np.zeros(self.size, dtype=np.uint8)
        self.done: dict[int, int] = {}  # vectors of each sequence in the last step

    # Requests.

    def open(self, sequence: int) -> None:
        if sequence in self.history:
            raise Violation(f"OPEN gives sequence {sequence}, which is open")
        self.history[sequence] = []

    def free(self, sequence: int) -> list[int]:
        """The pages that are nobody's now."""
        del self.history[sequence]
        freed = []
        for page, stream in list(self.owner.items()):
            others = self._having(page) - {sequence}
            if not others:
                freed.append(page)
                self._release(page)
            elif page in self.shared:
                self.shared[page] = others
                self.owner[page] = min(others), *stream[1:]
        self.streams = {key: each for key, each in self.streams.items() if key[0] != sequence}
        for page, some in list(self.astray.items()):
            some.discard(sequence)
            if not some:
                del self.astray[page]
                freed.append(page)
        return sorted(set(freed) - set(self.owner))

    def pages_of(self, sequence: int, layer: int | None = None) -> list[int]:
        return sorted(
            page
            for page, (_, at, _, _) in self.owner.items()
            if sequence in self._having(page) and layer in (None, at)
        )

    def _having(self, page: int) -> set[int]:
        """Sequences that have a page, which somebody has."""
        return self.shared.get(page) or {self.owner[page][0]}

    def fork(self, parent: int, child: int | None, accesses: Sequence[Access]) -> None:
        """accesses: all since the step before, or the FORK; child: None where it failed."""
        if child in self.history:
            raise Violation(f"FORK gives sequence {child}, which is open")
        written = _bytes_of(accesses)
        self.counts.written += sum(each.is_write for each in accesses)
        wanted = np.zeros(self.size // self.word_bytes, dtype=np.int64)
        made: dict[Stream, _Stream] = {}
        at = 0
        for key in sorted(each for each in self.streams if each[0] == parent):
            found = self.streams[key]
            size = found.end if found.end < self.config.page_bytes else 0
            copy = written[at : at + size]
            if child is None and not copy:
                break
            at += len(copy)
            self._check_copy(key, copy, size if child is not None else len(copy))
            made[key] = _Stream([*found.pages], found.end)
            if size:
                first = found.pages[-1] * self.config.page_bytes
                wanted[first // self.word_bytes : -(-(first + size) // self.word_bytes)] += 1
                made[key].pages[-1] = copy[0].address // self.config.page_bytes
        if at != len(written):
            raise Violation(f"{self._said(written[at])} is written, and nothing is left to copy")
        self._check_reads(accesses, {parent}, wanted if child is not None else None)
        if child is not None:
            self.history[child] = [*self.history[parent]]
            self.counts.forks += 1
            for key, each in made.items():
                self._add_child(key, (child, *key[1:]), each, written)
            shared = sum(len(each) > 1 for each in self.shared.values())
            self.most_shared = max(self.most_shared, shared)

    def _check_copy(self, stream: Stream, copy: Sequence[_Byte], size: int) -> None:
        if len(copy) != size:
            raise Violation(f"{_name(stream)}: {len(copy)} bytes are copied in the place of {size}")
        for n, byte in enumerate(copy):
            page, offset = divmod(byte.address, self.config.page_bytes)
            if page in self.owner:
                raise Violation(f"{self._said(byte)} is written as a copy of {_name(stream)}")
            if byte.address != copy[0].address + n or offset != n:
                raise Violation(f"{self._said(byte)} is written for {_name(stream)}, after a gap")

    def _add_child(
        self, of: Stream, stream: Stream, made: _Stream, written: Sequence[_Byte]
    ) -> None:
        """``stream`` has the pages of ``made``: the last one may be a copy of that of ``of``."""
        self.streams[stream] = made
        page_bytes = self.config.page_bytes
        for page, original in zip(made.pages, self.streams[of].pages, strict=True):
            if page == original:
                self.shared[page] = self._having(page) | {stream[0]}
                continue
            self.owner[page] = stream
            self.astray.pop(page, None)
            to, first = page * page_bytes, original * page_bytes
            cycles = {byte.address: byte.cycle for byte in written}
            for n in range(made.end):
                self.since[to + n], self.wanted[to + n] = cycles[to + n], self.wanted[first + n]

    # Steps.

    def step(
        self,
        batch: Sequence[Place | None],
        commands: Sequence[CacheCommand],
        accesses: Sequence[Access],
        memory: np.ndarray,
        is_done: bool,
    ) -> None:
        """memory: the pages' bytes after the step."""
        self.done = {}
        self.counts.steps += 1
        self.counts.failed += not is_done
        used = max((each.place + each.tokens for each in commands), default=0)
        places = [place for place in batch[:used] if place is not None]
        for place in places:
            history = self.history.get(place.sequence)
            if history is None or place.position > len(history):
                if is_done:
                    raise Violation(f"{place} has no sequence, or is beyond its next token")
                continue
            if place.position < len(history) and is_done:
                raise Violation(f"{place} is in the pages already")
            del history[place.position :]
            history.append(place.token)
        # All of a chunk is known before its first APPEND.
        histories = {number: tuple(tokens) for number, tokens in self.history.items()}
        written = _bytes_of(accesses)
        self.counts.written += sum(each.is_write for each in accesses)
        wanted = np.zeros(self.size // self.word_bytes, dtype=np.int64)
        vectors: list[_Vector] = []
        at = 0
        for command in commands:
            named = batch[command.place : command.place + command.tokens]
            for place in filter(None, named):
                if command.opcode == Opcode.APPEND:
                    tokens = histories.get(place.sequence, ())[: place.position + 1]
                    is_next = len(tokens) == place.position + 1
                    known = self.oracle(tokens, command.layer, command.kv)
                    records = known if is_next else None
                    vector = _Vector(place.sequence, command.layer, command.kv, records)
                    if is_done:
                        at = self._append(vector, written, at)
                    else:
                        vectors.append(vector)
                elif is_done:
                    self._want(wanted, place.sequence, command.layer)
        if is_done and at != len(written):
            raise Violation(f"{self._said(written[at])} is written, and nothing is left to write")
        members = {place.sequence for place in places}
        if not is_done:
            self._match(vectors, written, memory, members)
        self._check_reads(accesses, members, wanted if is_done else None)
        self._compare(memory)

    def _append(self, vector: _Vector, written: Sequence[_Byte], at: int) -> int:
        """The records of a vector; the byte after them."""
        if vector.records is None:
            raise Violation(f"golden knows no token of sequence {vector.sequence} with this past")
        for slot, record in enumerate(vector.records):
            stream = vector.sequence, vector.layer, vector.kv, slot
            wrong = self._wrong(stream, written[at : at + len(record)], len(record))
            if wrong:
                raise Violation(wrong)
            self._take(stream, record, written[at : at + len(record)])
            at += len(record)
        self._count(vector)
        return at

    def _count(self, vector: _Vector) -> None:
        self.counts.vectors += 1
        self.counts.words += self.config.kv.heads * getattr(self.config.kv, "head_dim", 0)
        self.done[vector.sequence] = self.done.get(vector.sequence, 0) + 1

    def _places(self, stream: Stream, size: int) -> tuple[int, int]:
        """The first byte that a record may have, and how many follow in the last page."""
        page_bytes, found = self.config.page_bytes, self.streams.get(stream)
        if found is None or not found.pages:
            return 0, 0
        return found.pages[-1] * page_bytes + found.end, min(size, page_bytes - found.end)

    def _wrong(self, stream: Stream, written: Sequence[_Byte], size: int) -> str:
        """Why a record may not be in these bytes, or ""."""
        if len(written) != size:
            return f"{_name(stream)}: {len(written)} bytes are written in the place of {size}"
        first, room = self._places(stream, size)
        for n, byte in enumerate(written[:room]):
            if byte.address != first + n:
                return f"{self._said(byte)} is written, not byte {first + n} of {_name(stream)}"
        fresh = written[room:]
        if fresh:
            page, offset = divmod(fresh[0].address, self.config.page_bytes)
            if page in self.owner:
                return f"{self._said(fresh[0])} is written as a new page of {_name(stream)}"
            if offset:
                return f"{self._said(fresh[0])} is written, and is no page's first"
        for n, byte in enumerate(fresh):
            if byte.address != fresh[0].address + n:
                return f"{self._said(byte)} is written for {_name(stream)}, after a gap"
        return ""

    def _take(self, stream: Stream, record: bytes, written: Sequence[_Byte]) -> None:
        found = self.streams.setdefault(stream, _Stream())
        for byte, value in zip(written, record, strict=True):
            page, offset = divmod(byte.address, self.config.page_bytes)
            if not found.pages or page != found.pages[-1]:
                found.pages.append(page)
                self.owner[page] = stream
                self.astray.pop(page, None)
            found.end = offset + 1
            self.since[byte.address], self.wanted[byte.address] = byte.cycle, value

    def _match(
        self, vectors: Sequence[_Vector], written: Sequence[_Byte], memory: np.ndarray,
        members: set[int],
    ) -> None:  # fmt: skip
        """Finds the vectors of a failed step: in order, some left out. Other words are lost."""
        at = first = 0
        while at < len(written):
            for n, vector in enumerate(vectors[first:], first):
                size = self._fits(vector, written, at, memory)
                if size:
                    self._try(vector, written[at : at + size])
                    first, at = n + 1, at + size
                    break
            else:
                self._lose(written[at], members)
                at += 1

    def _fits(self, vector: _Vector, written: Sequence[_Byte], at: int, memory: np.ndarray) -> int:
        """Bytes of the vector, where it begins at ``written[at]``; 0: it does not."""
        size = 0
        for slot, record in enumerate(vector.records or ()):
            stream = vector.sequence, vector.layer, vector.kv, slot
            some = written[at + size : at + size + len(record)]
            if self._wrong(stream, some, len(record)):
                return 0
            if bytes(memory[[byte.address for byte in some]]) != record:
                return 0
            size += len(record)
        return size

    def _try(self, vector: _Vector, written: Sequence[_Byte]) -> None:
        """Writes a vector. Where the memory refused a byte, the page table takes it back."""
        if any(byte.is_error for byte in written):
            return
        at = 0
        for slot, record in enumerate(vector.records or ()):
            stream = vector.sequence, vector.layer, vector.kv, slot
            self._take(stream, record, written[at : at + len(record)])
            at += len(record)
        self._count(vector)

    def _lose(self, byte: _Byte, members: set[int]) -> None:
        page, offset = divmod(byte.address, self.config.page_bytes)
        self.counts.lost += 1
        stream = self.owner.get(page)
        if stream is None:
            self.astray.setdefault(page, set()).update(members)
            return
        if page in self.shared:
            raise Violation(f"{self._said(byte)} is written, and others have the page")
        if stream[0] not in members:
            raise Violation(f"{self._said(byte)} is written by a step in which it has no place")
        if offset < self.streams[stream].end or page != self.streams[stream].pages[-1]:
            raise Violation(f"{self._said(byte)} is written once more")

    def _want(self, wanted: np.ndarray, sequence: int, layer: int) -> None:
        """An ATTEND reads each word of its streams once."""
        page_bytes, word = self.config.page_bytes, self.word_bytes
        for kv in Kv:
            for slot in range(self.config.kv.slots):
                found = self.streams[sequence, layer, kv, slot]
                for page in found.pages:
                    end = found.end if page == found.pages[-1] else page_bytes
                    wanted[page * page_bytes // word : -(-(page * page_bytes + end) // word)] += 1

    def _check_reads(
        self, accesses: Sequence[Access], members: set[int], wanted: np.ndarray | None
    ) -> None:
        word = self.word_bytes
        got = np.zeros(self.size // word, dtype=np.int64)
        for each in accesses:
            if each.is_write:
                continue
            self.counts.read += 1
            got[each.address // word] += 1
            page = each.address // self.config.page_bytes
            said = f"cycle {each.cycle}: word {each.address} of page {page}"
            stream = self.owner.get(page)
            if stream is None:
                if wanted is None and page in self.astray:
                    continue  # what a failed step wrote itself
                raise Violation(f"{said} is read, and nobody has the page")
            if not self._having(page) & members:
                raise Violation(f"{said} is read: {_name(stream)} has no place of the step")
            since = self.since[each.address : each.address + word]
            if not ((since != _NEVER) & (since < each.cycle)).any():
                if wanted is None and page == self.streams[stream].pages[-1]:
                    continue  # a lost word of its own
                raise Violation(f"{said} is read before {_name(stream)} wrote it")
        if wanted is not None and (got != wanted).any():
            first = int(np.flatnonzero(got != wanted)[0])
            stream = self.owner.get(first * word // self.config.page_bytes)
            whose = _name(stream) if stream else "nobody"
            raise Violation(
                f"word {first * word} of {whose} is read {got[first]} times in a step, "
                f"not {wanted[first]}"
            )

    def _compare(self, memory: np.ndarray) -> None:
        """All bytes of all sequences."""
        known = self.since != _NEVER
        self.counts.again += int(known.sum())
        wrong = np.flatnonzero(known & (memory != self.wanted))
        if len(wrong):
            raise Violation(f"{self._said(_Byte(_NEVER, int(wrong[0]), False))} is not golden's")

    def _release(self, page: int) -> None:
        del self.owner[page]
        self.shared.pop(page, None)
        first = page * self.config.page_bytes
        self.since[first : first + self.config.page_bytes] = _NEVER

    def _said(self, byte: _Byte) -> str:
        page, offset = divmod(byte.address, self.config.page_bytes)
        stream = self.owner.get(page)
        when = f"cycle {byte.cycle}: " if byte.cycle != _NEVER else ""
        whose = f" of {_name(stream)}" if stream else ", which nobody has,"
        return f"{when}byte {offset} of page {page}{whose}"


def _bytes_of(accesses: Sequence[Access]) -> list[_Byte]:
    """The bytes that are written, in order."""
    return [
        _Byte(each.cycle, each.address + offset, each.is_error)
        for each in accesses if each.is_write for offset in each.bytes
    ]  # fmt: skip


def _name(stream: Stream) -> str:
    sequence, layer, kv, slot = stream
    return f"sequence {sequence}, layer {layer}, {Kv(kv).name}, record {slot}"
