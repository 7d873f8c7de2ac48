"""The small engines of the accelerator, without torch: what a command does there. Pure Python.

golden.kllm.machine says what a program computes; here is what one engine sees of it.
"""

import dataclasses
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from golden.kllm.format import FURTHEST, NO_OP
from golden.kllm.isa import AFTER_BITS, SET, CommandStatus, Unit, decode

_SAMPLES = 1 << 9  # bit of a place's first word: two more words follow
_FP16_MAX = 65504.0


@dataclasses.dataclass(frozen=True)
class Sampling:
    """A place's choice of a token: a draw from the ``k`` largest logits.

    k : 1 and 0 are the largest one; more than the machine has room for are as many as it has
    inverse_temperature : log2(e) / T, an FP16 word. Its sign does not count, and the largest
        exponent is as any other
    seed : 32 bits
    """

    k: int
    inverse_temperature: int
    seed: int = 0

    @classmethod
    def at(cls, temperature: float, k: int, seed: int = 0) -> "Sampling":
        """Draws at a temperature above 0."""
        inverse = min(math.log2(math.e) / temperature, _FP16_MAX)
        return cls(k, int.from_bytes(struct.pack("<e", inverse), "little"), seed)


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


def activity(at_work: Iterable[int], units: int, bits: int = 32) -> list[int]:
    """Cycles, and then those in which each unit was at work, modulo ``2**bits``.

    at_work: a word for each cycle, with a bit for each unit.
    """

    def ones(word: int) -> list[int]:
        return [1, *(word >> unit & 1 for unit in range(units))]

    counts = [0] * (1 + units)
    for word in at_work:
        counts = [n + more for n, more in zip(counts, ones(word), strict=True)]
    return [count % (1 << bits) for count in counts]


def place_words(
    place: int,
    sequence: int | None = None,
    position: int = 0,
    token: int = 0,
    sampling: Sampling | None = None,
) -> list[int]:
    """The words with which the host sets a place of the batch; sequence None: without a token."""
    first = place | int(sequence is not None) << 8 | (sequence or 0) << 16
    if sampling is None:
        return [first, position, token]
    k = min(sampling.k, 0xFF) | sampling.inverse_temperature << 16
    return [first | _SAMPLES, position, token, k, sampling.seed]


Entry = tuple[int, int, int, Sampling | None]


def batch_table(words: Sequence[int], places: int) -> list[Entry | None]:
    """(sequence, position, token, sampling) of each place after ``words``; None: it has no token.

    Three words set a place, or five with a sampling. Those of a place that is not complete have no
    effect, and neither have those of a place beyond ``places``. Positions of 2**21 - 2 and more are
    one: no token has it.
    """
    table: list[Entry | None] = [None] * places
    at = 0
    while at < len(words):
        first = words[at]
        size = 5 if first & _SAMPLES else 3
        if at + size > len(words):
            break
        _, position, token, *rest = words[at : at + size]
        at += size
        place, valid, sequence = first & 0xFF, first >> 8 & 1, first >> 16 & 0xFF
        sampling = Sampling(rest[0] & 0xFF, rest[0] >> 16, rest[1]) if rest else None
        if place < places:
            found = (sequence, min(position, FURTHEST), token, sampling)
            table[place] = found if valid else None
    return table


def request_words(
    op: int,
    *,
    tag: int = 0,
    sequence: int = 0,
    layer: int = 0,
    kv: int = 0,
    token: int = 0,
    thresholds: Sequence[int] = (0, 0, 0, 0),
) -> list[int]:
    """The words of REQUEST for a request to the cache."""
    first, second, third, fourth = thresholds
    return [
        op | tag << 8 | sequence << 16 | layer << 24,
        token | kv << 31,
        first | second << 16,
        third | fourth << 16,
    ]


def request_of(words: Sequence[int]) -> dict[str, Any]:
    """The fields of a request as the cache takes it; op 15 where bits are set that must be 0.

    It refuses op 15: BAD_REQUEST. An op above 15 is one.
    """
    first, second, *pairs = words
    is_wide = first & 0xF0 or second & 0x7FE0_0000
    return {
        "op": NO_OP if is_wide else first & 0xFF,
        "tag": first >> 8 & 0xFF,
        "sequence": first >> 16 & 0xFF,
        "layer": first >> 24,
        "kv": second >> 31,
        "token": second & (1 << 21) - 1,
        "thresholds": [half for pair in pairs for half in (pair & 0xFFFF, pair >> 16)],
    }


def answer_word(tag: int, status: int, sequence: int) -> int:
    """The word of ANSWER to a request."""
    return tag | status << 8 | sequence << 16
