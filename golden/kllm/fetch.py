"""Programs in the data memory: their bytes, and what a run of one does.

``program_image`` makes the bytes of a program, a header and its commands. ``run`` runs such a
program on a golden machine, as the accelerator does when the host writes RUN:

    bits 0..30   first row of the program in the data memory
    bit 31       the whole program is read first, and its check word compared

The commands run as if they followed each other in a program of the host. The waits count from the
state before the run: so one image may run again and again. The tag of each command is its number.
The host gets one word for the run, an ``Answer``, and none of the statuses.

    an answer's unit   status                                 tag
    RUN_UNIT           RunStatus; 0, or OVERFLOW and          commands that were given to the units
                       SCALE_NONFINITE: every command is done
    another            CommandStatus of the first command     its number
                       that failed; those after it ran

A read that fails, a damaged program and an abort go before the statuses of commands. A command of
which a row has an error is not given, and none after it is.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from golden.kllm.config import MachineConfig
from golden.kllm.engines import moved
from golden.kllm.isa import (
    COMMAND_ROWS,
    COMMAND_WORDS,
    FAILED,
    HEADER_ROWS,
    PROGRAM_MAGIC,
    PROGRAM_MAX,
    RUN_CHECKS,
    RUN_UNIT,
    CommandStatus,
    Header,
    RunStatus,
    Unit,
    command_set_word,
)
from golden.kllm.machine import Machine, Memory

_SOFT = CommandStatus.OVERFLOW | CommandStatus.SCALE_NONFINITE


class Answer(NamedTuple):
    """A run has one; ``word`` is how the host gets it."""

    status: int
    unit: int
    tag: int

    @property
    def word(self) -> int:
        """Status in bits 0..12, unit in 13..15, tag in 16..31."""
        return self.status | self.unit << 13 | self.tag << 16


def program_image(words: Sequence[int], config: MachineConfig) -> bytes:
    """A header and the bytes of a program, COMMAND_WORDS words for each command.

    ValueError: the words do not make whole commands, or 1..PROGRAM_MAX of them.
    """
    count, rest = divmod(len(words), COMMAND_WORDS)
    if rest or not 1 <= count <= PROGRAM_MAX:
        raise ValueError(
            f"a program must have 1..{PROGRAM_MAX} commands of {COMMAND_WORDS} words, "
            f"not {len(words)} words"
        )
    body = struct.pack(f"<{len(words)}I", *words)
    header = [0] * COMMAND_WORDS
    header[Header.MAGIC] = PROGRAM_MAGIC
    header[Header.SET] = command_set_word()
    header[Header.MACHINE] = config.word
    header[Header.COMMANDS] = count
    header[Header.CHECK] = zlib.crc32(body)
    head = struct.pack(f"<{COMMAND_WORDS}I", *header)[:-4]
    return head + struct.pack("<I", zlib.crc32(head)) + body


def read_header(
    memory: Memory, row: int, config: MachineConfig, rows_max: int | None = None
) -> tuple[list[int], RunStatus]:
    """(words, status) of the header at ``row``; its check word is compared, that of the body not.

    rows_max: rows that the port addresses; None: more than a run may name.
    """
    end = row + HEADER_ROWS
    found = memory.read(row, HEADER_ROWS)
    if found is None or (rows_max is not None and end > rows_max):
        return [], RunStatus.BUS_ERROR
    words = [int(word) for word in found.view("<u4")]
    damaged = zlib.crc32(bytes(found[:-4])) != words[Header.HEADER_CHECK]
    count = words[Header.COMMANDS]
    if damaged or words[Header.MAGIC] != PROGRAM_MAGIC or not 1 <= count <= PROGRAM_MAX:
        return words, RunStatus.HEADER
    if (words[Header.SET], words[Header.MACHINE]) != (command_set_word(), config.word):
        return words, RunStatus.FOREIGN
    if rows_max is not None and end + COMMAND_ROWS * count > rows_max:
        return words, RunStatus.BUS_ERROR
    return words, RunStatus(0)


def body(memory: Memory, row: int, header: Sequence[int]) -> Iterator[list[int] | RunStatus]:
    """The commands of a program at ``row``, then its status, which ends them."""
    first, check = row + HEADER_ROWS, 0
    for number in range(header[Header.COMMANDS]):
        found = memory.read(first + COMMAND_ROWS * number, COMMAND_ROWS)
        if found is None:
            yield RunStatus.BUS_ERROR
            return
        check = zlib.crc32(bytes(found), check)
        yield [int(word) for word in found.view("<u4")]
    yield RunStatus(0) if check == header[Header.CHECK] else RunStatus.DAMAGED


def run(machine: Machine, word: int, rows_max: int | None = None) -> Answer:
    """The program that the word RUN names; ``machine.readback`` then has what it gives the host."""
    machine.readback = []
    row = word & (RUN_CHECKS - 1)
    header, status = read_header(machine.data, row, machine.config, rows_max)
    if not status and word & RUN_CHECKS:
        *_, last = body(machine.data, row, header)
        assert isinstance(last, RunStatus)
        status = last
    if status:
        return Answer(status, RUN_UNIT, 0)
    base = [machine.issued[unit] for unit in tuple(Unit)[: machine.config.units]]
    failed, soft, given = None, CommandStatus(0), 0
    for each in body(machine.data, row, header):
        if isinstance(each, RunStatus):
            status = each
            break
        result = machine.step(moved(each, given, base))
        soft |= result.status & _SOFT
        if failed is None and result.status & FAILED:
            failed = Answer(result.status, result.unit, given)
        given += 1
    if failed is None or status:
        return Answer(status or int(soft), RUN_UNIT, given)
    return failed
