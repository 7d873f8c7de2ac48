"""The times at which a program's commands run: in-order dispatcher, six units, weight ports.

| event | not before |
|---|---|
| command i reaches the dispatcher | (i + 1) * Timings.command |
| it goes to its unit's queue | the commands before it went, and the queue has room |
| it starts | its unit is idle, and the commands that it waits for have ended |
| a MATMUL requests its weights | it is at the head of its queue, and the ports are free |
| it comes to the head of its queue | the lanes have the last beat of the MATMUL before it |
| a QUANTIZE begins its first pass | at most one pass of the QUANTIZE before it is left |
| it leans on a command of another unit | that one's results are certain, and it leans on none |
| it ends | the command that it leans on has ended, and the rows that it reads have come |
| READ ends | the host has read all but ``Timings.readback`` words |
| the first group's beats go to the lanes | as its words come, if they are not held already |
| a word of its weights comes | those before it have come, and the buffer has a place for its beat |

Each bank of the vector memory gives a row per cycle. A command of the functional unit reads longer
by the rows that other units read meanwhile, beyond what the memory could still give. An APPEND
takes turns with a reader that begins at about the same time.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

from golden.kllm.bounds import Waiting, is_certain, leans_on, waits
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    ROW_ELEMENTS,
    MatmulMode,
    Opcode,
    Unit,
    row_count,
)
from golden.kllm.timing import dispatcher
from sim.kllm.units import CommandCycles, read_words, rows_loaded, slot_words


@dataclasses.dataclass(frozen=True)
class Placed:
    """A command from ``begin`` to ``end``.

    cause : number of the command that let it begin; None: it came from the host just then
    since : when that was: the end of ``cause``, or its begin, which made room in a queue
    bound : cycles that golden.kllm.bounds gives
    words : of a port, that a MATMUL reads; address : of its weights, or of what a LOAD reads
    rows : of a LOAD or LOAD_AT, read of the data memory
    certain : when commands of another unit may lean on it, and begin before its end
    group : cycles from its rows of a group to those of the next; 0: they come one by one
    compute : cycles of its lanes
    reads : rows of the vector memory per cycle
    until : when the functional unit, or the first token of an APPEND, has read its rows
    spare : rows that the memory could still give until then
    taken : when the next command of its unit is looked at
    """

    opcode: Opcode
    unit: Unit
    begin: float
    end: float
    cause: int | None
    since: float
    bound: int
    words: int = 0
    address: int = 0
    compute: float = 0.0
    reads: float = 0.0
    taken: float = 0.0
    rows: int = 0
    until: float = 0.0
    spare: float = 0.0
    certain: float = math.inf
    group: float = 0.0

    def taken_from(self, begin: float, until: float) -> float:
        """Rows that it reads between two cycles."""
        return self.reads * max(0.0, min(until, self.end) - max(begin, self.begin))

    def read_from(self, begin: float, until: float) -> float:
        """The same of a command that has read all rows by ``Placed.until``, where that is known."""
        if not self.until:
            return self.taken_from(begin, until)
        rows = self.reads * (self.end - self.begin)
        share = max(0.0, min(until, self.until) - max(begin, self.begin))
        return rows * share / max(1.0, self.until - self.begin)


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The commands of a part, in order."""

    placed: tuple[Placed, ...]

    @functools.cached_property
    def cycles(self) -> float:
        """The cycles from the start of the part to its last end."""
        return max((each.end for each in self.placed), default=0.0)

    @property
    def words(self) -> int:
        """Sums the words of a port."""
        return sum(each.words for each in self.placed)

    def path(self) -> list[tuple[int | None, float]]:
        """The commands that decide ``cycles``, in order, and the cycles that each adds.

        None is the host, which sends the first of them. The cycles add up to ``cycles``.
        """
        if not self.placed:
            return []
        number: int | None = max(range(len(self.placed)), key=lambda n: self.placed[n].end)
        found: list[tuple[int | None, float]] = []
        until = self.cycles
        while number is not None:
            each = self.placed[number]
            found.append((number, until - each.since))
            until, number = each.since, each.cause
        return [(None, until), *reversed(found)]


