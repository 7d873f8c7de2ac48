"""Command words in, commands to the engines, statuses out."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, flag
from golden.kllm import timing
from golden.kllm.isa import (
    AFTER_BITS,
    COMMAND_WORDS,
    COMMANDS,
    FIRST_OPERAND_WORD,
    OPERANDS_MAX,
    SET,
    CommandStatus,
    Unit,
)
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import BITS, NUMBER, command_words, mask_of
from hdl.kllm.engine import command_layout, command_stream, release_layout, status_stream
from hdl.ports import In, Out, Payload
from hdl.stream.arbiter import arbiter
from hdl.stream.link import link
from hdl.stream.queue import queue

_STATUS_BITS = len(CommandStatus)
_EARLY = Unit.MATMUL  # its engine sees a command before the command's waits are fulfilled
# With ``ahead``: a unit, and the one whose certain command its own may count as complete.
_AHEAD = {Unit.FUNCTION: Unit.MATMUL, Unit.QUANTIZE: Unit.FUNCTION}

# A status as the host sees it: 32 bits.
report_layout = Payload(
    status=(13, "golden.kllm.isa.CommandStatus, 0: done", CommandStatus),
    unit=(3, "golden.kllm.isa.Unit", Unit),
    tag=(16, "tag of the command", BITS),
)
assert _STATUS_BITS == 13


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmDispatcherConfig(Config):
    """Units of the machine, and depth of the queues of the dispatcher."""

    units: int = bounded(int(Unit.CACHE), int(Unit.CACHE), len(Unit), "units, the first of Unit")
    queue: int = bounded(4, 3, 64, "commands waiting for each unit")
    running: int = bounded(2, 1, 8, "commands that an engine may have begun")
    counts: bool = flag(False, "ports that tell what was issued and what runs")
    ahead: bool = flag(False, "a command may begin while a certain one that it waits for runs")

    @property
    def queued_layout(self) -> data.StructLayout:
        """A command in its unit's queue."""
        return Payload(
            command=(command_layout, "opcode and operands"),
            after=(
                data.ArrayLayout(AFTER_BITS, self.units),
                "commands of each unit that must be complete",
                NUMBER,
            ),
            met=(self.units, "waits that were fulfilled when the command was issued",
                 mask_of("units")),
            tag=(16, "tag of the command", BITS),
            fault=(_STATUS_BITS, "status that the screen found, 0: none", CommandStatus),
        )  # fmt: skip


def _counts(units: int) -> dict:
    """Ports that tell what was issued, and what runs."""
    return {
        "issued": Out(
            data.ArrayLayout(AFTER_BITS, units),
            "Commands of each unit so far, modulo 2**16.",
            NUMBER,
        ),
        "partial": Out(1, "Some words of a command have come, and others have not."),
        "busy": Out(units, "Units at work.", mask_of("units")),
    }


