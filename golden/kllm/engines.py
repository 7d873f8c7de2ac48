"""The small engines of the accelerator, without torch: what a command does there. Pure Python.

golden.kllm.machine says what a program computes; here is what one engine sees of it.
"""

from collections.abc import Sequence

from golden.kllm.isa import AFTER_BITS, SET, CommandStatus, Unit, decode


def screen(words: Sequence[int], issued: Sequence[int]) -> tuple[Unit | None, CommandStatus]:
    """Unit and fault of a command at the dispatcher, before it waits.

    words: COMMAND_WORDS; issued: commands of each unit of the machine before this one, modulo
    2**16 or not.
    The unit is None where the opcode is unknown: reported as of unit 0, counted nowhere. So is an
    opcode that needs a unit that the machine does not have; a wait for such a unit is MALFORMED.
    """
    units = len(issued)
    command = SET.find(words[0])
    if command is None or not command.known(units):
        return None, CommandStatus.MALFORMED
    unit = command.unit
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


def moved(words: Sequence[int], number: int, base: Sequence[int]) -> list[int]:
    """The words of a command with the tag ``number``, and ``base[u]`` added to its wait for unit u.

    base: of each unit of the machine.
    """
    made = list(words)
    made[0] = made[0] & 0xFFFF | number << 16
    for unit, count in enumerate(base):
        word, place = 1 + unit // 2, AFTER_BITS * (unit % 2)
        wait = (made[word] >> place) + count & 0xFFFF
        made[word] = made[word] & ~(0xFFFF << place) | wait << place
    return made
