"""Command sets of accelerators: operands with roles, words, hazards from the roles. Pure Python.

A command is described once, in the table of its accelerator (golden.kllm.isa). Assembler,
disassembler, dispatcher, machine and the tables of the docs read that table. An operand's role says
what its value means to other commands: nothing (``Value``), or places of a memory that the command
reads or writes (``Touch``). The rows and slots that a command must wait for follow from the roles.

The words of a command, lowest bit first:

    word 0        opcode in bits 0..7, zero in bits 8..15, tag in bits 16..31
    waits         for each unit u, ``after_bits`` bits at after_bits * u from word 1 on
    operands      one word each from word ``first_operand`` on; unused words are zero
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

Operands = Mapping[str, int]
# Places of one token: a function of the operands and of the machine's configuration.
Size = Callable[[Operands, Any], int]
Span = tuple[int, int]  # first place, number of places


@dataclasses.dataclass(frozen=True)
class Value:
    """Role of an operand that names no place: a number, a size, or one of a selector's names.

    selector: the names of its values; no other value is one. least: the lowest value. multiple: of
    what a value is a multiple. hexadecimal: how a text program writes it. served: those of the
    selector's values that a machine has; None: every machine has all.
    """

    selector: type[IntEnum] | None = None
    hexadecimal: bool = False
    least: int = 0
    multiple: int = 1
    served: Callable[[Any], tuple[IntEnum, ...]] | None = None

    def refusal(self, value: int, bits: int, machine: Any) -> str | None:
        """The range that a value of ``bits`` bits leaves; None: it is in range."""
        if self.selector is not None:
            known = tuple(self.selector) if self.served is None else self.served(machine)
            if value not in known:
                return f"one of {', '.join(each.name for each in known)}"
        if value < self.least or value % self.multiple:
            top = ((1 << bits) - 1) // self.multiple * self.multiple
            steps = f", a multiple of {self.multiple}" if self.multiple > 1 else ""
            return f"{self.least}..{top}{steps}"
        return None


@dataclasses.dataclass(frozen=True)
class Touch:
    """Role of an operand that is the first of some places of a memory.

    ``size`` places for each token, tokens ``stride`` places apart. stride, tokens: names of other
    operands; None: one token. when: (operand, value) for which the places are touched; ``unless``:
    for which they are not.
    """

    memory: str
    writes: bool
    size: Size
    stride: str | None = None
    tokens: str | None = None
    when: tuple[str, int] | None = None
    unless: tuple[str, int] | None = None

    def spans(self, first: int, operands: Operands, machine: Any) -> tuple[Span, ...]:
        """Spans of the tokens, in order; none where the condition is not met."""
        if self.when is not None and operands[self.when[0]] != self.when[1]:
            return ()
        if self.unless is not None and operands[self.unless[0]] == self.unless[1]:
            return ()
        stride = 0 if self.stride is None else operands[self.stride]
        tokens = 1 if self.tokens is None else operands[self.tokens]
        size = self.size(operands, machine)
        return tuple((first + t * stride, size) for t in range(tokens))


Role = Value | Touch


@dataclasses.dataclass(frozen=True)
class Operand:
    """One operand word: ``bits`` low bits, the others must be zero.

    default: its value where a program leaves it out; None: it must be given.
    """

    name: str
    bits: int
    meaning: str
    role: Role
    default: int | None = None

    @property
    def selector(self) -> type[IntEnum] | None:
        return self.role.selector if isinstance(self.role, Value) else None

    @property
    def access(self) -> str:
        """ "reads rows" and the like; "" where the operand names no place."""
        if isinstance(self.role, Value):
            return ""
        return f"{'writes' if self.role.writes else 'reads'} {self.role.memory}"

    def text(self, value: int) -> str:
        """Writes ``value`` as a text program does: a selector's name, or a number."""
        if self.selector is not None and value in tuple(self.selector):
            return self.selector(value).name
        hexadecimal = isinstance(self.role, Value) and self.role.hexadecimal
        return f"{value:#x}" if hexadecimal else str(value)


