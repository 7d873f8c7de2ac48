"""Programs of the KLLM accelerator: operands to words, waits from hazards, text, and back.

``Assembler`` has a method per command of golden.kllm.isa and finds the waits of each command. A
command waits for every earlier command of another unit with which it has a hazard. There is a
hazard if the earlier one writes what it touches (rows of the vector memory, slots), or reads what
it writes. Commands of one unit keep their order by themselves.

``python -m golden.kllm.assembler`` does the same with text files:

    # one command per line, names and values of golden.kllm.isa; "0x" and names of selectors work
    LOAD address=0 rows=2 dst=0
    ACTIVATION_CODEBOOK src=0
    QUANTIZE src=16 length=64 slot=1 k_max=1 k_min=1 norm=RMS epsilon=0x3727c5ac
    READ_SLOT slot=1 tag=7 after=QUANTIZE:2

``tag`` is by default the line's number among the commands. ``after=UNIT:count,...`` (or
``after=none``) replaces the waits that the assembler finds.
"""

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from golden import command
from golden.attention.format import cap_operand
from golden.config import ConfigError
from golden.files import check_output, claimed, replacing
from golden.isa import Access
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.isa import (
    AFTER_BITS,
    COMMAND_WORDS,
    COMMANDS,
    ROW_ELEMENTS,
    Binary,
    Codebook,
    Function,
    Index,
    MatmulMode,
    Opcode,
    Outliers,
    Scalar,
    Statistics,
    Unit,
    decode,
    encode,
    row_count,
)
from golden.paging.format import Kv

_NO_OUTLIERS, _NO_STATISTICS = Outliers(), Statistics()
_FAR = 1 << AFTER_BITS - 2  # waits are compared by signed distance: none may grow older than this


class AssemblyError(ConfigError):
    """A program that cannot be; one line that names place, field, range and value."""


