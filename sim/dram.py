"""A bus of a DRAM, command by command: banks, rows, refresh. Pure Python.

``Memory.seconds`` divides bytes by a bandwidth, whose ``efficiency`` a file assumes. This module
says what share of the pins a stream of reads gets, and how long a read waits. ``sim/timings`` has
the timings of each standard. Times are whole picoseconds.

| part | what it does |
|---|---|
| queue | reads in order of arrival, ``queue`` at most; a read leaves with its command |
| read | of an open row, the earliest first, then the oldest; ``tccd`` after one of its group |
| activate | one row of a bank; ``trrd`` after another, five within ``tfaw`` never |
| precharge | a bank whose open row no read of the queue needs |
| refresh | of all banks each ``trefi``, or of one bank in turn; none is put off |

Writes, power-down, ranks and the command bus are left out. A read of an open row may pass older
ones without end, so streams are finite.

``python -m sim.memory --page`` writes the tables of docs/sim.md.
"""

import dataclasses
import json
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from golden.config import Config, ConfigError, bounded, power_of_two
from sim.constant import Constant
from sim.hardware import MEMORIES, constants_of, nearest

FOLDER = Path(__file__).parent / "timings"
PS = 1e12
REFRESH = ("all", "bank", "none")
QUEUE = 64  # reads that a controller chooses from
# Of a file, each with its unit: what it is.
FIELDS = {
    "buses": ("", "of a channel of sim/memories, each with its own banks"),
    "access": ("B", "of a burst"),
    "row": ("B", "of an open row"),
    "banks": ("", "of a bus"),
    "groups": ("", "of banks: reads of one are tccd apart"),
    "trcd": ("s", "from an activation to a read"),
    "trp": ("s", "from a precharge to an activation"),
    "tras": ("s", "from an activation to a precharge"),
    "trrd": ("s", "from an activation to another bank's"),
    "tfaw": ("s", "in which four activations fit"),
    "tccd": ("s", "from a read to the next one of its group"),
    "trtp": ("s", "from a read to a precharge"),
    "tcl": ("s", "from a read to its data"),
    "trfc": ("s", "of a refresh of all banks"),
    "trefi": ("s", "from a refresh to the next one"),
    "trfc_bank": ("s", "of a refresh of one bank; 0: the standard has none"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dram(Config):
    """One bus; times in picoseconds. ConfigError: a number out of range."""

    burst: int = bounded(1250, 1, 1 << 30, "ps of the data of a read")
    access: int = power_of_two(32, 8, 4096, "bytes of a read")
    row: int = power_of_two(1024, 64, 65536, "bytes of a row")
    banks: int = power_of_two(16, 1, 256)
    groups: int = power_of_two(4, 1, 64)
    trcd: int = bounded(14_000, 0, 1 << 30, "ps")
    trp: int = bounded(14_000, 0, 1 << 30, "ps")
    tras: int = bounded(34_000, 0, 1 << 30, "ps")
    trrd: int = bounded(4_000, 0, 1 << 30, "ps")
    tfaw: int = bounded(16_000, 0, 1 << 30, "ps")
    tccd: int = bounded(2_500, 0, 1 << 30, "ps")
    trtp: int = bounded(6_000, 0, 1 << 30, "ps")
    tcl: int = bounded(14_000, 0, 1 << 30, "ps")
    trfc: int = bounded(350_000, 0, 1 << 30, "ps")
    trefi: int = bounded(3_900_000, 1, 1 << 40, "ps")
    trfc_bank: int = bounded(160_000, 0, 1 << 30, "ps")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups > self.banks:
            self._refuse("groups", f"at most the {self.banks} banks")
        if self.access > self.row:
            self._refuse("access", f"at most the {self.row} bytes of a row")
        if self.trfc >= self.trefi:
            self._refuse("trfc", f"below the {self.trefi} ps of trefi")
        if self.trfc_bank >= self.trefi:
            self._refuse("trfc_bank", f"below the {self.trefi} ps of trefi")

    @property
    def trc(self) -> int:
        """Picoseconds from a row of a bank to the next one."""
        return self.tras + self.trp


def known() -> dict[str, Path]:
    """The standards whose timings are here."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.json"))}


def timings_of(kind: str) -> dict[str, Constant]:
    """The constants of a standard. ConfigError: it has none, or its file is odd."""
    paths = known()
    if kind not in paths:
        raise nearest("kind of memory", kind, paths)
    try:
        found = json.loads(paths[kind].read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{kind}.json: {error}") from None
    found.pop("about", None)
    units = {name: unit for name, (unit, _) in FIELDS.items()}
    return constants_of(f"timings of {kind}", found, units)


def dram_of(kind: str, bandwidth: float | None = None) -> Dram:
    """A bus of a channel of a standard. ConfigError: it has no timings.

    bandwidth : of the channel, in bytes per second; that of ``sim/memories`` if none
    """
    found = timings_of(kind)
    if bandwidth is None:
        stated = json.loads((MEMORIES / f"{kind}.json").read_text())["bandwidth"]
        bandwidth = Constant(**stated).base
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise ConfigError(f"bandwidth must be above 0 bytes per second, not {bandwidth!r}")
    access, buses = int(found["access"].base), int(found["buses"].base)
    times = {name: round(PS * each.base) for name, each in found.items() if FIELDS[name][0] == "s"}
    return Dram(
        burst=max(1, round(PS * access * buses / bandwidth)),
        access=access,
        **{name: int(found[name].base) for name in ("row", "banks", "groups")},
        **times,
    )


class Read(NamedTuple):
    """A read of one burst: its bank and row, and when it arrives."""

    bank: int
    row: int
    at: int = 0


class Command(NamedTuple):
    """A command as it was given: READ, ACT, PRE, REF of all banks, or REFB of one."""

    name: str
    at: int
    bank: int = -1
    row: int = -1


@dataclasses.dataclass(frozen=True)
class Served:
    """A stream that was read.

    share : of the pins' time; over whole periods of refresh if there are two refreshes of a bank
    waits : picoseconds of each read, from its arrival to the end of its data, in order of arrival
    """

    reads: int
    share: float
    end: int
    activations: int
    refreshes: int
    waits: tuple[int, ...]

    @property
    def hits(self) -> float:
        """Share of the reads whose row was open already."""
        return 1 - self.activations / self.reads

    @property
    def mean(self) -> float:
        """Mean wait in nanoseconds."""
        return sum(self.waits) / len(self.waits) / 1e3

    def percentile(self, share: float) -> float:
        """Wait in nanoseconds that a share of the reads does not exceed."""
        return sorted(self.waits)[math.ceil(share * len(self.waits)) - 1] / 1e3


@dataclasses.dataclass
class _Bank:
    row: int | None = None
    act: int = 0  # earliest activation
    read: int = 0  # earliest read of the open row
    pre: int = 0  # earliest precharge


class _Bus:
    """The state of a bus, and its commands in order of time."""

    def __init__(self, dram: Dram, reads: Sequence[Read], queue: int, refresh: str, log: bool):
        self.dram, self.reads, self.most = dram, reads, queue
        self.banks = [_Bank() for _ in range(dram.banks)]
        self.now = self.taken = 0  # taken: reads that have entered the queue
        self.queue: list[int] = []  # numbers of reads, the oldest first
        self.bus = 0  # earliest read by the data of the one before
        self.group = [0] * dram.groups  # earliest read by group
        self.acts: deque[int] = deque([-dram.tfaw] * 4)
        self.last_act = -dram.trrd
        self.in_turn, self.per_bank = 0, refresh == "bank"
        step = dram.trefi // dram.banks if self.per_bank else dram.trefi
        self.step, self.due = step, step if refresh != "none" else None
        self.log: list[Command] | None = [] if log else None
        self.ends = [0] * len(reads)
        self.first: int | None = None
        self.activations = self.refreshes = self.given = 0
        self.dues: list[tuple[int, int]] = []  # of refreshes, and the reads given before each

    def run(self) -> Served:
        while self.queue or self.taken < len(self.reads):
            self._fill()
            found = self._next()
            arrival = self._arrival()
            if self.due is not None and min(found[0], arrival) >= self.due:
                self._refresh(self.due)
            elif arrival < found[0] or not self.queue:
                self.now = arrival
            else:
                self._give(found)
        end = max(self.ends)
        return Served(
            len(self.reads), self._share(end), end, self.activations, self.refreshes,
            tuple(end - read.at for end, read in zip(self.ends, self.reads, strict=True)),
        )  # fmt: skip

    def _share(self, end: int) -> float:
        """The share of the pins: of whole periods of refresh, or of all reads."""
        turn = self.dram.banks if self.per_bank else 1
        periods = (len(self.dues) - 1) // turn * turn
        if periods > 0:
            (begin, before), (stop, after) = self.dues[0], self.dues[periods]
            return (after - before) * self.dram.burst / (stop - begin)
        assert self.first is not None
        return len(self.reads) * self.dram.burst / (end - self.first)

    def _arrival(self) -> int:
        """Says when the next read arrives for which the queue has room."""
        if self.taken == len(self.reads) or len(self.queue) == self.most:
            return 1 << 62
        return max(self.reads[self.taken].at, self.now)

    def _fill(self) -> None:
        while (
            self.taken < len(self.reads)
            and len(self.queue) < self.most
            and self.reads[self.taken].at <= self.now
        ):
            self.queue.append(self.taken)
            self.taken += 1

    def _next(self) -> tuple[int, str, int]:
        """Finds the earliest command that the queue needs: its time, name and read."""
        best = (1 << 62, "", -1)
        now, banks, reads, groups = self.now, self.banks, self.reads, self.dram.groups
        start = max(now, self.bus)
        hit: set[int] = set()
        oldest: dict[int, int] = {}
        for number in self.queue:
            bank, row, _ = reads[number]
            state = banks[bank]
            if state.row == row:
                hit.add(bank)
                at = max(start, state.read, self.group[bank % groups])
                if at < best[0]:
                    best = (at, "READ", number)
            elif bank not in oldest:
                oldest[bank] = number
        act = max(now, self.last_act + self.dram.trrd, self.acts[0] + self.dram.tfaw)
        for bank, number in oldest.items():
            state = banks[bank]
            if state.row is None:
                found = (max(act, state.act), "ACT", number)
            elif bank not in hit:
                found = (max(now, state.pre), "PRE", number)
            else:
                continue
            if found[0] < best[0]:
                best = found
        return best

    def _give(self, found: tuple[int, str, int]) -> None:
        at, name, number = found
        bank, row, _ = self.reads[number]
        state, dram = self.banks[bank], self.dram
        self.now = at
        self._note(name, at, bank, row)
        if name == "PRE":
            state.row, state.act = None, max(state.act, at + dram.trp)
        elif name == "ACT":
            state.row, state.read, state.pre = row, at + dram.trcd, at + dram.tras
            self.last_act = at
            self.acts.popleft()
            self.acts.append(at)
            self.activations += 1
        else:
            self.queue.remove(number)
            self.given += 1
            state.pre = max(state.pre, at + dram.trtp)
            self.bus = at + dram.burst
            self.group[bank % dram.groups] = at + max(dram.tccd, dram.burst)
            data = at + dram.tcl
            self.first = data if self.first is None else self.first
            self.ends[number] = data + dram.burst

    def _refresh(self, due: int) -> None:
        """Refreshes all banks, or the next one in turn, which are closed before."""
        self.dues.append((due, self.given))
        which = [self.in_turn] if self.per_bank else range(len(self.banks))
        chosen = [self.banks[bank] for bank in which]
        open_ones = [each for each in chosen if each.row is not None]
        closed = max([due, *(each.pre for each in open_ones)])
        start = max([closed, *(each.act for each in chosen if each.row is None)])
        for bank in which:
            if self.banks[bank].row is not None:
                self._note("PRE", closed, bank, -1)
                start = max(start, closed + self.dram.trp)
        lasts = self.dram.trfc_bank if self.per_bank else self.dram.trfc
        self._note("REFB" if self.per_bank else "REF", start, which[0] if self.per_bank else -1, -1)
        for each in chosen:
            each.row, each.act = None, start + lasts
        self.in_turn = (self.in_turn + 1) % len(self.banks)
        self.due = due + self.step
        self.refreshes += 1

    def _note(self, name: str, at: int, bank: int, row: int) -> None:
        if self.log is not None:
            self.log.append(Command(name, at, bank, row))


def _checked(
    dram: Dram, reads: Sequence[Read], queue: int, refresh: str, log: bool = False
) -> _Bus:
    if not reads:
        raise ConfigError("reads must be 1 or more, not 0")
    if not 1 <= queue <= 1024:
        raise ConfigError(f"queue must be 1..1024, not {queue}")
    if refresh not in REFRESH:
        raise ConfigError(f"refresh must be one of {', '.join(REFRESH)}, not {refresh!r}")
    if refresh == "bank" and not dram.trfc_bank:
        raise ConfigError("refresh must be all or none: trfc_bank is 0")
    for number, read in enumerate(reads):
        if not 0 <= read.bank < dram.banks:
            raise ConfigError(f"read {number}: bank must be 0..{dram.banks - 1}, not {read.bank}")
        if number and read.at < reads[number - 1].at:
            raise ConfigError(f"read {number}: must not arrive before read {number - 1}")
    return _Bus(dram, reads, queue, refresh, log)


def serve(dram: Dram, reads: Sequence[Read], *, queue: int = QUEUE, refresh: str = "all") -> Served:
    """Reads a stream in order of arrival. ConfigError: a bank, a time or a choice out of range."""
    return _checked(dram, reads, queue, refresh).run()


class _Loop(_Bus):
    """A bus whose reads a port requests, with some bursts in flight."""

    def __init__(self, dram: Dram, reads: Sequence[Read], together: int, flights: int, way: int):
        super().__init__(dram, reads, max(1, together * flights), "all", False)
        self.together, self.flights, self.way = together, flights, way

    def _asked(self) -> int:
        """Says when the next read is there: some time after a burst before it has ended."""
        first = (self.taken // self.together - self.flights) * self.together
        if first < 0:
            return 0
        ends = self.ends[first : first + self.together]
        return max(ends) + self.way if all(ends) else 1 << 62

    def _arrival(self) -> int:
        if self.taken == len(self.reads) or len(self.queue) == self.most:
            return 1 << 62
        return max(self._asked(), self.now)

    def _fill(self) -> None:
        while (
            self.taken < len(self.reads)
            and len(self.queue) < self.most
            and self._asked() <= self.now
        ):
            self.queue.append(self.taken)
            self.taken += 1


def in_flight(
    dram: Dram, reads: Sequence[Read], together: int, flights: int, latency: int
) -> float:
    """The share of the pins that a port with ``flights`` bursts of ``together`` reads gets.

    latency : picoseconds from a request to its data on an idle bus, at least the bus's own; what
    is above that is the way to the bus and back. All banks are refreshed at once.
    ConfigError: a number out of range.
    """
    for name, value in (("together", together), ("flights", flights)):
        if not 1 <= value <= 1024:
            raise ConfigError(f"{name} must be 1..1024, not {value}")
    _checked(dram, reads, 1, "all")
    way = latency - dram.trcd - dram.tcl
    if way < 0:
        raise ConfigError(f"latency must be {dram.trcd + dram.tcl} ps or more, not {latency}")
    return _Loop(dram, reads, together, flights, way).run().share


def commands(
    dram: Dram, reads: Sequence[Read], *, queue: int = QUEUE, refresh: str = "all"
) -> list[Command]:
    """The commands of ``serve``, in order of time."""
    bus = _checked(dram, reads, queue, refresh, log=True)
    bus.run()
    assert bus.log is not None
    return sorted(bus.log, key=lambda each: each.at)


# Streams of a bus.

ORDERS = ("groups", "columns")


def place(dram: Dram, address: int, order: str = "groups") -> tuple[int, int]:
    """Bank and row of a byte of the bus.

    order : what follows a burst: ``groups``, the next group of banks; ``columns``, the same row
    """
    if order not in ORDERS:
        raise ConfigError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    burst, columns = address // dram.access, dram.row // dram.access
    if order == "groups":
        rest, group = divmod(burst, dram.groups)
        row, inner = divmod(rest // columns, dram.banks // dram.groups)
        return inner * dram.groups + group, row
    row, bank = divmod(burst // columns, dram.banks)
    return bank, row


def reads_at(dram: Dram, addresses: Iterable[int], order: str = "groups") -> list[Read]:
    """Reads of bytes of the bus, all of them there from the start."""
    return [Read(*place(dram, address, order)) for address in addresses]


def sequential(dram: Dram, count: int, order: str = "groups") -> list[Read]:
    """The reads of consecutive bytes, as of weights."""
    return reads_at(dram, (number * dram.access for number in range(count)), order)


def scattered(
    dram: Dram, count: int, piece: int, seed: int = 0, order: str = "groups"
) -> list[Read]:
    """Reads of pieces of ``piece`` bytes at random places, as of pages that lie anywhere."""
    if piece % dram.access or piece < dram.access:
        raise ConfigError(f"piece must be a multiple of {dram.access} bytes, not {piece}")
    drawn, each = random.Random(seed), piece // dram.access
    pieces = 1 << 20  # of the bus

    def addresses() -> Iterator[int]:
        for _ in range(-(-count // each)):
            base = drawn.randrange(pieces) * piece
            yield from range(base, base + piece, dram.access)

    return reads_at(dram, addresses(), order)[:count]


def arriving(
    dram: Dram, reads: Sequence[Read], load: float, together: int, seed: int = 0
) -> list[Read]:
    """The same reads, ``together`` at a time after random gaps, at a share ``load`` of the pins."""
    if not 0 < load <= 1:
        raise ConfigError(f"load must be above 0 and at most 1, not {load!r}")
    if together < 1:
        raise ConfigError(f"together must be 1 or more, not {together}")
    drawn, at, made = random.Random(seed), 0.0, []
    for number, read in enumerate(reads):
        if number % together == 0:
            at += drawn.expovariate(load / (together * dram.burst))
        made.append(read._replace(at=round(at)))
    return made