def _lost(
    readers: Sequence[Placed], begin: float, until: float, spare: float, banks: int
) -> tuple[float, float]:
    """Cycles that other readers take from one that reads in ``begin..until``, and ``Placed.spare``.

    It reads longer for them, and so meets more of them. 16 turns settle that.
    """
    longer = others = 0.0
    for _ in range(16):
        others = sum(each.taken_from(begin, until + longer) for each in readers)
        longer = max(0.0, (others - spare) / banks)
    return longer, max(0.0, spare + longer * banks - others)


class _Reading:
    """The readers of the vector memory while commands of the functional unit read it.

    A reader that is placed later makes them longer, and so moves those that follow them. A command
    of another unit keeps its place, and so do those that it waits for.
    """

    def __init__(self, placed: list[Placed], banks: int = 1):
        self._placed, self._banks = placed, banks
        self._append: int | None = None  # the latest, which may still move
        self._functions: list[int] = []  # of the functional unit, which may still move
        self._others: list[int] = []  # readers of other units, the latest last

    def read(self, begin: float, rows: int, pace: float) -> tuple[float, float]:
        """``Placed.until`` and ``spare`` of ``rows`` that take ``pace`` cycles if alone."""
        until = begin + max(pace, rows / self._banks)
        spare = (until - begin) * self._banks - rows
        others = [self._placed[n] for n in self._others[-8:]]
        longer, spare = _lost(others, begin, until, spare, self._banks)
        return until + longer, spare

    def note(self, number: int, after: Sequence[int]) -> None:
        """A command has its place."""
        each = self._placed[number]
        if self._append in after:
            self._append = None  # it keeps its end
        if each.opcode == Opcode.APPEND:
            self._append = number
        elif each.unit in (Unit.FUNCTION, Unit.MATMUL):
            self._take_turns(each)
        if each.unit == Unit.FUNCTION:
            self._functions.append(number)
            return
        kept = max((n for n in self._functions if n in after), default=-1)
        self._functions = [n for n in self._functions if n > kept]
        if each.reads:
            self._others.append(number)
            self._move(each)

    def lean(self, number: int, on: int, rows: int) -> None:
        """A command leans on ``on`` of the functional unit, and reads ``rows`` before that ends."""
        this, other = self._placed[number], self._placed[on]
        reads = rows / (other.end - this.begin)
        self._move(dataclasses.replace(this, end=other.end, reads=reads))

    def _take_turns(self, reader: Placed) -> None:
        """The latest APPEND reads its rows later by those of ``reader``, a row for a row."""
        if self._append is None:
            return
        own = self._placed[self._append]
        rows = own.until - own.begin
        met = min(rows, reader.read_from(own.begin, own.until + rows)) / self._banks
        self._placed[self._append] = dataclasses.replace(
            own, end=own.end + met, until=own.until + met
        )

    def _move(self, reader: Placed) -> None:
        """Functions take longer for ``reader``, or begin later as the one before ends later."""
        late, before, ended = 0.0, None, 0.0
        for n in self._functions:
            own = self._placed[n]
            if own.cause != before:
                late = max(0.0, late - (own.begin - ended))
            begin, until = own.begin + late, own.until + late
            lost, spare = _lost([reader], begin, until, own.spare, self._banks)
            moved = dataclasses.replace(
                own, begin=begin, end=own.end + late + lost, until=until + lost, spare=spare
            )
            if late:
                moved = dataclasses.replace(moved, cause=before, since=ended + late)
            self._placed[n] = moved
            late, before, ended = late + lost, n, own.end


def _next_pass(
    commands: Sequence[Waiting],
    number: int,
    placed: Sequence[Placed],
    end: float,
    cycles: CommandCycles,
) -> int:
    """The QUANTIZE whose first pass goes with the second one of QUANTIZE ``number``; 0: none.

    It is there in time, and all but QUANTIZE ``number`` that it waits for has ended.
    """
    this = commands[number]
    if not cycles.two_passes(this.operands):
        return 0
    own = (n for n in range(number + 1, len(commands)) if _unit(commands[n]) == Unit.QUANTIZE)
    later = next(own, 0)
    if not later or commands[later].opcode != Opcode.QUANTIZE:
        return 0
    begin = end - row_count(this.operands["length"])
    others = [n for n in commands[later].after if n != number]
    in_time = (later + 1) * cycles.timings.command <= begin
    known = all(n < number and placed[n].end <= begin for n in others)
    return later if in_time and known else 0


