"""The small engines of the accelerator, without torch: what a command does there. Pure Python.

golden.kllm.machine says what a program computes; here is what one engine sees of it.
"""

from collections.abc import Sequence

from golden.kllm.isa import AFTER_BITS, COMMANDS, CommandStatus, Opcode, Unit, decode


def screen(words: Sequence[int], issued: Sequence[int]) -> tuple[Unit | None, CommandStatus]:
    """Unit and fault of a command at the dispatcher, before it waits.

    words: COMMAND_WORDS; issued: commands of each unit before this one, modulo 2**16 or not.
    The unit is None where the opcode is unknown: reported as of unit 0, counted nowhere.
    """
    known = words[0] & 0xFF in COMMANDS
    unit = COMMANDS[Opcode(words[0] & 0xFF)].unit if known else None
    try:
        _, _, after, _ = decode(list(words))
    except ValueError:
        return unit, CommandStatus.MALFORMED
    # Modulo 2**16: up to 32767 back is done or to come, anything else could wait for ever.
    if any((issued[other] - count) >> AFTER_BITS - 1 & 1 for other, count in after.items()):
        return unit, CommandStatus.DEPENDENCY
    return unit, CommandStatus(0)