@dataclasses.dataclass(frozen=True)
class Access:
    """The places a command touches: (memory, writes, spans) of each operand that names places."""

    touched: tuple[tuple[str, bool, tuple[Span, ...]], ...]

    def _of(self, memory: str, writes: bool) -> tuple[Span, ...]:
        chosen = [spans for name, kind, spans in self.touched if (name, kind) == (memory, writes)]
        return tuple(span for spans in chosen for span in spans)

    def reads(self, memory: str) -> tuple[Span, ...]:
        return self._of(memory, False)

    def writes(self, memory: str) -> tuple[Span, ...]:
        return self._of(memory, True)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command: its unit, what it does, its operands.

    in_place: an element of the destination depends on the same element of a source alone, so that
    both may be the same places. needs: a unit that the machine has, in addition to the command's
    own; None: no other.
    """

    opcode: IntEnum
    unit: Any  # a member of the enumeration of units
    summary: str
    operands: tuple[Operand, ...]
    in_place: bool = False
    needs: Any = None

    def known(self, units: int) -> bool:
        """Whether a machine of the first ``units`` units has the command."""
        return max(self.unit, self.unit if self.needs is None else self.needs) < units

    def position(self, name: str) -> int:
        """Index of an operand among the command's."""
        return [operand.name for operand in self.operands].index(name)

    @property
    def defaults(self) -> dict[str, int]:
        """Operands that may be left out."""
        return {each.name: each.default for each in self.operands if each.default is not None}

    def access(self, operands: Operands, machine: Any) -> Access:
        """Places that the command reads and writes when nothing is wrong with it."""
        return Access(
            tuple(
                (role.memory, role.writes, role.spans(operands[each.name], operands, machine))
                for each in self.operands
                if isinstance(role := each.role, Touch)
            )
        )

    def refusal(self, operands: Operands, machine: Any, places: Mapping[str, int]) -> str | None:
        """Field, range and value of the first operand that no such machine accepts; None: of none.

        places: how many each memory has. Values come first, then places that leave their memory.
        """
        for operand in self.operands:
            value = operands[operand.name]
            if isinstance(operand.role, Value) and (
                wanted := operand.role.refusal(value, operand.bits, machine)
            ):
                return f"{self.opcode.name}.{operand.name} must be {wanted}, not {value}"
        for operand in self.operands:
            if not isinstance(operand.role, Touch):
                continue
            value = operands[operand.name]
            held = places[operand.role.memory]
            end = max(
                (sum(span) for span in operand.role.spans(value, operands, machine)), default=0
            )
            if end > held:
                name, top = f"{self.opcode.name}.{operand.name}", held - (end - value)
                if top < 0:
                    most = f"0..{held} {operand.role.memory}"
                    return f"{name} must take {most}, not {end - value}"
                return f"{name} must be 0..{top}, not {value}"
        return None

    def overlap(self, operands: Operands, machine: Any, memory: str) -> str | None:
        """Says why the result depends on how hardware orders its accesses; None: it does not.

        ``in_place``: a source may be the destination where token t of both is the same place. All
        other sources and the destination must be disjoint. So must be the destination's tokens.
        """
        access = self.access(operands, machine)
        writes = access.writes(memory)
        for t, one in enumerate(writes):
            if any(_meet(one, other) for other in writes[t + 1 :]):
                return "tokens of the destination overlap"
        tokens = max(len(writes), 1)
        for k, source in enumerate(access.reads(memory)):
            for t, one in enumerate(writes):
                same = self.in_place and k % tokens == t and source[0] == one[0]
                if _meet(source, one) and not same:
                    return "source and destination overlap"
        return None


def _meet(first: Span, second: Span) -> bool:
    return first[0] < second[0] + second[1] and second[0] < first[0] + first[1]