def _pass_ahead(
    this: Waiting, codebook: int, placed: Sequence[Placed], cycles: CommandCycles
) -> float:
    """Cycles of a QUANTIZE's first pass that go with the codebook before it, which it waits for."""
    if not cycles.two_passes(this.operands):
        return 0.0
    others = max((placed[n].end for n in this.after if n != codebook), default=0.0)
    waited = placed[codebook].end - max(others, placed[codebook].begin)
    return min(float(row_count(this.operands["length"])), max(0.0, waited))


def _unit(command: Waiting) -> Unit:
    return COMMANDS[command.opcode].unit


# Of commands that lean on another one (decision 0329).
_COME = 3  # cycles from the last word of a MATMUL's weights until it is certain
_RESULTS = 12  # cycles from the begin of a command on rows until its first row is certain
_TOLD = 2  # cycles from a command's last rows to its end


def _certain(
    command: Waiting, begin: float, served: float, cycles: CommandCycles
) -> tuple[float, float]:
    """``Placed.certain`` and ``Placed.group``. A command of several tokens is not certain."""
    o = command.operands
    if not is_certain(command):
        return math.inf, 0.0
    if command.opcode == Opcode.MATMUL:
        return max(begin + cycles.first_rows(o), served + _COME), cycles.group_cycles(o)
    return begin + _RESULTS, 0.0


def _leans(
    commands: Sequence[Waiting], number: int, placed: Sequence[Placed], cycles: CommandCycles,
    offered: float,
) -> tuple[int, float] | None:
    """(the command that this one leans on, when it begins); None: it leans on none."""
    this, t = commands[number], cycles.timings
    unit = _unit(this)
    on, begin = leans_on(commands, number), offered
    if on is None:
        return None
    for n in this.after:
        if n != on:
            begin = max(begin, placed[n].end + (t.turn if placed[n].unit == unit else t.status))
    begin = max(begin, placed[on].certain + t.status)
    return (on, begin) if begin < placed[on].end else None


