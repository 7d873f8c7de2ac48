"""``owners.Owners`` finds the faults of a chip in Python, which has golden's page table.

The chip writes the records of each APPEND to the bytes that golden.paging.pages names, and reads
those of each ATTEND. A FORK copies what it says. Each fault changes one of these. Every one of
FAULTS and of FORK_FAULTS is found.
"""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from golden.kllm.cache import Place
from golden.kllm.isa import Opcode
from golden.oaken.config import CacheConfig, KvShape
from golden.paging.format import PageOp, Status
from golden.paging.pages import PageCommand, PageResponse, PageTable
from senbazuru.host.owners import Access, CacheCommand, Owners, Violation

WORD = 16
KV = KvShape(heads=2, head_dim=32, block=32, order="token")
CONFIG = CacheConfig(kv=KV, sequences=4, layers=2, pages=128, page_bytes=256, max_tokens=40)
SHARING = dataclasses.replace(CONFIG, sequences=6, forks=True)
PLACES = 4


def record(tokens: tuple[int, ...], layer: int, kv: int) -> list[bytes]:
    """Bytes of many sizes, which depend on all tokens."""
    rng = random.Random(repr((tokens, layer, kv)))
    kinds = [CONFIG.kv.kind(slot) for slot in range(CONFIG.kv.slots)]
    return [rng.randbytes(rng.randint(kind.least, kind.most)) for kind in kinds]


def program(tokens: int) -> list[CacheCommand]:
    """The commands of a step of so many tokens."""
    made = []
    for layer in range(CONFIG.layers):
        made += [CacheCommand(Opcode.APPEND, tokens, layer, kv, 0) for kv in range(2)]
        made.append(CacheCommand(Opcode.ATTEND, tokens, layer, 0, 0))
    return made


@dataclasses.dataclass
class Fault:
    """A chip is wrong by one function; the others do nothing.

    answer: of the page table to a command; read: the sequence that an ATTEND reads; batch: the
    places as the chip has them; freed: the sequence of a FREE; written: an address of a write
    """

    answer: Callable = lambda _table, _command, answer: answer
    read: Callable = lambda place: place.sequence
    batch: Callable = lambda batch: batch
    freed: Callable = lambda sequence: sequence
    written: Callable = lambda address: address
    extra: bool = False  # ATTEND reads one word more
    thresholds: bool = False  # those of another layer
    twice: bool = False  # an APPEND is written twice


