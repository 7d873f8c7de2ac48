"""Programs from the data memory to the dispatcher."""

import dataclasses
import struct
import zlib
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.kllm.isa import (
    AFTER_BITS,
    COMMAND_ROWS,
    COMMAND_WORDS,
    FAILED,
    FIRST_OPERAND_WORD,
    HEADER_ROWS,
    PROGRAM_MAGIC,
    PROGRAM_MAX,
    ROW_BYTES,
    RUN_UNIT,
    SET,
    Header,
    RunStatus,
    Unit,
    command_set_word,
)
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import BITS, NUMBER, command_words
from hdl.kllm.dispatcher import report_layout
from hdl.kllm.slots.load_at import data_layout, read_layout
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

_ROW_WORDS = ROW_BYTES // 4
_COUNT_BITS = PROGRAM_MAX.bit_length()
_ADDRESS_BITS = 31  # of a row in RUN
_SOFT = int(RunStatus.OVERFLOW | RunStatus.SCALE_NONFINITE)

answer_layout = Payload(
    status=(13, "RunStatus if no command is to blame, else its CommandStatus; 0: done", BITS),
    unit=(3, "unit of the first command that failed; 7: none", NUMBER),
    tag=(16, "its number; 7: commands that were given", NUMBER),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmFetchConfig(Config):
    """The machine that programs are for, and how far they are read ahead."""

    units: int = bounded(len(Unit), int(Unit.CACHE), len(Unit), "units, the first of Unit")
    machine: int = bounded(0, 0, (1 << 32) - 1, "golden.kllm.config.MachineConfig.word")
    address_bits: int = bounded(40, 32, 64, "bits of a byte address of the data memory")
    chunk: int = bounded(8, 1, 64, "commands of a read; two reads are ahead")


class KllmFetch(Block):
    """Runs programs of the data memory: their words go to the dispatcher as the host's do.

    Without a run, ``word`` goes to ``o`` and ``report`` to ``status``. A word of ``run`` is taken
    when the dispatcher is idle and no word of the host waits or is part of a command. The header
    of the program is read and checked, then its commands, ``chunk`` in a read. A command is given
    when both of its rows are here. Its tag becomes its number, and ``issued`` at the start of the
    run is added to its waits. Words of the host wait, and ``report`` is counted up: the run ends
    when every command that was given is done. Then ``answer`` has one word (golden.kllm.fetch).

        what happens                               the run ends                          status
        no header, a damaged one                   before the first command              HEADER
        another command set or machine             before the first command              FOREIGN
        a row with an error; a program that ends   after the commands before it;         BUS_ERROR
        above byte ``2**address_bits``             before the first command
        the check word is another                  after all commands; with bit 31 of    DAMAGED
                                                   ``run`` before the first one
        an abort                                   after what the abort leaves           ABORTED

    The first command that failed is that with the lowest number, whichever ends first. After an
    abort each word of ``run`` that waits is answered with ABORTED. Words of the host are dropped.
    Both end when all is idle and no word waits.

    A command takes COMMAND_WORDS cycles, and the dispatcher 2 more. ``read`` asks only for rows
    that there is room for: ``data`` is always taken, so a port that is shared never waits for the
    dispatcher. A reset in mid-read needs a reset of the bus too. No combinational path leads from
    ``data`` to ``read``. Golden: golden.kllm.fetch.run.
    """

    tier = Tier.PART
    golden = "golden.kllm.fetch:run"
    default = KllmFetchConfig()
    configs: ClassVar = {
        "default": KllmFetchConfig(),
        "smallest": KllmFetchConfig(units=int(Unit.CACHE), chunk=1, address_bits=32, machine=7),
    }

    def __init__(self, config: KllmFetchConfig):
        words = Payload(data=(32, "word of a command", command_words(SET)))
        runs = Payload(data=(32, "first row of a program; bit 31: check it before it runs", BITS))
        super().__init__(
            config,
            {
                "word": In(stream.Signature(words), "Commands of the host, 16 words each."),
                "o": Out(stream.Signature(words), "Commands for the dispatcher."),
                "report": In(stream.Signature(report_layout), "The dispatcher's statuses."),
                "status": Out(stream.Signature(report_layout), "Those of the host's commands."),
                "run": In(stream.Signature(runs), "Programs to run, one after the other."),
                "answer": Out(stream.Signature(answer_layout), "A word for each run."),
                "read": Out(
                    stream.Signature(read_layout(config.address_bits)),
                    "Rows wanted of the data memory: byte address and number.",
                ),
                "data": In(stream.Signature(data_layout), "Those rows, in order."),
                "abort_pulse": In(1, "High for one cycle: the dispatcher aborts."),
                "dispatcher_idle": In(1, "No command is queued or running."),
                "issued": In(
                    data.ArrayLayout(AFTER_BITS, config.units),
                    "Commands of each unit so far, modulo 2**16.",
                    NUMBER,
                ),
                "partial": In(1, "Some words of a command have come, and others have not."),
                "idle": Out(1, "No run is under way, and none waits."),
            },
        )

    timing = Timing(
        latency=1,
        interval=COMMAND_WORDS,
        start="run",
        end="read",
        unit="command",
        delays=(
            ("from the header's last row to the program's read", 3),
            ("from a command's second row to o", 2),
        ),
    )

    def elaborate(self, platform) -> Module:
        m = Module()
        config, read = self.config, self.read
        run = _Run()
        sender, reader = _Sender(), _Reader(config.chunk)
        check = Signal(32)  # CRC-32 of the bytes so far, inverted
        header = Signal(_header_layout, reset_less=True)
        row = Signal(32)  # the next one to read
        is_free = Signal()  # the host's commands are over, or those of an abort are dropped
        clears = Signal()  # a new check word begins
        m.d.comb += [
            is_free.eq(~self.word.valid & self.dispatcher_idle & ~self.partial & ~self.abort_pulse),
            self.data.ready.eq(1),
            self.idle.eq(run.rests & ~run.aborting & ~self.run.valid),
            self.answer.valid.eq(run.answers),
            read.valid.eq(reader.asks),
            read.p.address.eq(Cat(Const(0, (ROW_BYTES - 1).bit_length()), row)),
            read.p.words.eq(Mux(run.is_body, COMMAND_ROWS * reader.count, HEADER_ROWS)),
        ]
        with m.If(self.data.valid):
            m.d.sync += check.eq(_after_row(check, self.data.p.data))
        with m.If(clears):
            m.d.sync += check.eq(_ONES)
        with m.If(read.valid & read.ready):
            m.d.sync += row.eq(row + read.p.words)

        with m.FSM():
            with m.State("REST"):
                m.d.comb += [
                    run.rests.eq(1),
                    clears.eq(1),
                    self.run.ready.eq(is_free),
                ]
                m.d.sync += [
                    run.checks.eq(self.run.p.data[-1]),
                    row.eq(self.run.p.data[:_ADDRESS_BITS]),
                    Cat(*run.base).eq(Cat(*self.issued)),
                    run.found.eq(Mux(run.aborting, int(RunStatus.ABORTED), 0)),
                ]
                with m.If(self.run.valid & self.run.ready):
                    m.next = "ASK"
                    with m.If(run.aborting):
                        m.next = "ANSWER"
            with m.State("ASK"):
                with m.If(_is_beyond(config, row, HEADER_ROWS)):
                    m.d.sync += run.found.eq(run.found | int(RunStatus.BUS_ERROR))
                    m.next = "END"
                with m.Else():
                    m.d.comb += read.valid.eq(1)
                    with m.If(read.ready):
                        m.next = "HEADER"
            with m.State("HEADER"):
                _take_header(m, config, self.data, header, run)
            with m.State("CHECK"):
                m.d.comb += clears.eq(1)
                m.next = "BODY"
                with m.If(run.found == 0):
                    _judge(m, config, header, check, row, run)
                m.d.sync += [reader.wanted.eq(header.commands), reader.first.eq(row)]
            with m.State("BODY"):
                m.d.comb += run.is_body.eq(1)
                is_good = ~check == header.check
                with m.If(reader.is_over & ~sender.sends):
                    m.next = "END"
                    with m.If(run.found == 0):
                        with m.If(~is_good):
                            m.d.sync += run.found.eq(int(RunStatus.DAMAGED))
                        with m.Elif(run.checks):
                            m.d.comb += clears.eq(1)
                            m.d.sync += [
                                run.checks.eq(0),
                                row.eq(reader.first),
                                reader.wanted.eq(header.commands),
                            ]
                            m.next = "BODY"
            with m.State("END"):
                # Of a command with an error one row may be left.
                m.d.comb += run.drains.eq(1)
                with m.If(self.dispatcher_idle & reader.is_empty):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += run.answers.eq(1)
                with m.If(self.answer.ready):
                    m.next = "REST"
        rows = _read_body(m, self, run, reader, sender)
        _send(m, self, run, reader, sender, rows)
        _end(m, self, run, sender)
        return m


_ONES = (1 << 32) - 1
_header_layout = data.StructLayout(
    {"is_header": 1, "is_native": 1, "commands": _COUNT_BITS, "check": 32}
)


class _Run:
    """The run under way."""

    def __init__(self) -> None:
        self.rests = Signal(name="rests")  # there is none
        self.is_body = Signal(name="is_body")  # commands are read
        self.drains = Signal(name="drains")  # nothing more is given
        self.answers = Signal(name="answers")
        self.checks = Signal(name="checks")  # this reading of the commands gives none
        self.aborting = Signal(name="aborting")  # until the dispatcher is idle and no run waits
        self.found = Signal(13, name="found")  # RunStatus
        self.base = [Signal(AFTER_BITS, name=f"base_{unit:d}") for unit in Unit]

    @property
    def is_aborted(self) -> Value:
        return (self.found & int(RunStatus.ABORTED)) != 0


class _Reader:
    """Commands from the data memory, two chunks ahead."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.first = Signal(32, name="first_of_body")  # row of the first command
        self.wanted = Signal(_COUNT_BITS, name="wanted")  # commands not yet requested
        self.count = Signal(range(chunk + 1), name="count")  # of them in the next read
        self.asks = Signal(name="asks")
        self.room = Signal(range(2 * chunk + 1), name="room", init=2 * chunk)  # in commands
        self.pending = Signal(range(2 * COMMAND_ROWS * chunk + 1), name="pending")  # rows to come
        self.whole = Signal(range(2 * chunk + 1), name="whole")  # commands that are here
        self.is_over = Signal(name="reading_is_over")
        self.is_empty = Signal(name="is_empty")  # no row is here


class _Sender:
    """The command that goes to the dispatcher."""

    def __init__(self) -> None:
        self.sends = Signal(name="sends")
        self.place = Signal(range(COMMAND_WORDS), name="place")  # of its word
        self.ends = Signal(name="sends_last_word")
        self.given = Signal(_COUNT_BITS, name="given")  # commands before it


def _after_row(check: Value, row: Value) -> Value:
    """The inverted CRC-32 after 32 more bytes, ``check`` before them."""
    zeros = bytes(ROW_BYTES)
    states = [~zlib.crc32(zeros, ~(1 << bit) & _ONES) & _ONES for bit in range(32)]
    bits = [struct.pack("<8I", *(1 << bit % 32 if bit // 32 == n else 0 for n in range(8)))
            for bit in range(8 * ROW_BYTES)]  # fmt: skip
    changes = [*states, *(~zlib.crc32(word, _ONES) & _ONES for word in bits)]
    inputs = [*check, *row]
    pairs = list(zip(inputs, changes, strict=True))
    return Cat(
        Cat(*(each for each, change in pairs if change >> bit & 1)).xor() for bit in range(32)
    )


def _residue() -> int:
    """The inverted CRC-32 of any bytes and their CRC-32."""
    return ~zlib.crc32(struct.pack("<I", zlib.crc32(b""))) & _ONES


def _is_beyond(config: KllmFetchConfig, row: Value, rows: Value | int) -> Value:
    """Whether rows from ``row`` on end above the addresses."""
    most = (1 << _ADDRESS_BITS) + HEADER_ROWS + COMMAND_ROWS * PROGRAM_MAX
    memory_rows = (1 << config.address_bits) // ROW_BYTES
    return Const(0) if memory_rows >= most else row + rows > memory_rows


def _take_header(m: Module, config: KllmFetchConfig, given, header, run: _Run) -> None:
    """State HEADER: two rows."""
    words = [given.p.data.word_select(n, 32) for n in range(_ROW_WORDS)]
    is_second = Signal()
    count = words[Header.COMMANDS]
    with m.If(given.valid):
        m.d.sync += is_second.eq(~is_second)
        with m.If(given.p.error & (run.found == 0)):
            m.d.sync += run.found.eq(int(RunStatus.BUS_ERROR))
        with m.If(is_second):
            m.next = "CHECK"
        with m.Else():
            m.d.sync += [
                header.is_header.eq(
                    (words[Header.MAGIC] == PROGRAM_MAGIC) & (count != 0) & (count <= PROGRAM_MAX)
                ),
                header.is_native.eq(
                    (words[Header.SET] == command_set_word())
                    & (words[Header.MACHINE] == config.machine)
                ),
                header.commands.eq(count),
                header.check.eq(words[Header.CHECK]),
            ]


def _judge(m: Module, config: KllmFetchConfig, header, check, row, run: _Run) -> None:
    """State CHECK: what is wrong with the header, ``row`` being the one after it."""
    with m.If(~header.is_header | (check != _residue())):
        m.d.sync += run.found.eq(int(RunStatus.HEADER))
    with m.Elif(~header.is_native):
        m.d.sync += run.found.eq(int(RunStatus.FOREIGN))
    with m.Elif(_is_beyond(config, row, header.commands * COMMAND_ROWS)):
        m.d.sync += run.found.eq(int(RunStatus.BUS_ERROR))


def _read_body(m: Module, block: KllmFetch, run: _Run, reader: _Reader, sender: _Sender):
    """State BODY: requests rows that there is room for; gives the queue of them."""
    read, given = block.read, block.data
    chunk = reader.chunk
    rows = queue(m, "rows", 8 * ROW_BYTES, 2 * COMMAND_ROWS * chunk, storage="memory")
    is_second = Signal()  # row of its command
    comes = Signal()
    asked = Signal()
    is_good = Signal()
    is_whole = Signal()
    m.d.comb += [
        reader.is_empty.eq(rows.level == 0),
        reader.count.eq(Mux(reader.wanted < chunk, reader.wanted, chunk)),
        comes.eq(given.valid & run.is_body),
        asked.eq(reader.asks & read.ready),
        is_good.eq(comes & ~given.p.error & (run.found == 0)),
        is_whole.eq(comes & is_second),
        rows.i.p.eq(given.p.data),
        rows.i.valid.eq(is_good & ~run.checks),
        reader.is_over.eq(
            run.is_body
            & ~reader.asks
            & (reader.pending == 0)
            & ((reader.wanted == 0) | (run.found != 0))
            & ((reader.whole == 0) | run.is_aborted)
        ),
    ]
    with m.If(run.is_body & ~reader.asks & (run.found == 0)):
        m.d.sync += reader.asks.eq((reader.wanted != 0) & (reader.room >= reader.count))
    with m.If(asked):
        m.d.sync += [reader.asks.eq(0), reader.wanted.eq(reader.wanted - reader.count)]
    with m.If(comes):
        m.d.sync += is_second.eq(~is_second)
        with m.If(given.p.error & (run.found == 0)):
            m.d.sync += run.found.eq(int(RunStatus.BUS_ERROR))
    leaves = sender.ends | (is_whole & run.checks)  # a place of its own is free again
    m.d.sync += [
        reader.pending.eq(reader.pending + Mux(asked, COMMAND_ROWS * reader.count, 0) - comes),
        reader.room.eq(reader.room - Mux(asked, reader.count, 0) + leaves),
        reader.whole.eq(reader.whole + (is_whole & is_good & ~run.checks) - sender.ends),
    ]
    with m.If(run.rests):
        m.d.sync += [reader.room.eq(2 * chunk), reader.whole.eq(0), is_second.eq(0)]
    return rows


def _send(m: Module, block: KllmFetch, run: _Run, reader: _Reader, sender: _Sender, rows) -> None:
    """Words of whole commands to the dispatcher, or those of the host."""
    o, place = block.o, sender.place
    units = block.config.units
    word = Signal(32)
    sent = Signal()
    drops = Signal()  # the host's words, in an abort that the dispatcher has ended
    m.d.comb += [
        drops.eq(run.aborting & ~sender.sends & block.dispatcher_idle),
        word.eq(rows.o.p.word_select(place[:3], 32)),
        sent.eq(sender.sends & o.valid & o.ready),
        sender.ends.eq(sent & (place == COMMAND_WORDS - 1)),
        rows.o.ready.eq((sent & (place[:3] == _ROW_WORDS - 1)) | run.drains),
    ]
    with m.If(drops):
        m.d.comb += block.word.ready.eq(1)
    with m.Elif(run.rests):
        link(m, block.word, o)
    with m.Else():
        m.d.comb += [o.valid.eq(sender.sends & rows.o.valid), o.p.data.eq(word)]
        with m.Switch(place):
            with m.Case(0):
                m.d.comb += o.p.data.eq(Cat(word[:16], sender.given))
            for n in range(1, FIRST_OPERAND_WORD):
                halves = [
                    word.word_select(k, AFTER_BITS) + run.base[unit] if unit < units
                    else word.word_select(k, AFTER_BITS)
                    for k, unit in enumerate((2 * n - 2, 2 * n - 1))
                ]  # fmt: skip
                with m.Case(n):
                    m.d.comb += o.p.data.eq(Cat(*(half[:AFTER_BITS] for half in halves)))
    with m.If(sent):
        m.d.sync += place.eq(place + 1)
    with m.If(~sender.sends | sender.ends):
        # The next command, if it is here.
        m.d.sync += [
            sender.sends.eq((reader.whole > sender.ends) & ~run.is_aborted),
            place.eq(0),
        ]
    with m.Elif(run.is_aborted & (sent | ~rows.o.valid)):
        m.d.sync += sender.sends.eq(0)
    with m.If(sender.ends & ~run.is_aborted):
        m.d.sync += sender.given.eq(sender.given + 1)
    with m.If(run.rests):
        m.d.sync += sender.given.eq(0)


def _end(m: Module, block: KllmFetch, run: _Run, sender: _Sender) -> None:
    """Statuses to the host, or to the run; aborts; the answer."""
    report, answer = block.report, block.answer
    failed = Signal()
    kept = Signal(report_layout, reset_less=True)  # the failed one with the lowest number
    soft = Signal(13)  # bits of those that did not fail; no answer shows the other ones
    is_failed = (report.p.status & int(FAILED)) != 0
    with m.If(run.rests):
        link(m, report, block.status)
        m.d.sync += [failed.eq(0), soft.eq(0)]
    with m.Else():
        m.d.comb += report.ready.eq(1)
        with m.If(report.valid):
            m.d.sync += soft.eq(soft | report.p.status & _SOFT)
            with m.If(is_failed & (~failed | (report.p.tag < kept.tag))):
                m.d.sync += [failed.eq(1), kept.eq(report.p)]
    with m.If(block.abort_pulse):
        m.d.sync += run.aborting.eq(1)
        with m.If(~run.rests & ~run.answers):
            m.d.sync += run.found.eq(run.found | int(RunStatus.ABORTED))
    with m.Elif(run.rests & block.dispatcher_idle & ~block.run.valid & ~block.word.valid):
        m.d.sync += run.aborting.eq(0)
    with m.If(failed & (run.found == 0)):
        m.d.comb += [
            answer.p.status.eq(kept.status), answer.p.unit.eq(kept.unit), answer.p.tag.eq(kept.tag),
        ]  # fmt: skip
    with m.Else():
        m.d.comb += [
            answer.p.status.eq(Mux(run.found != 0, run.found, soft)),
            answer.p.unit.eq(RUN_UNIT),
            answer.p.tag.eq(sender.given),
        ]
