"""The small engines of the accelerator, without torch: what a command does there. Pure Python.

golden.kllm.machine says what a program computes; here is what one engine sees of it.
"""

from collections.abc import Sequence

from golden.kllm.format import FURTHEST
from golden.kllm.isa import AFTER_BITS, COMMANDS, CommandStatus, Opcode, Unit, decode


def screen(words: Sequence[int], issued: Sequence[int]) -> tuple[Unit | None, CommandStatus]:
    """Unit and fault of a command at the dispatcher, before it waits.

    words: COMMAND_WORDS; issued: commands of each unit of the machine before this one, modulo
    2**16 or not.
    The unit is None where the opcode is unknown: reported as of unit 0, counted nowhere. So is the
    opcode of a unit that the machine does not have; a wait for such a unit is MALFORMED.
    """
    units = len(issued)
    known = words[0] & 0xFF in COMMANDS
    unit = COMMANDS[Opcode(words[0] & 0xFF)].unit if known else None
    if unit is not None and unit >= units:
        return None, CommandStatus.MALFORMED
    try:
        _, _, after, _ = decode(list(words))
    except ValueError:
        return unit, CommandStatus.MALFORMED
    if any(count for other, count in after.items() if other >= units):
        return unit, CommandStatus.MALFORMED
    # Modulo 2**16: up to 32767 back is done or to come, anything else could wait for ever.
    waits = [after[unit] for unit in tuple(Unit)[:units]]
    if any((sent - count) >> AFTER_BITS - 1 & 1 for sent, count in zip(issued, waits, strict=True)):
        return unit, CommandStatus.DEPENDENCY
    return unit, CommandStatus(0)


def place_words(
    place: int, sequence: int | None = None, position: int = 0, token: int = 0
) -> list[int]:
    """The words with which the host sets a place of the batch; sequence None: without a token."""
    valid = sequence is not None
    return [place | int(valid) << 8 | (sequence or 0) << 16, position, token]


def batch_table(words: Sequence[int], places: int) -> list[tuple[int, int, int] | None]:
    """(sequence, position, token) of each place after ``words``; None: it has no token.

    Three words set a place; those of a place that is not complete have no effect, and neither have
    those of a place beyond ``places``. Positions of 2**21 - 2 and more are one: no token has it.
    """
    table: list[tuple[int, int, int] | None] = [None] * places
    whole = len(words) - len(words) % 3
    for first, position, token in zip(*(words[n:whole:3] for n in range(3)), strict=True):
        place, valid, sequence = first & 0xFF, first >> 8 & 1, first >> 16 & 0xFF
        if place < places:
            found = (sequence, min(position, FURTHEST), token)
            table[place] = found if valid else None
    return table