class CommandSet:
    """The commands of an accelerator and their words.

    units: every unit, in order of number. ValueError: an opcode twice, a role that names no operand
    of its command, a command without places, more operands than there are words.
    """

    def __init__(
        self,
        commands: Iterable[Command],
        units: type[IntEnum],
        words: int = 16,
        first_operand: int = 4,
        after_bits: int = 16,
    ) -> None:
        self.units, self.words, self.first_operand = units, words, first_operand
        self.after_bits = after_bits
        self.commands: dict[Any, Command] = {}  # by opcode
        for command in commands:
            _check(command, words - first_operand)
            if command.opcode in self.commands:
                raise ValueError(f"{command.opcode.name} is in the table twice")
            self.commands[command.opcode] = command

    def find(self, word: int) -> Command | None:
        """The command whose first word this is; None: unknown opcode."""
        return self.commands.get(word & 0xFF)

    def encode(
        self, opcode: IntEnum, tag: int, after: Mapping[Any, int], operands: Operands
    ) -> list[int]:
        """The words of a command.

        ValueError: a tag, wait or operand out of range, an operand that the command does not have
        or that is missing.
        """
        command = self.commands[opcode]
        names = [operand.name for operand in command.operands]
        odd = sorted(set(operands) ^ set(names))
        if odd:
            raise ValueError(f"{opcode.name} takes {', '.join(names)}; wrong or missing: {odd}")
        words = [0] * self.words
        if not 0 <= tag < 1 << 16:
            raise ValueError(f"tag must be 0..65535, not {tag}")
        words[0] = int(opcode) | tag << 16
        for unit, count in after.items():
            word, place = self.wait(unit)
            words[word] |= count % (1 << self.after_bits) << place
        for position, operand in enumerate(command.operands):
            value = int(operands[operand.name])
            if not 0 <= value < 1 << operand.bits:
                top = (1 << operand.bits) - 1
                raise ValueError(f"{opcode.name}.{operand.name} must be 0..{top}, not {value}")
            words[self.first_operand + position] = value
        return words

    def decode(self, words: Sequence[int]) -> tuple[Any, int, dict[Any, int], dict[str, int]]:
        """(opcode, tag, waits, operands): inverse of ``encode``. ValueError: not a command."""
        if len(words) != self.words:
            raise ValueError(f"a command has {self.words} words, not {len(words)}")
        for position, word in enumerate(words):
            if not 0 <= word < 1 << 32:
                raise ValueError(f"word {position} must be 0..{(1 << 32) - 1}, not {word}")
        command = self.find(words[0])
        if command is None or words[0] >> 8 & 0xFF:
            raise ValueError(f"no command begins with {words[0]:#010x}")
        opcode = command.opcode
        waits = sum(word << 32 * n for n, word in enumerate(words[1 : self.first_operand]))
        if waits >> self.after_bits * len(self.units):
            raise ValueError(f"{opcode.name}: the bits after the last wait must be zero")
        after = {}
        for unit in self.units:
            word, place = self.wait(unit)
            after[unit] = words[word] >> place & ((1 << self.after_bits) - 1)
        operands = {}
        known = command.operands
        for position in range(self.words - self.first_operand):
            value = words[self.first_operand + position]
            if position < len(known):
                operand = known[position]
                if value >> operand.bits:
                    raise ValueError(f"{opcode.name}.{operand.name} is {value:#x}: too wide")
                operands[operand.name] = value
            elif value:
                raise ValueError(f"{opcode.name}: operand word {position} must be zero")
        return opcode, words[0] >> 16, after, operands

    def wait(self, unit: int) -> tuple[int, int]:
        """(word, lowest bit) of the wait for a unit."""
        word, place = divmod(self.after_bits * unit, 32)
        return 1 + word, place


def _check(command: Command, words: int) -> None:
    name = command.opcode.name
    if len(command.operands) > words:
        raise ValueError(f"{name} must have at most {words} operands")
    names = {operand.name for operand in command.operands}
    touches = [each.role for each in command.operands if isinstance(each.role, Touch)]
    if not touches:
        raise ValueError(f"{name} touches nothing: no operand has the role of a place")
    for role in touches:
        used = {role.stride, role.tokens, *(each[0] for each in (role.when, role.unless) if each)}
        if missing := used - names - {None}:
            raise ValueError(f"{name} has no operand {', '.join(sorted(map(str, missing)))}")
