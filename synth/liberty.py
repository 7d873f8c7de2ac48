"""A Liberty library as area reports need it: areas, flip-flops, the NAND2 and the plain flop."""

import dataclasses
import gzip
import itertools
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|[01]|[()!&|^'*+])")
_STATEMENT = re.compile(
    r"^\s*(cell|ff|pin|pg_pin|area|direction|function|next_state|clear|preset)\b\s*[(:]\s*(.*)$"
)
# Comments and strings, also those that the end of the text cuts.
_NO_CODE = re.compile(r'/\*.*?(?:\*/|\Z)|//[^\n]*|"(?:\\.|[^"\\])*(?:"|\Z)', re.S)


class LibraryError(ValueError):
    """A Liberty file that cannot be read or lacks what area reports need."""


@dataclasses.dataclass
class Cell:
    """``function`` is of the first output; ``next_state`` is empty for all but flip-flops."""

    name: str
    area: float = 0.0
    inputs: list[str] = dataclasses.field(default_factory=list)
    function: str = ""
    is_flip_flop: bool = False
    next_state: str = ""
    has_clear_or_preset: bool = False


def read_text(path: Path) -> str:
    """Text of a Liberty file, gzip or plain; LibraryError in one line."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", "replace")
    except FileNotFoundError:
        raise LibraryError(f"{path}: no such Liberty file") from None
    except (EOFError, zlib.error) as error:
        raise LibraryError(f"{path}: the gzip file is damaged: {error}") from None
    except OSError as error:
        raise LibraryError(f"{path}: {error.strerror or error}") from None


def symbols(function: str) -> list[str]:
    """Names and marks of a Boolean function; LibraryError for any other character."""
    tokens, at = [], 0
    while at < len(function.rstrip()):
        found = _TOKEN.match(function, at)
        if found is None:
            raise LibraryError(f"function {function!r} cannot be read")
        tokens.append(found[1])
        at = found.end()
    return tokens


def evaluate(function: str, values: dict[str, bool]) -> bool:
    """Value of a Liberty Boolean function; KeyError for a name without a value.

    Binding, tightest first: ``'`` and ``!``, ``^``, ``&`` (also ``*`` and juxtaposition), ``|``
    (also ``+``).
    """
    tokens = [*symbols(function), "end"]
    at = 0

    def primary() -> bool:
        nonlocal at
        token = tokens[at]
        at += 1
        if token == "!":
            return not primary()
        if token == "(":
            value = disjunction()
            if tokens[at] != ")":
                raise LibraryError(f"function {function!r} lacks a parenthesis")
            at += 1
        elif token in "01":
            value = token == "1"
        else:
            value = values[token]
        while tokens[at] == "'":
            at += 1
            value = not value
        return value

    def exclusive() -> bool:
        nonlocal at
        value = primary()
        while tokens[at] == "^":
            at += 1
            value ^= primary()
        return value

    def conjunction() -> bool:
        nonlocal at
        value = exclusive()
        while tokens[at] not in ("|", "+", ")", "end"):
            if tokens[at] in "&*":
                at += 1
            value &= exclusive()
        return value

    def disjunction() -> bool:
        nonlocal at
        value = conjunction()
        while tokens[at] in ("|", "+"):
            at += 1
            value |= conjunction()
        return value

    return disjunction()


def _cells_of(text: str) -> Iterable[Cell]:
    """One pass over the statements, in the layout and order that every known library has."""
    cell: Cell | None = None
    pin = ""
    # A statement ends at a brace or semicolon, so each gets a line of its own.
    for line in re.sub(r"([{};])", r"\1\n", text).splitlines():
        found = _STATEMENT.match(line)
        if not found:
            continue
        key = found[1]
        value = found[2].rstrip("{; \t").rstrip(")" if key in ("cell", "ff", "pin") else "").strip()
        value = value.strip('"').strip()
        if key == "cell":
            if cell is not None:
                yield cell
            cell, pin = Cell(value), ""
        elif cell is None:
            continue
        elif key == "area" and not cell.area:
            try:
                cell.area = float(value)
            except ValueError:
                raise LibraryError(f"{cell.name}: area must be a number, not {value!r}") from None
        elif key == "ff":
            cell.is_flip_flop = True
        elif key == "pin":
            pin = value
        elif key == "pg_pin":
            pin = ""
        elif key == "direction" and value == "input" and pin:
            cell.inputs.append(pin)
        elif key == "function" and not cell.function:
            cell.function = value
        elif key == "next_state" and not cell.next_state:
            cell.next_state = value
        elif key in ("clear", "preset"):
            cell.has_clear_or_preset = True
    if cell is not None:
        yield cell


@dataclasses.dataclass(frozen=True)
class Library:
    """Cells of one or more Liberty files, by name."""

    name: str
    cells: dict[str, Cell]

    @property
    def nand2(self) -> Cell:
        """The smallest cell that is a two-input NAND; its area is one gate equivalent."""

        def is_nand2(cell: Cell) -> bool:
            if len(cell.inputs) != 2 or not cell.function or cell.is_flip_flop:
                return False
            rows = itertools.product((False, True), repeat=2)
            try:
                return all(
                    evaluate(cell.function, dict(zip(cell.inputs, row, strict=True)))
                    is (not all(row))
                    for row in rows
                )
            except KeyError:
                return False

        return self._smallest(filter(is_nand2, self.cells.values()), "two-input NAND")

    @property
    def flip_flop(self) -> Cell:
        """The smallest flip-flop without clear, preset, scan or enable."""
        plain = (
            cell
            for cell in self.cells.values()
            if cell.is_flip_flop
            and not cell.has_clear_or_preset
            and re.fullmatch(r"!?\s*\(?\s*!?\w+\s*\)?", cell.next_state)
        )
        return self._smallest(plain, "plain flip-flop")

    def _smallest(self, cells: Iterable[Cell], what: str) -> Cell:
        found = min((cell for cell in cells if cell.area), key=lambda c: c.area, default=None)
        if found is None:
            raise LibraryError(f"{self.name}: the library has no {what}")
        return found


def _check_end(name: str, text: str) -> None:
    """LibraryError where ``text`` ends within a group, a string or a comment."""
    code = _NO_CODE.sub("", text)
    still_open = code.count("{") - code.count("}")
    if still_open > 0:
        raise LibraryError(f"{name}: the text ends in the middle: {still_open} groups lack a }}")


def parse(name: str, texts: Iterable[str]) -> Library:
    """Cells of Liberty ``texts`` together; LibraryError when there is none, or one text is cut."""
    texts = tuple(texts)
    for text in texts:
        _check_end(name, text)
    cells = {cell.name: cell for text in texts for cell in _cells_of(text)}
    if not cells:
        raise LibraryError(f"{name}: no cells found; is it a Liberty file?")
    return Library(name, cells)