@dataclasses.dataclass(frozen=True)
class Vector:
    """``tokens`` vectors of ``length`` elements in the vector memory, ``stride`` rows apart."""

    row: int
    length: int
    tokens: int = 1
    stride: int = 0

    @property
    def rows(self) -> int:
        """Counts the rows from the first one up to, and not including, the one after the last."""
        return self.stride * (self.tokens - 1) + row_count(self.length)

    def token(self, t: int) -> "Vector":
        return Vector(self.row + t * self.stride, self.length)

    def part(self, first: int, length: int, tokens: int = 1, stride: int = 0) -> "Vector":
        """Vectors inside this one, beginning at element ``first``, a multiple of 16."""
        if first % ROW_ELEMENTS:
            raise AssemblyError(f"part must begin at a multiple of {ROW_ELEMENTS}, not {first}")
        return Vector(self.row + first // ROW_ELEMENTS, length, tokens, stride)


@dataclasses.dataclass(frozen=True)
class Slots:
    """``tokens`` consecutive slots."""

    first: int
    tokens: int = 1


@dataclasses.dataclass(frozen=True)
class Based:
    """An address of weights to which the base of WEIGHT_BASE is added."""

    address: int


def accesses(opcode: Opcode, operands: Mapping[str, int], config: MachineConfig) -> Access:
    """Rows and slots that a command reads and writes when nothing is wrong with it."""
    return COMMANDS[opcode].access(operands, config)


def overlap(opcode: Opcode, operands: Mapping[str, int], config: MachineConfig) -> str | None:
    """Says why a command's result depends on how hardware orders its rows; None: it does not."""
    return COMMANDS[opcode].overlap(operands, config, "rows")


def _places(config: MachineConfig) -> dict[str, int]:
    return {"rows": config.vector_rows, "slots": config.slots, "choices": config.batch}


def _refusal(
    opcode: Opcode, operands: Mapping[str, int], after: Mapping[Unit, int], config: MachineConfig
) -> str | None:
    """Why no program has such a command; None: nothing is wrong with it."""
    command = COMMANDS[opcode]
    named = [command.unit, *(unit for unit, count in after.items() if count)]
    if command.needs is not None:
        named.append(command.needs)
    if max(named) >= config.units:
        return f"{opcode.name}: the machine has no unit {max(named).name} (batch=0)"
    refused = command.refusal(operands, config, _places(config))
    if refused is None and (reason := overlap(opcode, operands, config)):
        return f"{opcode.name}: {reason}"
    return refused


class _Pool:
    """Intervals of 0..size - 1, next fit: what was freed last is reused last."""

    def __init__(self, size: int, what: str):
        self.used = np.zeros(size, dtype=bool)
        self.what, self.next = what, 0

    def take(self, count: int) -> int:
        size = len(self.used)
        for start, end in ((self.next, size - count + 1), (0, min(self.next, size - count + 1))):
            while start < end:
                taken = self.used[start : start + count].nonzero()[0]
                if not len(taken):
                    self.used[start : start + count] = True
                    self.next = (start + count) % size
                    return start
                start += int(taken[-1]) + 1  # every place up to there holds a taken one
        free = size - int(self.used.sum())
        raise AssemblyError(f"no {count} {self.what} in a row are free: {free} of {size} are")

    def give(self, first: int, count: int) -> None:
        if not self.used[first : first + count].all():
            raise AssemblyError(f"{self.what} {first}..{first + count - 1} are not all taken")
        self.used[first : first + count] = False


class _Hazards:
    """The number of commands of each unit that must be complete before a row (or slot) is safe."""

    def __init__(self, size: int):
        self.written = np.zeros((len(Unit), size), dtype=np.int64)
        self.read = np.zeros((len(Unit), size), dtype=np.int64)

    def needed(self, reads: Iterable[tuple[int, int]], writes: Iterable[tuple[int, int]]):
        needed = np.zeros(len(Unit), dtype=np.int64)
        for table, spans in ((self.written, (*reads, *writes)), (self.read, writes)):
            for first, count in spans:
                part = table[:, first : first + count]
                if part.size:
                    needed = np.maximum(needed, part.max(axis=1))
        return needed

    def note(
        self,
        unit: Unit,
        number: int,
        reads: Iterable[tuple[int, int]],
        writes: Iterable[tuple[int, int]],
    ) -> None:
        for table, spans in ((self.read, reads), (self.written, writes)):
            for first, count in spans:
                table[unit, first : first + count] = number


def _row(place: "Vector | int") -> int:
    return place.row if isinstance(place, Vector) else place


@dataclasses.dataclass(frozen=True)
class Attending:
    """The rules by which an ATTEND weighs tokens.

    window : most tokens that it sees, the latest; 0: all
    cap : of its scores; 0: none
    sinks : of all query heads, as ``MachineConfig.sink_rows`` has them; None: none
    """

    window: int = 0
    cap: float = 0.0
    sinks: Vector | None = None


class Assembler:
    """Commands, one method each; operands by keyword, a row or a ``Vector`` where rows are meant.

    config: the machine. Each method returns the command's tag, which is its number if not given.
    ``part`` ends a part of the program. Commands that follow continue the program, with the same
    counters of commands, after the host has done something. AssemblyError: an operand out of
    range; rows or slots that the machine does not have; no room; source and destination overlap.
    The machine alone refuses what depends on several operands, such as k_max + k_min >= length.
    """

    def __init__(self, config: MachineConfig):
        self.config = config
        self.parts: list[list[int]] = [[]]
        self.issued = dict.fromkeys(Unit, 0)
        self._known = np.zeros((len(Unit), len(Unit)), dtype=np.int64)  # waits so far, by unit
        self._hazards = {memory: _Hazards(size) for memory, size in _places(config).items()}
        self._rows = _Pool(config.vector_rows, "rows")
        self._slots = _Pool(config.slots, "slots")

    # Room.

    def vector(self, length: int, tokens: int = 1) -> Vector:
        """Room for ``tokens`` consecutive vectors of ``length`` elements."""
        stride = row_count(length)
        return Vector(self._rows.take(stride * tokens), length, tokens, stride)

    def free(self, *places: Vector | Slots) -> None:
        """Give room back; what still runs is waited for when the room is written again."""
        for place in places:
            if isinstance(place, Slots):
                self._slots.give(place.first, place.tokens)
            else:
                self._rows.give(place.row, place.rows)

    def slots(self, tokens: int = 1) -> Slots:
        """Room for ``tokens`` tokens in slots."""
        return Slots(self._slots.take(tokens), tokens)

    # Words.

    def words(self) -> list[int]:
        """All parts, one after the other."""
        return [word for part in self.parts for word in part]

    def part(self) -> None:
        """Ends a part: the host sends what follows when it has seen all statuses of this part."""
        for unit in Unit:
            self._known[unit] = list(self.issued.values())
        self.parts.append([])

    def emit(
        self,
        opcode: Opcode,
        operands: dict[str, int],
        tag: int | None = None,
        after: dict[Unit, int] | None = None,
        check: bool = True,
    ) -> int:
        """Append a command; waits are found unless ``after`` gives them.

        check: refuse operands that the machine refuses by themselves, and operands whose rows
        overlap in a way that hardware may order differently.
        """
        unit = COMMANDS[opcode].unit
        operands = COMMANDS[opcode].defaults | {
            name: int(value) for name, value in operands.items()
        }
        if tag is None:
            tag = sum(self.issued.values()) % (1 << 16)
        try:
            encode(opcode, tag, {}, operands)
        except ValueError as error:
            raise AssemblyError(str(error)) from None
        if check and (reason := _refusal(opcode, operands, after or {}, self.config)):
            raise AssemblyError(reason)
        access = accesses(opcode, operands, self.config)
        if after is None:
            needed = np.zeros(len(Unit), dtype=np.int64)
            for memory, hazards in self._hazards.items():
                found = hazards.needed(access.reads(memory), access.writes(memory))
                needed = np.maximum(needed, found)
            oldest = np.array(list(self.issued.values())) - _FAR
            self._known[unit] = np.maximum(self._known[unit], np.maximum(needed, oldest))
            # A unit's own order needs no wait.
            self._known[unit, unit] = max(self.issued[unit] - _FAR, 0)
            after = {other: int(self._known[unit, other]) for other in Unit}
        self.parts[-1] += encode(opcode, tag, after, operands)
        self.issued[unit] += 1
        number = self.issued[unit]
        for memory, hazards in self._hazards.items():
            hazards.note(unit, number, access.reads(memory), access.writes(memory))
        return tag

    # Commands.

    def load(self, *, address: int, dst: Vector | int, rows: int | None = None) -> int:
        if rows is None:
            assert isinstance(dst, Vector)
            rows = dst.rows
        return self.emit(Opcode.LOAD, {"address": address, "rows": rows, "dst": _row(dst)})

    def load_at(
        self, *, address: int, rows: int, index: Index, limit: int, dst: Vector, place: int = 0,
        rank: int = 0,
    ) -> int:  # fmt: skip
        """``rows``: of an entry; ``dst`` gives tokens and stride; ``place``: of the first token."""
        return self.emit(
            Opcode.LOAD_AT,
            {
                "address": address, "rows": rows, "index": index, "limit": limit, "dst": dst.row,
                "stride": dst.stride, "tokens": dst.tokens, "place": place, "rank": rank,
            },
        )  # fmt: skip

    def activation_codebook(self, *, src: Vector | int) -> int:
        return self.emit(Opcode.ACTIVATION_CODEBOOK, {"src": _row(src)})

    def quantize(
        self,
        *,
        src: Vector,
        slot: Slots | int,
        outliers: Outliers = _NO_OUTLIERS,
        statistics: Statistics = _NO_STATISTICS,
    ) -> int:
        return self.emit(
            Opcode.QUANTIZE,
            {
                "src": src.row, "stride": src.stride, "tokens": src.tokens, "length": src.length,
                "slot": _slot(slot, src.tokens), "k_max": outliers.k_max, "k_min": outliers.k_min,
                "mode": outliers.mode, "thresholds": outliers.thresholds,
                "norm": statistics.norm, "epsilon": statistics.epsilon,
            },
        )  # fmt: skip

    def quantize_integer(self, *, src: Vector, slot: Slots | int) -> int:
        return self.emit(
            Opcode.QUANTIZE_INTEGER,
            {
                "src": src.row, "stride": src.stride, "tokens": src.tokens, "length": src.length,
                "slot": _slot(slot, src.tokens),
            },
        )  # fmt: skip

    def lane_codebook(self, *, src: Vector | int, kind: Codebook = Codebook.KMEANS) -> int:
        return self.emit(Opcode.LANE_CODEBOOK, {"src": _row(src), "kind": kind})

    def matmul(
        self,
        *,
        weights: int | Based,
        dst: Vector,
        length: int,
        slot: Slots | int = 0,
        src: Vector | None = None,
        mode: MatmulMode = MatmulMode.KMEANS,
        fold_norm: bool = False,
    ) -> int:
        """``dst`` gives outputs, tokens and stride; ``src`` the tokens of DIRECT."""
        based = isinstance(weights, Based)
        address = weights.address if isinstance(weights, Based) else weights
        operands = {
            "mode": mode, "slot": _slot(slot, dst.tokens), "tokens": dst.tokens, "length": length,
            "outputs": dst.length, "weights": address, "dst": dst.row, "stride": dst.stride,
            "fold_norm": int(fold_norm), "based": int(based),
        }  # fmt: skip
        if src is not None:
            operands |= {"src": src.row, "src_stride": src.stride}
        return self.emit(Opcode.MATMUL, operands)

    def weight_base(self, *, src: Vector | int) -> int:
        return self.emit(Opcode.WEIGHT_BASE, {"src": _row(src)})

    def binary(self, *, op: Binary, a: Vector, b: Vector, dst: Vector) -> int:
        """``dst`` gives tokens and length; an operand of one token is repeated for all."""
        return self.emit(
            Opcode.BINARY,
            {
                "op": op, "a": a.row, "a_stride": a.stride if a.tokens > 1 else 0,
                "b": b.row, "b_stride": b.stride if b.tokens > 1 else 0,
                "dst": dst.row, "dst_stride": dst.stride, "tokens": dst.tokens,
                "length": dst.length,
            },
        )  # fmt: skip

    def axpy(
        self,
        *,
        a: Vector,
        b: Vector,
        dst: Vector,
        immediate: int | None = None,
        slot: Slots | int = 0,
    ) -> int:
        """Scales by an FP16 word, ``immediate``; without it, by the negated mean of the slot."""
        scalar = Scalar.NEGATED_MEAN if immediate is None else Scalar.IMMEDIATE
        return self.emit(
            Opcode.AXPY,
            {
                "scalar": scalar, "immediate": immediate or 0, "slot": _slot(slot, 1),
                "a": a.row, "b": b.row, "dst": dst.row, "length": dst.length,
            },
        )  # fmt: skip

    def rotary(
        self, *, src: Vector, dst: Vector, cos: Vector, sin: Vector, heads: int, head_size: int
    ) -> int:
        return self.emit(
            Opcode.ROTARY,
            {
                "src": src.row, "dst": dst.row, "cos": cos.row, "sin": sin.row, "heads": heads,
                "head_size": head_size,
            },
        )  # fmt: skip

    def softmax(self, *, src: Vector, dst: Vector) -> int:
        return self.emit(
            Opcode.SOFTMAX,
            {
                "src": src.row, "stride": src.stride, "dst": dst.row, "dst_stride": dst.stride,
                "tokens": src.tokens, "length": src.length,
            },
        )  # fmt: skip

    def function(self, *, function: Function, src: Vector, dst: Vector) -> int:
        return self.emit(
            Opcode.FUNCTION,
            {"function": function, "src": src.row, "dst": dst.row, "length": dst.length},
        )

    def function_codebook(self, *, src: Vector | int, table: int = 0) -> int:
        return self.emit(Opcode.FUNCTION_CODEBOOK, {"table": table, "src": _row(src)})

    def activate(self, *, function: Function, slot: Slots | int, dst: Vector) -> int:
        return self.emit(
            Opcode.ACTIVATE,
            {
                "function": function, "slot": _slot(slot, 1), "dst": dst.row,
                "length": dst.length,
            },
        )  # fmt: skip

    def glu(
        self, *, function: Function, slot_a: Slots | int, slot_b: Slots | int, dst: Vector
    ) -> int:
        return self.emit(
            Opcode.GLU,
            {
                "function": function, "slot_a": _slot(slot_a, 1), "slot_b": _slot(slot_b, 1),
                "dst": dst.row, "length": dst.length,
            },
        )  # fmt: skip

    def append(self, *, src: Vector, layer: int, kv: Kv, place: int = 0) -> int:
        """``src`` gives tokens and stride; ``place``: that of the first token."""
        return self.emit(
            Opcode.APPEND,
            {
                "src": src.row, "stride": src.stride, "tokens": src.tokens, "layer": layer,
                "kv": kv, "place": place,
            },
        )  # fmt: skip

    def attend(
        self, *, src: Vector, dst: Vector, layer: int, heads: int, place: int = 0,
        rules: Attending = Attending(),
    ) -> int:  # fmt: skip
        """``src`` gives tokens; ``place``: that of the first token."""
        sinks = rules.sinks
        return self.emit(
            Opcode.ATTEND,
            {
                "src": src.row, "stride": src.stride, "dst": dst.row, "dst_stride": dst.stride,
                "tokens": src.tokens, "layer": layer, "heads": heads, "place": place,
                "window": rules.window, "cap": cap_operand(rules.cap),
                "sinks": sinks.row if sinks else 0, "has_sinks": int(sinks is not None),
            },
        )  # fmt: skip

    def read(self, *, src: Vector | int, rows: int | None = None) -> int:
        if rows is None:
            assert isinstance(src, Vector)
            rows = src.rows
        return self.emit(Opcode.READ, {"src": _row(src), "rows": rows})

    def read_slot(self, *, slot: Slots | int) -> int:
        return self.emit(Opcode.READ_SLOT, {"slot": _slot(slot, 1)})

    def top_k(
        self, *, src: Vector, first: int = 0, place: int = 0, begin: bool = True, end: bool = True,
        route: int = 0,
    ) -> int:  # fmt: skip
        """``src`` gives tokens, stride and length; ``first``: id of a token's first element.

        place: that of the first token; route: elements that stay as choices.
        """
        return self.emit(
            Opcode.TOP_K,
            {
                "src": src.row, "stride": src.stride, "tokens": src.tokens, "length": src.length,
                "first": first, "place": place, "begin": int(begin), "end": int(end),
                "route": route,
            },
        )  # fmt: skip


def _slot(slot: Slots | int, tokens: int) -> int:
    if isinstance(slot, int):
        return slot
    if slot.tokens != tokens:
        raise AssemblyError(f"{tokens} slots needed, not {slot.tokens}")
    return slot.first


# Text.


def _value(opcode: Opcode, name: str, text: str) -> int:
    named = [each.selector for each in COMMANDS[opcode].operands if each.name == name]
    selector = named[0] if named else None
    if selector is not None and text.upper() in selector.__members__:
        return int(selector[text.upper()])
    try:
        return int(text, 0)
    except ValueError:
        names = "" if selector is None else f" or one of {', '.join(selector.__members__)}"
        raise AssemblyError(
            f"{opcode.name}.{name} must be an integer{names}, not {text!r}"
        ) from None


def _after(text: str) -> dict[Unit, int]:
    after: dict[Unit, int] = {}
    for item in text.split(",") if text.lower() != "none" else ():
        name, colon, count = item.partition(":")
        if name.upper() not in Unit.__members__ or not colon or not count.isdecimal():
            units = ", ".join(Unit.__members__)
            raise AssemblyError(f"after must be UNIT:count with a unit of {units}, not {item!r}")
        if int(count) >> AFTER_BITS:
            raise AssemblyError(f"after must be 0..{(1 << AFTER_BITS) - 1}, not {count}")
        after[Unit[name.upper()]] = int(count)
    return after


def assemble(text: str, config: MachineConfig, name: str = "line") -> list[int]:
    """Words of a text program (see the module). AssemblyError: ``name:line: what is wrong``."""
    assembler = Assembler(config)
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        try:
            _assemble_line(assembler, fields)
        except AssemblyError as error:
            raise AssemblyError(f"{name}:{number}: {error}") from None
    return assembler.words()


def _assemble_line(assembler: Assembler, fields: list[str]) -> None:
    if fields[0].upper() not in Opcode.__members__:
        known = ", ".join(Opcode.__members__)
        raise AssemblyError(f"command must be one of {known}, not {fields[0]!r}")
    opcode = Opcode[fields[0].upper()]
    operands: dict[str, int] = {}
    tag, after = None, None
    for field in fields[1:]:
        key, equals, text = field.partition("=")
        if not equals:
            raise AssemblyError(f"operand must be name=value, not {field!r}")
        if key == "after":
            after = _after(text)
        elif key == "tag":
            tag = _value(opcode, key, text)
        elif key in operands:
            raise AssemblyError(f"{opcode.name}.{key} is given twice")
        else:
            operands[key] = _value(opcode, key, text)
    assembler.emit(opcode, operands, tag, after)


def disassemble(words: Sequence[int], config: MachineConfig) -> str:
    """A text program that ``assemble`` makes these words of, for the same machine.

    AssemblyError: they are no commands, or ``assemble`` refuses one of them.
    """
    lines = []
    for first in range(0, len(words), COMMAND_WORDS):
        try:
            opcode, tag, after, operands = decode(list(words[first : first + COMMAND_WORDS]))
        except ValueError as error:
            raise AssemblyError(f"word {first}: {error}") from None
        if reason := _refusal(opcode, operands, after, config):
            raise AssemblyError(f"word {first}: {reason}")
        shown = []
        for operand in COMMANDS[opcode].operands:
            shown.append(f"{operand.name}={operand.text(operands[operand.name])}")
        waits = ",".join(f"{unit.name}:{count}" for unit, count in after.items() if count)
        lines.append(f"{opcode.name} {' '.join(shown)} tag={tag} after={waits or 'none'}\n")
    return "".join(lines)


def to_hex(words: Iterable[int]) -> str:
    """One word of 32 bits per line, as $readmemh reads it."""
    return "".join(f"{word:08x}\n" for word in words)


def from_hex(text: str) -> list[int]:
    """Inverse of ``to_hex``; ``//`` begins a comment. AssemblyError names the line."""
    words = []
    for number, line in enumerate(text.splitlines(), 1):
        for item in line.partition("//")[0].split():
            try:
                word = int(item, 16)
            except ValueError:
                word = -1
            if not 0 <= word < 1 << 32:
                raise AssemblyError(f"line {number}: a word must be 8 hex digits, not {item!r}")
            words.append(word)
    return words


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m golden.kllm.assembler", description=__doc__.splitlines()[0]
    )
    parser.add_argument("file", help="text program, or hex words with --disassemble; - is stdin")
    parser.add_argument("-d", "--disassemble", action="store_true", help="hex words to text")
    parser.add_argument("--config", default="table1", help=f"one of {', '.join(MACHINES)}")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("-o", "--output", type=Path, help="file to write, stdout if none")
    options = parser.parse_args(arguments)
    try:
        if options.config not in MACHINES:
            raise ConfigError(f"--config must be one of {', '.join(MACHINES)}")
        config = MachineConfig.parse(MACHINES[options.config], options.set)
        assert isinstance(config, MachineConfig)
        name = options.file
        if options.output is not None:
            check_output(options.output)
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
        shown = "stdin" if name == "-" else name
        words = from_hex(text) if options.disassemble else assemble(text, config, shown)
        if not words:
            raise AssemblyError(f"{shown}: the program has no command")
        made = disassemble(words, config) if options.disassemble else to_hex(words)
        if options.output is None:
            sys.stdout.write(made)
        else:
            with claimed(options.output), replacing(options.output) as part:
                part.write_text(made)
    except UnicodeDecodeError as error:
        print(f"assembler: {options.file} is not text: byte {error.start}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"assembler: {error.filename or options.file}: {error.strerror}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"assembler: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command.run("golden.kllm.assembler", main)