class KllmDispatcher(Block):
    """Splits the stream of commands over the units and starts each when its waits are fulfilled.

    ``word`` carries commands of golden.kllm.isa, COMMAND_WORDS words each. A complete command goes
    to its unit's queue. At the head of the queue it waits until every unit u has completed the
    ``after[u]`` commands that it names (modulo 2**16, signed distance). Then it goes to its engine.
    The head of MATMUL goes to its engine at once, and ``release`` follows when its waits are over.
    ``report`` gives one word per command: tag, unit, status; in order per unit.

        command                                                     status
        its opcode is unknown, or of a unit beyond ``units``;       MALFORMED
        bits are set where zeros belong
        it waits for more commands than were issued before it       DEPENDENCY: it could wait for
                                                                    ever

    Both reach no engine. With a known opcode they take their turn in their unit and count as
    completed there. With an unknown one they are reported at once, as of unit 0, and count nowhere.

    A wait for commands that were complete when its own was issued is fulfilled for good. A wait for
    other commands is fulfilled within 32,768 completions after them; later it may be missed.

    ``abort_pulse`` (one cycle) drops the words of an incomplete command. It also drops all words
    that follow until nothing is queued or running and none is offered. Queued commands end with
    ABORTED. Commands that an engine has begun end by themselves. A command of MATMUL that still
    waits there is released as aborted, and its engine ends it. Counters of completed commands go
    on.

    With ``ahead`` a command of FUNCTION may lean on the eldest command of MATMUL, and one of
    QUANTIZE on that of FUNCTION. It begins when ``certain`` has that unit's bit, and all else that
    it waits for is complete. Only the eldest command of a unit leans, and nothing leans on one that
    leans. Its status waits until the other command is complete. So no command completes before one
    that it waits for (decision 0329).

    Throughput one command per COMMAND_WORDS + 2 cycles; latency 5 cycles from the last word to
    the engine.
    Golden: golden.kllm.engines.screen.

    A full queue stalls the words after it. This head-of-line blocking causes no deadlock, because a
    command only waits for commands before it. MALFORMED has priority over DEPENDENCY, and both over
    ABORTED. MALFORMED and DEPENDENCY do not wait for ``after``. Programs of golden.kllm.assembler
    keep a margin to the 32,768 completions. ``idle`` is high while no command is queued, running or
    being aborted: the words of an incomplete command do not count. With ``counts``, ``partial``
    tells of these, and ``issued`` of the commands before. ``busy`` has the bit of a unit while an
    engine has a command of it: from its offer on, until its status is taken. A command of MATMUL
    counts there from the offer of its release on. ``report`` does not depend on ``report.ready``;
    ``status_u.ready`` depends on it and on the other statuses. Decision 0265 says why the head of
    MATMUL goes to its engine at once.
    """

    tier = Tier.PART
    golden = "golden.kllm.engines:screen"
    default = KllmDispatcherConfig()
    configs: ClassVar = {
        "table1": KllmDispatcherConfig(),
        "smallest": KllmDispatcherConfig(queue=3, running=1),
        "cache": KllmDispatcherConfig(units=len(Unit), counts=True),
        "ahead": KllmDispatcherConfig(ahead=True),
    }

    def __init__(self, config: KllmDispatcherConfig):
        units = tuple(Unit)[: config.units]
        certain = In(len(units), "Of each unit's eldest command: others may lean on it.", BITS)
        super().__init__(
            config,
            {
                **({"certain": certain} if config.ahead else {}),
                "word": In(
                    stream.Signature(Payload(data=(32, "word of a command", command_words(SET)))),
                    "Commands, 16 words each.",
                ),
                "abort_pulse": In(1, "High for one cycle: end every command that has not begun."),
                "idle": Out(1, "No command is queued or running."),
                **(_counts(config.units) if config.counts else {}),
                "report": Out(stream.Signature(report_layout), "One word per command."),
                "command": command_stream(
                    tuple(f"Commands of unit {unit.name}." for unit in units)
                )
                .flip()
                .array(len(units)),
                "release": Out(
                    stream.Signature(release_layout),
                    "One word per command of unit MATMUL, when it may run or an abort ends it.",
                ),
                "status": status_stream(
                    tuple(f"Their statuses, in order; unit {unit.name}." for unit in units)
                )
                .flip()
                .array(len(units)),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.dispatcher(COMMAND_WORDS)

    def elaborate(self, platform) -> Module:
        m = Module()
        units = tuple(Unit)[: self.config.units]
        aborting = Signal()
        moved = Signal()
        complete, partial, words = _assemble(m, self.word, aborting, moved)
        issued = [Signal(AFTER_BITS, name=f"issued_{unit:d}") for unit in units]
        completed = [Signal(AFTER_BITS, name=f"completed_{unit:d}") for unit in units]
        issue = _screen(m, self.config, words, complete, moved, issued, completed)

        reports = arbiter(m, "arbiter", report_layout, len(units) + 1)
        link(m, reports.o, self.report)
        unknown = reports.i[0]
        m.d.comb += [
            unknown.valid.eq(issue.valid & ~issue.known),
            unknown.p.status.eq(int(CommandStatus.MALFORMED)),
            unknown.p.tag.eq(issue.entry.tag),
        ]
        queue_ready = Signal(8)
        m.d.comb += moved.eq(
            issue.valid & Mux(issue.known, queue_ready.bit_select(issue.unit, 1), unknown.ready)
        )

        empty = Signal(len(units))
        leans = _Leans.of(m, self, units)
        for unit in units:
            waiting = queue(
                m, f"queue_{unit:d}", self.config.queued_layout, self.config.queue,
                storage="memory",
            )
            tags = queue(m, f"tags_{unit:d}", 16, self.config.running)
            is_here = issue.unit == int(unit)
            m.d.comb += [
                waiting.i.valid.eq(issue.valid & issue.known & is_here),
                waiting.i.p.eq(issue.entry),
                queue_ready[unit].eq(waiting.i.ready),
                empty[unit].eq((tags.level == 0) & (waiting.level == 0)),
            ]
            with m.If(moved & issue.known & is_here):
                m.d.sync += issued[unit].eq(issued[unit] + 1)
            command = self.command[unit]
            taken = Signal(name=f"taken_{unit:d}")
            begun = _begin(m, unit, waiting.o, tags, completed, aborting, self.release, leans)
            ends_here = _end(
                m, unit, begun, tags.o, self.status[unit],
                reports.i[unit + 1], completed[unit], leans,
            )  # fmt: skip
            m.d.comb += [command.p.eq(waiting.o.p.command), waiting.o.ready.eq(taken | ends_here)]
            waits = Const(0)  # whether the engine has a command that must not run yet
            if unit == _EARLY:
                m.d.comb += taken.eq(_both(m, begun.started, command, begun.released, self.release))
                waits = begun.started & ~begun.released
            else:
                m.d.comb += [
                    command.valid.eq(begun.started),
                    taken.eq(begun.started & command.ready),
                ]
            if self.config.counts:
                m.d.comb += self.busy[unit].eq(tags.level > waits)

        m.d.comb += self.idle.eq(empty.all() & ~complete & ~aborting)
        if self.config.counts:
            m.d.comb += [Cat(*self.issued).eq(Cat(*issued)), self.partial.eq(partial)]
        # An abort lasts until no command is queued or running and no word is offered. A command
        # whose words are complete goes its way and ends as the others do.
        with m.If(self.abort_pulse):
            m.d.sync += aborting.eq(1)
        with m.Elif(empty.all() & ~complete & ~self.word.valid):
            m.d.sync += aborting.eq(0)
        return m


@dataclasses.dataclass(frozen=True)
class _Issue:
    """A command whose checks are done."""

    valid: Value
    known: Value  # its opcode
    unit: Value
    entry: data.View  # queued_layout


@dataclasses.dataclass(frozen=True)
class _Begun:
    """The head of a unit's queue."""

    head: data.View  # queued_layout
    started: Value  # it is offered to its engine
    released: Value  # it may run, or ends with an abort; _EARLY alone
    ends: Value  # it reaches no engine; the commands before it are complete


def _assemble(m: Module, word, aborting, moved) -> tuple[Signal, Value, list[Signal]]:
    """(complete, partial, words): a command's words, stored until ``moved``."""
    count = Signal(range(COMMAND_WORDS))
    words = [Signal(32, name=f"word_{n}", reset_less=True) for n in range(COMMAND_WORDS)]
    complete = Signal()  # words hold a command that has not gone on
    take = Signal()
    m.d.comb += [
        word.ready.eq(aborting | ~complete),
        take.eq(word.valid & word.ready & ~aborting),
    ]
    with m.If(take):
        for n, stored in enumerate(words):
            with m.If(count == n):
                m.d.sync += stored.eq(word.p.data)
        m.d.sync += [
            count.eq(Mux(count == COMMAND_WORDS - 1, 0, count + 1)),
            complete.eq(count == COMMAND_WORDS - 1),
        ]
    with m.If(moved):
        m.d.sync += complete.eq(0)
    with m.If(aborting):
        m.d.sync += count.eq(0)
    return complete, count != 0, words


def _decode(m: Module, words: list[Signal], units: int) -> tuple[Signal, Signal, Signal]:
    """(unit, known, malformed) of a command's opcode and of the bits that must be 0."""
    unit = Signal(3)
    known = Signal()
    malformed = Signal()
    unused_after = Cat(*words[1:FIRST_OPERAND_WORD])[AFTER_BITS * units :]
    operands = words[FIRST_OPERAND_WORD:]
    m.d.comb += malformed.eq(1)
    with m.Switch(words[0][:8]):
        for command in (each for each in COMMANDS.values() if each.known(units)):
            with m.Case(int(command.opcode)):
                excess = [words[0][8:16].any(), unused_after.any()]
                for position in range(OPERANDS_MAX):
                    bits = (
                        command.operands[position].bits if position < len(command.operands) else 0
                    )
                    if bits < 32:
                        excess.append(operands[position][bits:].any())
                m.d.comb += [
                    unit.eq(int(command.unit)),
                    known.eq(1),
                    malformed.eq(Cat(excess).any()),
                ]
    return unit, known, malformed


def _screen(
    m: Module, config: KllmDispatcherConfig, words, complete, moved, issued, completed
) -> _Issue:
    """The checks of a complete command. They have a cycle of their own."""
    units = tuple(Unit)[: config.units]
    after = [Cat(*words[1:FIRST_OPERAND_WORD]).word_select(unit, AFTER_BITS) for unit in units]
    unit_of, known, malformed = _decode(m, words, len(units))
    ahead = Signal(len(units))  # after[u] is beyond what was issued to u
    # Kept, as the signed distance to an old wait turns over while its command is queued.
    met_now = Signal(len(units))
    met = Signal(len(units))
    for unit in units:
        m.d.comb += [
            ahead[unit].eq((issued[unit] - after[unit])[AFTER_BITS - 1]),
            met_now[unit].eq(~(completed[unit] - after[unit])[AFTER_BITS - 1]),
        ]
    checked = Signal()
    fault = Signal(_STATUS_BITS)
    to_unit = Signal(3)
    is_known = Signal()
    m.d.sync += checked.eq(complete & ~moved)
    with m.If(complete):
        m.d.sync += [
            fault.eq(
                Mux(
                    malformed,
                    int(CommandStatus.MALFORMED),
                    Mux(ahead.any(), int(CommandStatus.DEPENDENCY), 0),
                )
            ),
            met.eq(met_now),
            to_unit.eq(unit_of),
            is_known.eq(known),
        ]
    entry = Signal(config.queued_layout)
    m.d.comb += [
        entry.command.opcode.eq(words[0][:8]),
        Cat(*entry.command.operand).eq(Cat(*words[FIRST_OPERAND_WORD:])),
        Cat(*entry.after).eq(Cat(*after)),
        entry.met.eq(met),
        entry.tag.eq(words[0][16:]),
        entry.fault.eq(fault),
    ]
    return _Issue(valid=checked & complete, known=is_known, unit=to_unit, entry=entry)


@dataclasses.dataclass(frozen=True)
class _Leans:
    """Commands that began before one that they wait for was complete; of no unit: none may.

    certain : of each unit, its eldest command; ended: a command of the unit completes
    leaning : the eldest command of the unit leans; units whose commands never do are left out
    """

    certain: Value
    ended: Signal
    leaning: Mapping[Unit, Signal]

    @classmethod
    def of(cls, m: Module, block: KllmDispatcher, units) -> "_Leans | None":
        if not block.config.ahead:
            return None
        leaning = {unit: Signal(name=f"leaning_{unit:d}") for unit in _AHEAD}
        return cls(block.certain, Signal(len(units), name="ended"), leaning)

    def begins(self, m: Module, unit: Unit, head, early, completed, is_first) -> Value:
        """Whether the head may lean now: it waits for one certain command, and none runs."""
        other = _AHEAD[unit]
        is_next = Signal(name=f"is_next_{unit:d}")  # the one that it waits for is the eldest
        m.d.comb += is_next.eq(head.after[other] == (completed[other] + 1)[:AFTER_BITS])
        is_sound = self.certain[other] & ~self.leaning[unit]
        if other in self.leaning:
            is_sound = is_sound & ~self.leaning[other]
        return is_first & is_sound & is_next & (early == 1 << other)

    def note(self, m: Module, unit: Unit, leans) -> None:
        """The head begins and leans, until the other command is complete."""
        other = _AHEAD[unit]
        with m.If(self.ended[other]):
            m.d.sync += self.leaning[unit].eq(0)
        with m.Elif(leans):
            m.d.sync += self.leaning[unit].eq(1)


def _begin(m: Module, unit: Unit, waiting, tags, completed, aborting, release, leans) -> _Begun:
    """The head waits for its turn; then it starts and its tag is stored, or it is dead.

    A head of ``_EARLY`` starts at once, and ``release`` tells when its turn has come.
    """
    head = waiting.p
    early = Signal(len(completed), name=f"early_{unit:d}")  # waits not yet fulfilled
    for other in range(len(completed)):
        m.d.comb += early[other].eq(
            ~head.met[other] & (completed[other] - head.after[other])[AFTER_BITS - 1]
        )
    # Latched, so that a command that is offered stays offered.
    started = Signal(name=f"started_{unit:d}")
    dead = Signal(name=f"dead_{unit:d}")
    ends_here = Signal(name=f"ends_here_{unit:d}")
    begins = Signal(name=f"begins_{unit:d}")
    released = Signal(name=f"released_{unit:d}")
    may_begin = (early == 0) | (unit == _EARLY)
    if leans is not None and unit in _AHEAD:
        leans_now = leans.begins(m, unit, head, early, completed, tags.level == 0)
        leans.note(m, unit, begins & leans_now)
        may_begin = may_begin | leans_now
    with m.If(waiting.valid & ~started & ~dead):
        with m.If(aborting | (head.fault != 0)):
            m.d.sync += dead.eq(1)
        with m.Elif(may_begin & tags.i.ready):
            m.d.comb += begins.eq(1)
            m.d.sync += started.eq(1)
    if unit == _EARLY:
        with m.If((begins | started) & ~released & (aborting | (early == 0))):
            m.d.sync += [released.eq(1), release.p.aborted.eq(aborting)]
    with m.If(waiting.valid & waiting.ready):
        m.d.sync += [started.eq(0), dead.eq(0), released.eq(0)]
    m.d.comb += [
        # An engine may take a command as late as with its status: the tag is there first.
        tags.i.valid.eq(begins),
        tags.i.p.eq(head.tag),
        # In order: it ends after the commands before it.
        ends_here.eq(dead & (tags.level == 0)),
    ]
    return _Begun(head=head, started=started, released=released, ends=ends_here)


def _both(m: Module, started, command, released, release) -> Value:
    """Offers a command and its release; 1 when the engine has taken both."""
    # command, release
    gone = Signal(2)
    taken = Signal(2)
    m.d.comb += [
        command.valid.eq(started & ~gone[0]),
        release.valid.eq(released & ~gone[1]),
        taken.eq(gone | Cat(command.valid & command.ready, release.valid & release.ready)),
    ]
    m.d.sync += gone.eq(Mux(taken.all(), 0, taken))
    return taken.all()


def _end(m: Module, unit: Unit, begun: _Begun, tag, status, report, completed, leans) -> Value:
    """Reports the engine's statuses, and the dead head; 1 in the cycle in which that one ends."""
    head = begun.head
    fault = Mux(head.fault != 0, head.fault, int(CommandStatus.ABORTED))
    taken = report.ready & ~begun.ends
    shown = status.valid & tag.valid
    if leans is not None:
        m.d.comb += leans.ended[unit].eq(report.valid & report.ready)
        if unit in _AHEAD:  # nothing that waits for this command may run before the other has ended
            taken, shown = taken & ~leans.leaning[unit], shown & ~leans.leaning[unit]
    m.d.comb += [
        report.valid.eq(begun.ends | shown),
        report.p.status.eq(Mux(begun.ends, fault, status.p.status)),
        report.p.unit.eq(int(unit)),
        report.p.tag.eq(Mux(begun.ends, head.tag, tag.p)),
        status.ready.eq(taken & tag.valid),
        tag.ready.eq(taken & status.valid),
    ]
    with m.If(report.valid & report.ready):
        m.d.sync += completed.eq(completed + 1)
    return begun.ends & report.ready
