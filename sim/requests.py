"""Cycles of READs and APPENDs of the paged cache, request by request. Pure Python.

``Memory.seconds`` divides bytes by a bandwidth. This module follows the requests instead, from
event to event and not from cycle to cycle. Its rules are those of ``golden.paging.timing``,
``golden.axi.timing`` and the blocks of ``docs/blocks/paging_mmu.md``; nothing is fitted.

| part | what it does |
|---|---|
| front | one READ at a time: a look-up of its scales, then one of each head's sparse records |
| look-ups | one for the dense and one for the sparse records of a head, two heads ahead |
| channels | cut the runs of their kind into bursts, a burst when its words have room |
| page table | one command at a time for all of these, in turn; also the next page of a run |
| port | bursts of all channels in turn, at most ``outstanding`` in flight |
| memory | the words of a burst from ``latency`` cycles after its request on, bursts in order |

Long runs repeat: the state of all parts comes back after some pages. The walk then leaves out whole
periods, which changes no cycle.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from golden.axi import timing as axi
from golden.axi.format import PAGE_BYTES as BOUNDARY
from golden.config import Config, ConfigError, bounded, power_of_two
from golden.oaken.config import KvShape
from golden.oaken.format import SCALE_BYTES
from golden.paging.timing import page_table_cycles

KINDS = ("dense", "sparse", "scale")
_DENSE, _SPARSE, _SCALE = range(3)
_AHEAD = 2  # runs of a kind that are looked up ahead
_RAM_FROM = 32  # words of a queue above which it is a RAM, a cycle slower
_WRITES = 16  # bursts that an APPEND has in flight
_VERDICTS = 4  # records that the writer is ahead of their words
_PORT = axi.read_port(False).latency  # from a burst to its AR
_LOOK, _NEXT = page_table_cycles("READ", 0), page_table_cycles("NEXT", 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window(Config):
    """A port to the memory with its queues, named as the MMU names them; and the memory."""

    data_bits: int = power_of_two(256, 64, 1024, "of a word")
    page_bytes: int = power_of_two(4096, 256, 65536, "of a page")
    burst_beats: int = bounded(64, 1, 256, "words of the longest burst")
    outstanding: int = bounded(16, 1, 256, "bursts in flight")
    reads: int = bounded(8, 1, 16, "READs in flight")
    appends: int = bounded(4, 1, 16, "APPENDs accepted and not complete")
    dense_beats: int = bounded(256, 4, 4096, "words of the queue of dense records")
    sparse_beats: int = bounded(128, 4, 65536, "of sparse records")
    scale_beats: int = bounded(64, 4, 4096, "of scales")
    latency: int = bounded(100, 1, 65536, "cycles from AR to the first word")
    word_cycles: int = bounded(1, 1, 1024, "cycles of a word of the memory")

    @property
    def word_bytes(self) -> int:
        return self.data_bits // 8

    @property
    def page_words(self) -> int:
        return self.page_bytes // self.word_bytes

    @property
    def boundary_words(self) -> int:
        """Words between two addresses that no burst crosses."""
        return min(self.page_bytes, BOUNDARY) // self.word_bytes

    @property
    def depths(self) -> tuple[int, int, int]:
        """Words of the queues, by KINDS."""
        return self.dense_beats, self.sparse_beats, self.scale_beats

    def run(self, amount: float, offset: int = 0) -> "Run":
        """The words of ``amount`` bytes from byte ``offset`` of a page on. ConfigError: none."""
        if not 0 <= offset < self.page_bytes:
            raise ConfigError(f"Run.offset must be 0..{self.page_bytes - 1}, not {offset}")
        first, within = divmod(offset, self.word_bytes)
        words = -(-(within + amount) // self.word_bytes)
        if not 1 <= words < 1 << 32:
            raise ConfigError(f"Run.words must be 1..{(1 << 32) - 1}, not {words:g}")
        return Run(int(words), first)


class Run(NamedTuple):
    """Consecutive words along a chain of pages, from word ``position`` of the first page on."""

    words: int
    position: int = 0


class Read(NamedTuple):
    """A READ: the run of its scales, and of each head those of its dense and sparse records."""

    scale: Run
    heads: tuple[tuple[Run, Run], ...]

    @property
    def words(self) -> tuple[int, int, int]:
        """Counts the words by KINDS."""
        dense, sparse = (sum(head[kind].words for head in self.heads) for kind in (0, 1))
        return dense, sparse, self.scale.words


def read_of(window: Window, kv: KvShape, tokens: int, outliers: float, heads: int) -> Read:
    """A READ of ``tokens`` tokens from a page's start on. ConfigError: a number out of range.

    outliers : share of the elements, 0..1; heads : of the READ, 1..kv.heads
    """
    if not 1 <= tokens <= 1 << 20:
        raise ConfigError(f"tokens must be 1..{1 << 20}, not {tokens}")
    if not 0 <= outliers <= 1:
        raise ConfigError(f"outliers must be 0..1, not {outliers!r}")
    if not 1 <= heads <= kv.heads:
        raise ConfigError(f"heads must be 1..{kv.heads}, not {heads}")
    sparse = tokens * (kv.head_blocks + outliers * kv.head_dim)
    head = (window.run(tokens * kv.dense_bytes), window.run(sparse))
    return Read(window.run(tokens * SCALE_BYTES), (head,) * heads)


class Walk(NamedTuple):
    """The cycles and bursts that a train of READs takes.

    cycles : from the first request to the last word, both included
    status : from the first request to the last status
    words : by KINDS; bursts : of all kinds
    """

    cycles: int
    status: int
    words: tuple[int, int, int]
    bursts: int


class Burst(NamedTuple):
    """A burst of a train of READs: words of one page.

    at : cycle of its request; kind : by KINDS; run, page : numbers of the run of this kind, and of
    the page along its chain; position : of the first word in the page
    """

    at: int
    kind: int
    run: int
    page: int
    position: int
    words: int


class _Turns:
    """Round robin: offers by client, each from a cycle on. The first one seen stays chosen."""

    def __init__(self, clients: int):
        self.offers: list[int | None] = [None] * clients
        self.held, self.last = clients - 1, -1

    def first(self) -> int | None:
        """Cycle of the next choice."""
        waiting = [cycle for cycle in self.offers if cycle is not None]
        return max(min(waiting), self.last + 1) if waiting else None

    def take(self, at: int, free: int) -> tuple[int, int]:
        """The client chosen in cycle ``at``, and the cycle of its transfer, ``free`` or later."""
        count = len(self.offers)
        for step in range(1, count + 1):
            client = (self.held + step) % count
            offer = self.offers[client]
            if offer is not None and offer <= at:
                break
        self.held, self.last = client, max(at, free)
        self.offers[client] = None
        return client, self.last


_ASKED = -1  # the number of the next page is requested


class _Channel:
    """Cuts the runs of one kind into bursts."""

    def __init__(self, window: Window, depth: int):
        self.depth, self.delay = depth, 2 if depth > _RAM_FROM else 1
        self.page_words, self.boundary = window.page_words, window.boundary_words
        self.most = min(window.burst_beats, self.boundary, depth)
        self.runs: deque[tuple[int, Run, int | None]] = deque()  # from which cycle on; READ it ends
        self.ready = 0  # cycle from which the next run is taken
        self.left = self.position = self.words = 0
        self.ends: int | None = None  # the READ that the run ends
        self.run, self.page = -1, 0  # their numbers, for a log
        self.is_end = self.is_page_end = False
        self.paging: int | None = None  # waits since then for the next page
        self.follower: int | None = None  # cycle from which the next page is known
        # Words requested, and those whose room is known to be free again.
        self.asked = self.freed = 0
        self.takes: deque[tuple[int, int]] = deque()  # first cycle and words, of the other bursts

    def size(self) -> bool:
        """Decide on the next burst; whether the number of the next page is needed."""
        room = self.boundary - self.position % self.boundary
        most = min(room, self.most)
        rest = self.page_words - self.position
        self.words, self.is_end = min(self.left, most), self.left <= most
        self.is_page_end = most == rest
        return self.left > rest and self.follower is None

    def room(self, word_cycles: int) -> int:
        """Cycle from which the queue has room for the next burst."""
        need = self.asked + self.words - self.depth
        if need <= self.freed:
            return 0
        while self.freed + self.takes[0][1] < need:
            self.freed += self.takes.popleft()[1]
        return self.takes[0][0] + (need - self.freed - 1) * word_cycles + 1

    def forget(self, now: int, word_cycles: int) -> None:
        """Forgets bursts whose words were all taken before ``now``: their cycles matter no more."""
        while self.takes and self.takes[0][0] + (self.takes[0][1] - 1) * word_cycles < now:
            self.freed += self.takes.popleft()[1]


class _Lookup:
    """Finds the runs of one kind, head by head."""

    def __init__(self) -> None:
        self.reads: deque[tuple[int, int]] = deque()  # from which cycle on, number of the READ
        self.at = 0  # cycle from which it may look up
        self.head = 0
        self.give: int | None = None  # cycle from which a run found waits for a place
        self.given = 0
        self.pops: list[int] = []  # cycles in which the channel took the runs


class _Reader:
    """All parts of a train of READs."""

    def __init__(self, window: Window, reads: Sequence[Read], skips: bool):
        self.window, self.reads, self.skips = window, reads, skips
        self.channels = [_Channel(window, depth) for depth in window.depths]
        self.lookups = [_Lookup(), _Lookup()]
        self.table = _Turns(1 + len(self.lookups) + len(KINDS))
        self.port = _Turns(len(KINDS))
        self.table_free = self.issued = self.bus_free = 0
        self.flights: deque[int] = deque([-1] * window.outstanding)  # last words of bursts
        self.front, self.front_head, self.front_at = 0, -1, 0  # the READ, its head or -1: scales
        self.dispatched = list(range(1, 1 + min(window.reads, len(reads))))
        self.over = [[0, 0] for _ in reads]  # parts of a READ that are done, the last one's cycle
        self.statuses: list[int] = []
        self.end = self.bursts = self.skipped = 0
        self.words = [0, 0, 0]
        self.seen: dict[Any, tuple[int, list[int], int]] = {}
        self.log: list[Burst] | None = None

    def run(self) -> Walk:
        self._start_front()
        table, port = self.table, self.port
        while True:
            at, burst = table.first(), port.first()
            if at is not None and (burst is None or at <= burst):
                self._answer(*table.take(at, self.table_free))
            elif burst is not None:
                self._burst(*port.take(burst, self.issued))
            else:
                break
        return Walk(
            self.end + 1 + self.skipped,
            self.statuses[-1] + 1 + self.skipped,
            (self.words[0], self.words[1], self.words[2]),
            self.bursts,
        )

    # The page table and those who use it.

    def _answer(self, client: int, at: int) -> None:
        self.table_free = at + (_LOOK if client < 3 else _NEXT)
        seen = self.table_free + 1  # the cycle after the answer
        if client == 0:
            self.seen.clear()
            self._front(seen)
        elif client < 3:
            self.seen.clear()
            self.lookups[client - 1].give = seen
            self._give(client - 1)
        else:
            channel = self.channels[client - 3]
            channel.follower = seen
            if channel.paging is not None:
                self._turn_page(client - 3)

    def _start_front(self) -> None:
        if self.front < len(self.dispatched):
            start = max(self.front_at, self.dispatched[self.front] + 1)
            self.table.offers[0] = start + 1

    def _front(self, at: int) -> None:
        """A look-up of the front is answered: the scales' or a head's."""
        number, read = self.front, self.reads[self.front]
        if self.front_head < 0:
            self.channels[_SCALE].runs.append((at + 1, read.scale, number))
            self._take(_SCALE)
            for kind, lookup in enumerate(self.lookups):
                lookup.reads.append((at + 1, number))
                if len(lookup.reads) == 1 and lookup.give is None:
                    self._look(kind)
        self.front_head += 1
        if self.front_head < len(read.heads):
            self.table.offers[0] = at + 1
            return
        self.front, self.front_head, self.front_at = number + 1, -1, at + 1
        self._done(number, at + 1)
        self._start_front()

    def _look(self, kind: int) -> None:
        lookup = self.lookups[kind]
        if lookup.reads:
            self.table.offers[1 + kind] = max(lookup.at, lookup.reads[0][0])

    def _give(self, kind: int) -> None:
        """Give a run to the channel, which takes it in its turn."""
        lookup = self.lookups[kind]
        if lookup.give is None:
            return
        place = lookup.given - _AHEAD
        if place >= len(lookup.pops):
            return
        at = max(lookup.give, lookup.pops[place] + 1) if place >= 0 else lookup.give
        number = lookup.reads[0][1]
        heads = self.reads[number].heads
        is_final = lookup.head + 1 == len(heads)
        run = heads[lookup.head][kind]
        lookup.give, lookup.given, lookup.at = None, lookup.given + 1, at + 1
        lookup.head = 0 if is_final else lookup.head + 1
        if is_final:
            lookup.reads.popleft()
        self.channels[kind].runs.append((at + 1, run, number if is_final else None))
        self._look(kind)
        self._take(kind)

    # Channels.

    def _take(self, kind: int) -> None:
        """The channel's next run, if it has none at work."""
        channel = self.channels[kind]
        if channel.left or not channel.runs:
            return
        self.seen.clear()
        visible, run, channel.ends = channel.runs.popleft()
        at = max(channel.ready, visible)
        channel.left, channel.position = run
        channel.run, channel.page = channel.run + 1, 0
        self.words[kind] += run.words
        self._size(kind, at + 1)
        if kind < 2:
            self.lookups[kind].pops.append(at)
            self._give(kind)

    def _size(self, kind: int, at: int) -> None:
        channel = self.channels[kind]
        if channel.size():
            channel.follower = _ASKED
            self.table.offers[3 + kind] = at + 1
        self.port.offers[kind] = max(at + 1, channel.room(self.window.word_cycles))

    def _turn_page(self, kind: int) -> None:
        channel = self.channels[kind]
        assert channel.paging is not None
        assert channel.follower is not None
        at = max(channel.paging, channel.follower)
        channel.paging = channel.follower = None
        channel.position, channel.page = 0, channel.page + 1
        self._size(kind, at + 1)

    def _burst(self, kind: int, at: int) -> None:
        """The port takes a burst in cycle ``at``; the cycles of its words follow."""
        channel, each = self.channels[kind], self.window.word_cycles
        words = channel.words
        self.issued = max(at + 1, self.flights.popleft() + 1)
        request = self.issued + _PORT - 1
        if self.log is not None:
            place = channel.run, channel.page, channel.position
            self.log.append(Burst(request, kind, *place, words))
        first = max(request + self.window.latency, self.bus_free)
        last = first + (words - 1) * each
        self.bus_free = last + each
        self.flights.append(last)
        self.bursts += 1
        channel.asked += words
        channel.takes.append((first + channel.delay, words))
        channel.left -= words
        channel.position += words
        self.end = max(self.end, last + channel.delay)
        if channel.is_end:
            channel.ready = at + 1
            if channel.ends is not None:
                self._done(channel.ends, last + channel.delay + 1)
            self._take(kind)
        elif channel.is_page_end:
            channel.paging = at + 1
            if channel.follower != _ASKED:
                self._turn_page(kind)
            if self.skips:
                self._skip(at)
        else:
            self._size(kind, at + 1)

    def _done(self, number: int, at: int) -> None:
        """A part of a READ is done; with the last of four its status is given."""
        over = self.over[number]
        over[0], over[1] = over[0] + 1, max(over[1], at)
        while len(self.statuses) < len(self.reads) and self.over[len(self.statuses)][0] == 4:
            before = self.statuses[-1] + 1 if self.statuses else 0
            self.statuses.append(max(before, self.over[len(self.statuses)][1]))
            if len(self.dispatched) < len(self.reads):
                is_waited_for = self.front == len(self.dispatched)
                next_one = max(self.dispatched[-1] + 1, self.statuses[-1] + 1)
                self.dispatched.append(next_one)
                if is_waited_for:
                    self._start_front()

    # Whole periods.

    def _skip(self, now: int) -> None:
        """Leave out whole periods, if the state of all parts is one that was seen before.

        Times are kept, and what is left of each run shrinks. So all that follows is the same, but
        ``skipped`` cycles later.
        """
        waits = [lookup.give for lookup in self.lookups if lookup.give is not None]
        is_quiet = all(offer is None for offer in self.table.offers[:3])
        if not is_quiet or max([self.front_at, *waits]) > now:
            self.seen.clear()
            return
        key = tuple(self._state(now))
        lefts = [channel.left for channel in self.channels]
        if key not in self.seen:
            self.seen[key] = now, lefts, self.bursts
            return
        before, old, bursts = self.seen[key]
        moved = [then - left for then, left in zip(old, lefts, strict=True)]
        spare = [left - channel.page_words - 1 for left, channel in zip(
            lefts, self.channels, strict=True)]  # fmt: skip
        periods = min(room // each for room, each in zip(spare, moved, strict=True) if each)
        if periods < 1:
            return
        for channel, each in zip(self.channels, moved, strict=True):
            channel.left -= periods * each
        self.skipped += periods * (now - before)
        self.bursts += periods * (self.bursts - bursts)
        self.seen.clear()

    def _state(self, now: int) -> Iterator[Any]:
        """Yields what decides on the future, relative to ``now``."""
        for kind, channel in enumerate(self.channels):
            channel.forget(now, self.window.word_cycles)
            burst, walks = self.port.offers[kind], self.table.offers[3 + kind]
            follower = channel.follower
            yield (
                channel.position,
                min(channel.left, channel.page_words + 1),
                channel.words,
                None if burst is None else burst - now,
                None if walks is None else walks - now,
                None if channel.paging is None else channel.paging - now,
                follower if follower is None or follower == _ASKED else max(0, follower - now),
                max(0, channel.ready - now),
                channel.asked - channel.freed,
                tuple((first - now, words) for first, words in channel.takes),
            )
        yield self.port.held, max(-1, self.port.last - now)
        yield self.table.held, max(-1, self.table.last - now), max(0, self.table_free - now)
        yield max(0, self.issued - now), max(0, self.bus_free - now)
        yield tuple(max(-1, last - now) for last in self.flights)


def word_interval(window: Window, kind: str = "dense") -> Fraction:
    """Cycles per word of a long run of one kind alone, in closed form.

    The slowest of four loops counts: the memory's words, the bursts in flight, the queue, and the
    channel. A burst has its room in the queue until its words are taken. The channel turns a page.
    ConfigError: a queue or a page does not hold whole bursts, or ``kind`` is none of KINDS.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    channel = _Channel(window, window.depths[KINDS.index(kind)])
    burst, page = channel.most, window.page_words
    for name, size in ((f"{kind}_beats", channel.depth), ("page words", page)):
        if size % burst:
            raise ConfigError(f"{name} must be a multiple of {burst} words of a burst, not {size}")
    trip = window.latency + (burst - 1) * window.word_cycles
    return max(
        Fraction(window.word_cycles),
        Fraction(trip + _PORT, burst * window.outstanding),
        Fraction(trip + _PORT + channel.delay + 1, channel.depth),
        Fraction(max(2 * page // burst, _NEXT + 2) + 1, page),
    )


def walk(window: Window, reads: Sequence[Read], *, skips: bool = True) -> Walk:
    """A train of READs, one request per cycle, whose words are taken at once.

    skips : leave out whole periods, which gives the same cycles
    """
    if not reads or not all(read.heads for read in reads):
        raise ConfigError("reads must be READs with heads, 1 or more")
    return _Reader(window, reads, skips).run()


def bursts_of(window: Window, reads: Sequence[Read]) -> list[Burst]:
    """The bursts of ``walk``, in the order of their requests."""
    if not reads or not all(read.heads for read in reads):
        raise ConfigError("reads must be READs with heads, 1 or more")
    reader = _Reader(window, reads, skips=False)
    reader.log = []
    reader.run()
    return reader.log


_EVENTS = 1500  # of a walk, about: a longer train is a line
_PERIOD = 32  # bursts of a run, about, after which whole periods are left out
_FEWEST = 6  # READs or heads of a walk


def _events(window: Window, read: Read) -> int:
    """Estimates the bursts and look-ups of a head that a walk goes through."""
    bursts = (min(-(-run.words // window.burst_beats), _PERIOD) for run in read.heads[0])
    return sum(bursts) + 4


@functools.lru_cache(1 << 12)
def train_cycles(window: Window, read: Read, count: int) -> float:
    """Cycles of ``count`` READs that are alike: those of the walk, or of a long train a line.

    The line goes through two walks of fewer READs, or of fewer heads where a READ has many. Each
    further READ or head adds the same. ``tests/sim/test_requests.py`` compares it with the walk.
    ConfigError: ``count`` is out of range, or the heads differ.
    """
    if not 1 <= count <= 1 << 20:
        raise ConfigError(f"count must be 1..{1 << 20}, not {count}")
    if len(set(read.heads)) != 1:
        raise ConfigError("read must have equal heads, 1 or more")
    heads, events = len(read.heads), _events(window, read)
    kept = max(_FEWEST, _EVENTS // events // count)
    if kept < heads:
        # The scales are read once, so both walks have all of them.
        half = kept // 2
        a, b = (
            train_cycles(window, Read(read.scale, read.heads[:each]), count)
            for each in (half, kept)
        )
        return a + (heads - half) * (b - a) / (kept - half)
    kept = max(_FEWEST, _EVENTS // events // heads)
    if count <= kept:
        return float(walk(window, (read,) * count).cycles)
    half = kept // 2
    a, b = (float(walk(window, (read,) * each).cycles) for each in (half, kept))
    return a + (count - half) * (b - a) / (kept - half)


def record_sizes(kv: KvShape, outliers: float) -> tuple[int, ...]:
    """Bytes of the records of a token's vector, in order of slots; sparse ones of mean size."""
    sparse = round(kv.head_blocks + outliers * kv.head_dim)
    return (*(kv.dense_bytes, sparse) * kv.heads, SCALE_BYTES)


class _Writer:
    """APPENDs one after the other: a transaction of the page table, and the writes."""

    def __init__(self, window: Window):
        self.window = window
        self.loaded: deque[int] = deque([-1, -1])  # cycles in which the port took its commands
        self.job_end = 0  # cycle of the last beat of the port's job
        self.bus_free = 0
        self.answers: deque[int] = deque([-1] * _WRITES)  # of the bursts in flight
        self.verdicts: deque[int] = deque([-1] * _VERDICTS)  # cycles in which words were gone

    def write(self, offset: int, amount: int, at: int) -> tuple[int, int, int]:
        """The port's command of ``amount`` bytes, offered from cycle ``at`` on.

        Cycles in which it is taken, of its last beat, and of its last answer.
        """
        window, size = self.window, self.window.word_bytes
        taken = max(at, self.loaded.popleft() + 1)
        loaded = max(taken + 1, self.job_end)
        self.loaded.append(loaded)
        position, left = offset // size, -(-(offset % size + amount) // size)
        step = loaded
        while left:
            boundary = window.boundary_words
            words = min(left, window.burst_beats, boundary - position % boundary)
            step = max(step + 1, self.answers.popleft() + 1, self.bus_free)
            step += (words - 1) * window.word_cycles
            self.bus_free = step + window.word_cycles
            self.answers.append(step + 1 + window.latency)
            position, left = position + words, left - words
        self.job_end = step
        return taken, step, self.answers[-1]


def append_cycles(window: Window, sizes: Sequence[int], count: int, first_token: int = 0) -> int:
    """Cycles of a train of APPENDs from the first request to the last status.

    sizes : bytes of the records, in order of slots; first_token : tokens that are there before
    ConfigError: a number out of range.
    """
    if not 1 <= len(sizes) <= 511 or not all(1 <= 2 * each <= window.page_bytes for each in sizes):
        raise ConfigError(
            f"sizes must be 1..511 records of at most {window.page_bytes // 2} bytes, "
            f"not {tuple(sizes)[:4]}"
        )
    if not 1 <= count <= 1 << 20:
        raise ConfigError(f"count must be 1..{1 << 20}, not {count}")
    if not 0 <= first_token <= 1 << 20:
        raise ConfigError(f"first_token must be 0..{1 << 20}, not {first_token}")
    writer, page = _Writer(window), window.page_bytes
    used = [first_token * each for each in sizes]
    begin = page_table_cycles("BEGIN", 0)
    extend = page_table_cycles("EXTEND", 0)
    commit = page_table_cycles("COMMIT", len(sizes))
    ends: list[int] = []
    for n in range(count):
        dispatched = n + 1 if n < window.appends else ends[n - window.appends] + 1
        start = max(dispatched + 1, ends[-1] + 1) if ends else dispatched + 1
        at = start + 1 + begin + 1  # the first record's size is taken
        answered = last = 0
        for slot, each in enumerate(sizes):
            offset = used[slot] % page
            # A record that ends with its page leaves it full: the next one starts a new page.
            parts = [min(each, page - offset)]
            parts += [each - parts[0]] if parts[0] < each else []
            offer = max(at + 1 + extend + 1, writer.verdicts.popleft() + 1)
            for part in parts:
                taken, last, answered = writer.write(offset, part, offer)
                offset, offer = 0, taken + 1
            writer.verdicts.append(last)
            used[slot] += each
            at = offer
        settled = max(at, answered + 2)
        ends.append(settled + 1 + commit + 1)
    return ends[-1] + 1