class Chip:
    """The page table, the memory, and the owners that watch them."""

    def __init__(self, fault: Fault, config: CacheConfig = CONFIG) -> None:
        self.fault, self.table = fault, PageTable(config)
        self.owners = Owners(config, WORD, record)
        self.memory = np.zeros(self.owners.size, dtype=np.uint8)
        self.tokens: dict[int, list[int]] = {}
        self.cycle = 0
        self.accesses: list[Access] = []

    def page(self, op: PageOp, **fields: int) -> PageResponse:
        command = PageCommand(op, **fields)
        return self.fault.answer(self.table, command, self.table.command(command))

    def open(self) -> int:
        sequence = self.page(PageOp.OPEN).sequence
        self.owners.open(sequence)
        self.tokens[sequence] = []
        return sequence

    def free(self, sequence: int) -> None:
        self.owners.free(sequence)
        number = self.fault.freed(sequence)
        self.page(PageOp.CLOSE, sequence=number)
        for layer in range(CONFIG.layers):
            for kv in range(2):
                for slot in range(CONFIG.kv.slots):
                    self.page(PageOp.FREE_STREAM, sequence=number, layer=layer, kv=kv, slot=slot)
        self.page(PageOp.VACATE, sequence=number)
        del self.tokens[number]

    def fork(self, parent: int) -> int:
        """The child, which begins with the pages of the parent."""
        self.accesses = []
        tokens = self.tokens[parent]
        found = self.page(PageOp.FORK, sequence=parent, token=len(tokens))
        assert found.status == Status.OK
        child, left = found.sequence, 1
        while left:
            found = self.page(PageOp.FORK_STREAM)
            assert found.status == Status.OK
            left = found.skip
            if found.bytes:
                first = found.page * CONFIG.page_bytes
                self.read(first, found.bytes)
                data = self.memory[first : first + found.bytes].tobytes()
                self.write(found.page2 * CONFIG.page_bytes, data)
        self.page(PageOp.FORK_END)
        self.owners.fork(parent, child, self.accesses)
        self.tokens[child] = [*tokens]
        return child

    def write(self, address: int, data: bytes) -> None:
        """One access for each word."""
        at = 0
        while at < len(data):
            offset = (address + at) % WORD
            some = data[at : at + WORD - offset]
            start = self.fault.written(address + at)
            self.memory[start : start + len(some)] = list(some)
            self.cycle += 1
            offsets = tuple(range(start % WORD, start % WORD + len(some)))
            self.accesses.append(Access(self.cycle, start - start % WORD, offsets, True, False))
            at += len(some)

    def append(self, place: Place, layer: int, kv: int) -> None:
        sequence = place.sequence
        tokens = (*self.tokens[sequence][: place.position], place.token)
        fields = {"sequence": sequence, "layer": layer, "kv": kv}
        begun = self.page(PageOp.BEGIN, token=place.position, **fields)
        assert begun.status == Status.OK
        used = layer ^ 1 if self.fault.thresholds else layer
        for slot, made in enumerate(record(tokens, used, kv)):
            found = self.page(PageOp.EXTEND, slot=slot, bytes=len(made), **fields)
            assert found.status == Status.OK
            for _ in range(2 if self.fault.twice else 1):
                self.write(found.page * CONFIG.page_bytes + found.offset, made[: found.bytes])
                self.write(found.page2 * CONFIG.page_bytes, made[found.bytes :])
        self.page(PageOp.COMMIT, **fields)

    def attend(self, place: Place, layer: int) -> None:
        sequence = self.fault.read(place)
        for kv in range(2):
            for slot in range(CONFIG.kv.slots):
                fields = {"sequence": sequence, "layer": layer, "kv": kv, "slot": slot}
                found = self.page(PageOp.READ, token=place.position + 1, **fields)
                page, left, offset = found.page, found.bytes, found.offset
                while left > 0:
                    some = min(left, CONFIG.page_bytes - offset)
                    self.read(page * CONFIG.page_bytes + offset, some)
                    left, offset = left - some, 0
                    if left > 0:
                        page = self.page(PageOp.NEXT, page=page, **fields).page

    def read(self, address: int, size: int) -> None:
        last = (address + size - 1) // WORD + self.fault.extra
        for word in range(address // WORD, last + 1):
            self.cycle += 1
            self.accesses.append(Access(self.cycle, word * WORD, (), False, False))

    def step(self, places: list[Place]) -> None:
        commands = program(len(places))
        intended = [*places, *[None] * (PLACES - len(places))]
        real = self.fault.batch(list(places))
        for place in places:
            self.tokens[place.sequence].append(place.token)
        self.accesses = []
        for command in commands:
            for place in real:
                if command.opcode == Opcode.APPEND:
                    self.append(place, command.layer, command.kv)
                else:
                    self.attend(place, command.layer)
        self.owners.step(intended, program(len(places)), self.accesses, self.memory, True)


def run(fault: Fault, steps: int = 40, seed: int = 1) -> Owners:
    """Sequences come, grow and go."""
    rng, chip = random.Random(seed), Chip(fault)
    alive: list[int] = []
    for _ in range(steps):
        if len(alive) < 3 and rng.random() < 0.7:
            alive.append(chip.open())
        some = rng.sample(alive, min(len(alive), rng.randint(1, PLACES)))
        places = [Place(n, len(chip.tokens[n]), rng.randrange(100)) for n in some]
        if places:
            chip.step(places)
        if len(alive) > 2 and rng.random() < 0.3:
            chip.free(alive.pop(rng.randrange(3)))
    return chip.owners


def run_forks(fault: Fault, steps: int = 60, seed: int = 1) -> Owners:
    """Prompts and their children grow, and go in any order."""
    rng, chip = random.Random(seed), Chip(fault, SHARING)
    alive: list[int] = []
    parents: list[int] = []
    for _ in range(steps):
        if len(alive) < 5 and rng.random() < 0.7:
            grown = [n for n in parents if len(chip.tokens[n]) > 5]
            if grown:
                alive.append(chip.fork(rng.choice(grown)))
            else:
                alive.append(chip.open())
                parents.append(alive[-1])
        some = rng.sample(alive, min(len(alive), rng.randint(1, PLACES)))
        some = [n for n in some if len(chip.tokens[n]) < CONFIG.max_tokens]
        places = [Place(n, len(chip.tokens[n]), rng.randrange(100)) for n in some]
        if places:
            chip.step(places)
        if len(alive) > 3 and rng.random() < 0.3:
            gone = alive.pop(rng.randrange(4))
            parents = [n for n in parents if n != gone]
            chip.free(gone)
    for each in alive:
        chip.free(each)
    assert not chip.owners.owner
    return chip.owners


def on(op: PageOp, change: Callable, after: int = 0) -> Callable:
    """A change of the answers to a command, those after the first ones."""
    seen = [0]

    def answer(table: PageTable, command: PageCommand, made: PageResponse) -> PageResponse:
        if command.op == op and made.status == Status.OK:
            seen[0] += 1
            if seen[0] > after:
                return change(table, command, made)
        return made

    return answer


def not_spliced(table: PageTable, command: PageCommand, made: PageResponse) -> PageResponse:
    """The free list begins at a page that a stream of another sequence has."""
    others = [each.last for n, each in enumerate(table._streams) if each.pages]
    if others:
        table._free_head = others[-1]
    return made


def stale(table: PageTable, command: PageCommand, made: PageResponse) -> PageResponse:
    """READ of a page that was freed."""
    free = next(table.free_chain(), made.page)
    return made._replace(page=free)


def other_sequence(place: Place) -> int:
    return place.sequence ^ 1


def swapped(batch: list[Place]) -> list[Place]:
    if len(batch) < 2:
        return batch
    first, second, *rest = batch
    one = first._replace() if hasattr(first, "_replace") else first
    return [
        dataclasses.replace(one, token=second.token), dataclasses.replace(second, token=one.token),
        *rest,
    ]  # fmt: skip


FAULTS = {
    "a page number is one too high in a write": Fault(
        on(PageOp.EXTEND, lambda _t, _c, a: a._replace(page=(a.page + 1) % CONFIG.pages), 20)
    ),
    "a page number is one too high in a read": Fault(
        on(PageOp.READ, lambda _t, _c, a: a._replace(page=(a.page + 1) % CONFIG.pages), 20)
    ),
    "a link is one too high": Fault(
        on(PageOp.NEXT, lambda _t, _c, a: a._replace(page=(a.page + 1) % CONFIG.pages))
    ),
    "the second page of a record is that of the first": Fault(
        on(PageOp.EXTEND, lambda _t, _c, a: a._replace(page2=a.page) if a.page2 else a)
    ),
    "a record begins one byte late": Fault(
        on(PageOp.EXTEND, lambda _t, _c, a: a._replace(offset=a.offset + 1), 9)
    ),
    "a read is one record too short": Fault(
        on(PageOp.READ, lambda _t, _c, a: a._replace(bytes=max(1, a.bytes - 46)), 9)
    ),
    "a read begins at byte 0 of the page after": Fault(
        on(PageOp.READ, lambda _t, c, a: a._replace(bytes=a.bytes + CONFIG.page_bytes), 30)
    ),
    "the free list begins at a page in use": Fault(on(PageOp.FREE_STREAM, not_spliced)),
    "a freed page is read": Fault(on(PageOp.READ, stale, 40)),
    "an ATTEND reads another sequence": Fault(read=lambda place: min(place.sequence, 1)),
    "two tokens of the batch are swapped": Fault(batch=swapped),
    "FREE of another sequence": Fault(freed=lambda sequence: (sequence + 1) % 3),
    "a write goes to another page": Fault(
        written=lambda address: address ^ CONFIG.page_bytes if address >= 2048 else address
    ),
    "a write is lost in a neighbour's word": Fault(
        written=lambda address: address + WORD if address == 16 * WORD else address
    ),
    "an ATTEND reads one word more": Fault(extra=True),
    "thresholds of another layer": Fault(thresholds=True),
    "a record is written twice": Fault(twice=True),
}


def under_way(table: PageTable) -> Any:
    """The FORK that the table is at."""
    assert table._fork_now is not None
    return table._fork_now


def in_use(table: PageTable, _command: PageCommand, made: PageResponse) -> PageResponse:
    """A copy goes to the first page of the parent's stream."""
    stream = table._streams[under_way(table).parent * STREAMS + under_way(table).done - 1]
    return made._replace(page2=stream.first) if made.bytes else made


def not_counted(table: PageTable, _command: PageCommand, made: PageResponse) -> PageResponse:
    """The child's pages are not counted as shared: they go back with the first FREE."""
    child = under_way(table).child
    for page in table._walk(table._streams[child * STREAMS + under_way(table).done - 1]):
        table._pages[page].sharers = 0
    return made


def last_shared(table: PageTable, _command: PageCommand, made: PageResponse) -> PageResponse:
    """The child goes on in the parent's last page."""
    if made.bytes:
        stream = table._streams[under_way(table).child * STREAMS + under_way(table).done - 1]
        stream.last = stream.own = made.page
        if stream.tip is None:
            stream.first = made.page
    return made


def parents_link(table: PageTable, command: PageCommand, made: PageResponse) -> PageResponse:
    return made._replace(page=table._pages[command.page].next)


STREAMS = SHARING.streams // SHARING.sequences
FORK_FAULTS = {
    "a copy is written over the page that it is of": Fault(
        on(PageOp.FORK_STREAM, lambda _t, _c, a: a._replace(page2=a.page))
    ),
    "a copy goes to a page in use": Fault(on(PageOp.FORK_STREAM, in_use)),
    "a copy lacks its last byte": Fault(
        on(PageOp.FORK_STREAM, lambda _t, _c, a: a._replace(bytes=max(0, a.bytes - 1)))
    ),
    "a copy is of another page": Fault(
        on(PageOp.FORK_STREAM, lambda _t, _c, a: a._replace(page=a.page ^ 1))
    ),
    "a page of two sequences goes back with the first": Fault(on(PageOp.FORK_STREAM, not_counted)),
    "a child goes on in its parent's last page": Fault(on(PageOp.FORK_STREAM, last_shared)),
    "NEXT follows the parent's link after the tip": Fault(on(PageOp.NEXT, parents_link)),
    "an ATTEND of a prompt reads another sequence": Fault(
        read=lambda place: 1 if place.sequence == 0 else place.sequence
    ),
}


def test_a_right_chip_that_shares():
    for seed in range(5):
        owners = run_forks(Fault(), seed=seed)
        assert owners.counts.forks > 3
        assert owners.most_shared > 3
        assert not owners.counts.lost


@pytest.mark.parametrize("name", FORK_FAULTS)
def test_faults_of_forks_are_found(name):
    with pytest.raises(Violation) as found:
        run_forks(FORK_FAULTS[name])
    print(name, "->", found.value)


def test_a_fork_that_fails():
    """It may write to pages that nobody has, and to no other."""
    chip = Chip(Fault(), SHARING)
    first, second = chip.open(), chip.open()
    for token in range(3):
        chip.step([Place(n, token, 7 * n + token) for n in (first, second)])
    owners = chip.owners
    key = first, 0, 0, 0
    page, end = owners.streams[key].pages[-1], owners.streams[key].end
    free = next(chip.table.free_chain()) * CONFIG.page_bytes

    def copy(to: int) -> list[Access]:
        starts = range(0, end, WORD)
        sizes = [min(WORD, end - start) for start in starts]
        return [
            Access(chip.cycle + 1 + n, to + start, tuple(range(size)), True, False)
            for n, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]

    owners.fork(first, None, copy(free))
    owners.fork(first, None, [])
    assert len(owners.history) == 2
    with pytest.raises(Violation, match="is written as a copy of"):
        owners.fork(first, None, copy(owners.streams[second, 0, 0, 0].pages[-1] * 256))
    read = Access(chip.cycle + 9, owners.streams[second, 0, 0, 0].pages[0] * 256, (), False, False)
    with pytest.raises(Violation, match="has no place of the step"):
        owners.fork(first, None, [read])
    with pytest.raises(Violation, match="which is open"):
        owners.fork(first, second, [])
    assert page * CONFIG.page_bytes != free


def test_a_right_chip():
    owners = Owners(CONFIG, WORD, record)
    for seed in range(5):
        owners = run(Fault(), seed=seed)
        assert owners.counts.vectors > 100
        assert owners.counts.read > 1000
        assert not owners.counts.lost


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    with pytest.raises(Violation) as found:
        run(FAULTS[name])
    print(name, "->", found.value)


def test_what_a_failed_step_may_do():
    """Its own pages, and those of nobody; not those of a sequence that has no place in it."""
    chip = Chip(Fault())
    first, second = chip.open(), chip.open()
    for token in range(3):
        chip.step([Place(n, token, 7 * n + token) for n in (first, second)])
    owners = chip.owners
    (page,) = owners.streams[second, 1, 0, 0].pages[-1:]
    end = owners.streams[second, 1, 0, 0].end
    word = page * CONFIG.page_bytes + (end + WORD - 1) // WORD * WORD
    write = Access(chip.cycle + 1, word, (0, 1), True, False)
    own = [Place(second, 3, 0), *[None] * 3]
    other = [Place(first, 3, 0), *[None] * 3]
    owners.step(own, program(1), [write], chip.memory, False)
    assert owners.counts.lost == 2
    with pytest.raises(Violation, match="in which it has no place"):
        owners.step(other, program(1), [write], chip.memory, False)
    read = Access(chip.cycle + 2, page * CONFIG.page_bytes, (), False, False)
    with pytest.raises(Violation, match="has no place of the step"):
        owners.step(other, program(1), [read], chip.memory, False)
    free = next(chip.table.free_chain())
    read = Access(chip.cycle + 2, free * CONFIG.page_bytes, (), False, False)
    with pytest.raises(Violation, match="nobody has the page"):
        owners.step(other, program(1), [read], chip.memory, False)