def _rows_told(
    commands: Sequence[Waiting], number: int, on: int, placed: Sequence[Placed],
    cycles: CommandCycles,
) -> float:
    """When a command ends, by the last row that it reads of the one that it leans on."""
    this, other, machine = commands[number], commands[on], cycles.machine
    first, count = COMMANDS[other.opcode].access(other.operands, machine).writes("rows")[0]
    reads = COMMANDS[this.opcode].access(this.operands, machine).reads("rows")
    last = max(
        (min(row + rows, first + count) for row, rows in reads if row < first + count),
        default=first,
    )
    if last <= first:
        return 0.0
    told = placed[on].end - _TOLD
    if not placed[on].group:
        return told + cycles.after_rows(this.opcode, this.operands, 1)
    rows = machine.group_outputs // ROW_ELEMENTS
    groups = -(-count // rows)
    mine = (last - first - 1) // rows
    told -= (groups - 1 - mine) * placed[on].group
    in_group = last - first - mine * rows
    return told + cycles.after_rows(this.opcode, this.operands, in_group)


def timeline(words: Sequence[int], cycles: CommandCycles, first: dict[Unit, int]) -> Timeline:
    """One part of a program. first: commands of each unit before it; the part adds its own."""
    machine, t = cycles.machine, cycles.timings
    units = cycles.units
    queue = units.queue
    step = dispatcher(COMMAND_WORDS)
    numbers: dict[Unit, list[int]] = {unit: [] for unit in Unit}
    placed: list[Placed] = []
    slots: dict[int, int] = {}  # words that READ_SLOT gives of each
    outliers: dict[int, int] = {}  # of the token in each slot
    sent, served, since = 0.0, 0.0, 0.0
    host = 0.0  # when the host has read all words so far
    cause: int | None = None  # what held the dispatcher last, and since when
    reading = _Reading(placed, units.banks)
    commands = waits(words, first)
    early: dict[int, int] = {}  # rows of its first pass that a QUANTIZE reads before its begin
    for number, command in enumerate(commands):
        opcode, o = command.opcode, dict(command.operands)
        unit = COMMANDS[opcode].unit
        mine = numbers[unit]
        written = float((number + 1) * t.command)
        if written >= sent + float(step.interval):
            sent, since, cause = written, written, None
        else:
            sent += float(step.interval)
        if len(mine) >= queue and placed[mine[-queue]].begin > sent:
            cause = mine[-queue]  # its place is free once it starts
            sent = since = placed[cause].begin
        offered = max(sent + step.latency, placed[mine[-1]].taken if mine else 0.0)
        begin, by, at = sent + step.latency, cause, since
        for before in command.after:
            hand_over = t.turn if placed[before].unit == unit else t.status
            if placed[before].end + hand_over > begin:
                by, at = before, placed[before].end
                begin = at + hand_over
        if opcode in (Opcode.QUANTIZE, Opcode.QUANTIZE_INTEGER):
            for slot in range(o["slot"], o["slot"] + max(o["tokens"], 1)):
                slots[slot] = slot_words(o)
                outliers[slot] = o.get("k_max", 0) + o.get("k_min", 0)
        elif opcode == Opcode.READ_SLOT:
            o["words"] = slots.get(o["slot"], 0)
        elif opcode == Opcode.MATMUL and o["mode"] == MatmulMode.KMEANS:
            o["outliers"] = outliers.get(o["slot"], 0)
        taken = cycles.of(opcode, o)
        if unit == Unit.QUANTIZE and by is not None and placed[by].unit == unit:
            taken -= t.overlap
        leans = None
        if units.ahead:
            leans = _leans(commands, number, placed, cycles, sent + step.latency)
        on: int | None = None  # the command that it leans on
        if leans is not None and leans[1] < begin:
            on, begin = leans
            by, at = on, placed[on].certain
        if opcode == Opcode.QUANTIZE:
            taken -= early.get(number, 0)
            if by is not None and placed[by].opcode == Opcode.ACTIVATION_CODEBOOK:
                taken -= _pass_ahead(command, by, placed, cycles)
            later = _next_pass(commands, number, placed, begin + taken, cycles)
            if later:
                early[later] = row_count(commands[later].operands["length"])
                taken += early[later]
        end, port_words = begin + taken, 0
        if opcode == Opcode.MATMUL:
            port_words = machine.image_words(o["length"], o["outputs"])
            came = max(served, offered) + cycles.supply(o)
            served, end = cycles.product(o, port_words, came, begin)
        elif COMMANDS[opcode].unit == Unit.READ:
            # The last word finds room once the host has read all but ``readback`` words.
            given = read_words(opcode, o)
            waiting = max(0.0, host - begin) / t.poll
            end = max(end, begin + (waiting + given - t.readback) * t.poll)
            host = max(host, begin) + given * t.poll
        certain, group = math.inf, 0.0
        if units.ahead:
            if on is not None:
                end = max(end, placed[on].end + 1, _rows_told(commands, number, on, placed, cycles))
            certain, group = _certain(command, begin, served, cycles)
            if on is not None:
                certain = max(certain, placed[on].end + t.status)
        compute = taken if opcode == Opcode.MATMUL else 0
        looked = end - cycles.tail(o) if opcode == Opcode.MATMUL else begin
        rows, until, spare = cycles.row_reads(opcode, o), 0.0, 0.0
        rate = min(1.0, rows / (end - begin))
        if unit == Unit.FUNCTION:
            pace = cycles.read_pace(opcode, o)
            until, spare = reading.read(begin, rows, pace)
            end += until - begin - pace
        elif opcode == Opcode.APPEND:
            until = begin + rows / max(o["tokens"], 1)
        placed.append(
            Placed(
                opcode, unit, begin, end, by, at, cycles.bound(opcode, o), port_words,
                o.get("address", o.get("weights", 0)), compute, rate, looked,
                rows_loaded(opcode, o), until, spare, certain, group,
            )
        )  # fmt: skip
        if on is not None and unit == Unit.QUANTIZE:
            reading.lean(number, on, row_count(o["length"]))
            end = max(end, placed[on].end + 1, _rows_told(commands, number, on, placed, cycles))
            placed[number] = dataclasses.replace(placed[number], end=end)
        reading.note(number, command.after)
        mine.append(number)
    for unit, own in numbers.items():
        first[unit] += len(own)
    return Timeline(tuple(placed))
