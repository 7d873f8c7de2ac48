"""Programs that follow others without a reset between them. Pure Python.

Counters of completed commands go on through programs and aborts. So the waits of a program that was
assembled for the state after reset must be counted from the present counters.
"""

from collections.abc import Sequence

from golden.kllm.isa import AFTER_BITS, COMMAND_WORDS, COMMANDS, Unit


def units_of(units: int) -> dict[int, Unit]:
    """The unit of each opcode that an accelerator of the first ``units`` units knows."""
    return {int(opcode): each.unit for opcode, each in COMMANDS.items() if each.known(units)}


def counted(words: Sequence[int], units: int = int(Unit.CACHE)) -> list[int]:
    """Commands of each unit, as the counters see them: unknown opcodes count nowhere."""
    counts, known = [0] * len(Unit), units_of(units)
    for first in range(0, len(words), COMMAND_WORDS):
        opcode = words[first] & 0xFF
        if opcode in known:
            counts[known[opcode]] += 1
    return counts


def rebase(words: Sequence[int], base: Sequence[int]) -> list[int]:
    """``words`` with ``base[u]`` added to every wait for unit u."""
    moved = list(words)
    mask = (1 << AFTER_BITS) - 1
    for first in range(0, len(words), COMMAND_WORDS):
        for unit in Unit:
            place, shift = first + 1 + unit // 2, AFTER_BITS * (unit % 2)
            wait = (moved[place] >> shift) + base[unit] & mask
            moved[place] = moved[place] & ~(mask << shift) | wait << shift
    return moved
