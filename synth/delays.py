"""Delay tables of Liberty files (NLDM): arcs, setup times, pin capacitances, and the FO4 delay.

Units are ns and pF, whatever the file has. Only the cells that are requested are read: the files
hold hundreds of cells and megabytes of tables.
"""

import bisect
import dataclasses
import fnmatch
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from synth.liberty import Cell, Library, LibraryError, evaluate

FALL, RISE = 0, 1
_TOKEN = re.compile(r'"((?:\\.|[^"\\])*)"|([{}();:,])|([^\s{}();:,"\\]+)|(\n)', re.S)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_CELL = re.compile(r"^[ \t]*cell\s*\(\s*\"?([\w.$]+)\"?\s*\)", re.M)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_PREFIX = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12, "f": 1e-15, "a": 1e-18}
_SLEWS = ("input_net_transition", "constrained_pin_transition", "input_transition_time")
_STEADY = 100  # stages of the chain of inverters: the slew has settled long before


@dataclasses.dataclass(frozen=True)
class Group:
    """``kind (arguments) { ... }``: ``name : value;``, ``name (values);`` and groups."""

    kind: str
    arguments: tuple[str, ...]
    simple: dict[str, str]
    complex: dict[str, list[str]]
    groups: list["Group"]

    def all(self, *kinds: str) -> list["Group"]:
        return [group for group in self.groups if group.kind in kinds]


def _read(text: str) -> Group:
    """The first group of ``text``; groups that its end cuts end there."""
    words: list[str] = []
    marks: list[str] = []
    starts: list[bool] = []  # a word that begins its line
    is_start = True
    for quoted, mark, word, newline in _TOKEN.findall(_COMMENT.sub(" ", text)):
        if newline:
            is_start = True
            continue
        words.append(quoted or mark or word)
        marks.append(mark)
        starts.append(is_start)
        is_start = False
    at = 0

    def body() -> tuple[dict[str, str], dict[str, list[str]], list[Group]]:
        nonlocal at
        simple: dict[str, str] = {}
        several: dict[str, list[str]] = {}
        groups: list[Group] = []
        while at < len(words) and marks[at] != "}":
            name = words[at]
            at += 1
            if at >= len(words):
                break
            if marks[at] == ":":
                end = at + 1
                # Some files leave out the semicolon at the end of a line.
                while end < len(words) and marks[end] not in (";", "}") and not starts[end]:
                    end += 1
                simple[name] = " ".join(words[at + 1 : end])
                at = end + (end < len(words) and marks[end] == ";")
            elif marks[at] == "(":
                end = at
                while end < len(words) and marks[end] != ")":
                    end += 1
                arguments = [words[place] for place in range(at, end) if not marks[place]]
                at = end + 1
                if at < len(words) and marks[at] == "{":
                    at += 1
                    groups.append(Group(name, tuple(arguments), *body()))
                    at += 1
                else:
                    several[name] = arguments
        return simple, several, groups

    groups = body()[2]
    if not groups:
        raise LibraryError("no group found; is it a Liberty file?")
    return groups[0]


def _numbers(texts: Iterable[str]) -> list[float]:
    return [float(found) for text in texts for found in _NUMBER.findall(text)]


@dataclasses.dataclass(frozen=True)
class Table:
    """Values over the slew of the signal and over ``other``: the load, or the clock's slew."""

    slews: tuple[float, ...]  # ns; one entry: no dependence
    others: tuple[float, ...]  # pF or ns
    values: tuple[tuple[float, ...], ...]  # [slew][other], ns

    def at(self, slew: float, other: float) -> float:
        """Linear in both, also outside of the table."""
        low, part = _place(self.slews, slew)
        left, share = _place(self.others, other)
        row = self.values[low]
        value = row[left]
        if share:
            value += share * (row[left + 1] - value)
        if part:
            row = self.values[low + 1]
            above = row[left]
            if share:
                above += share * (row[left + 1] - above)
            value += part * (above - value)
        return value


Edges = tuple[Table | None, Table | None]  # falling, rising


def _place(axis: Sequence[float], x: float) -> tuple[int, float]:
    if len(axis) == 1:
        return 0, 0.0
    low = min(max(bisect.bisect_right(axis, x) - 1, 0), len(axis) - 2)
    return low, (x - axis[low]) / (axis[low + 1] - axis[low])


@dataclasses.dataclass(frozen=True)
class Arc:
    """The delay from ``source`` to a pin.

    Tables by edge of that pin (FALL, RISE), None where it has none.

    ``sense`` is 1, -1 or 0 (both). A clock's arc starts with its rising edge.
    """

    source: str
    sense: int
    is_clock: bool
    delay: Edges
    slew: Edges


@dataclasses.dataclass(frozen=True)
class Pin:
    """``setup`` is empty for all but the data pins of flip-flops: (related pin, tables)."""

    name: str
    is_input: bool
    capacitance: tuple[float, float]  # pF, falling and rising
    arcs: tuple[Arc, ...]
    setup: tuple[Edges, ...]
    is_clock: bool


@dataclasses.dataclass(frozen=True)
class TimedCell:
    name: str
    pins: dict[str, Pin]

    def input_capacitance(self) -> float:
        """pF of the largest input."""
        return max(max(pin.capacitance) for pin in self.pins.values() if pin.is_input)


@dataclasses.dataclass(frozen=True)
class Fo4:
    """Delay of an inverter that drives four of its own, in a long chain of such stages."""

    cell: str
    ns: float  # mean of the falling and the rising edge
    load_pf: float


@dataclasses.dataclass(frozen=True)
class Source:
    """One file: the places of its cells, what comes before the first, and its units."""

    text: str
    header: Group
    places: dict[str, tuple[int, int]]
    templates: dict[str, Group]
    time: float  # ns per unit
    load: float  # pF per unit
    volts: float  # V per unit


def _unit(text: str, default: float) -> float:
    found = re.fullmatch(r"\s*([\d.eE+-]+)\s*([munpfa]?)[sfF]?\s*", text)
    return float(found[1]) * _PREFIX[found[2]] if found else default


def _source(text: str) -> Source:
    found = list(_CELL.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    places = {m[1]: (m.start(), end) for m, end in zip(found, ends, strict=True)}
    header = _read(text[: found[0].start()] if found else text)
    templates = {
        group.arguments[0]: group
        for group in header.all("lu_table_template", "power_lut_template")
        if group.arguments
    }
    load = header.complex.get("capacitive_load_unit", ["1", "pf"])
    return Source(
        text,
        header,
        places,
        templates,
        _unit(header.simple.get("time_unit", "1ns"), 1e-9) / 1e-9,
        _unit("".join(load[:2]).lower(), 1e-12) / 1e-12,
        _unit(header.simple.get("voltage_unit", "1V").removesuffix("V"), 1.0),
    )


class Delays:
    """Cells with their delays, of the texts of one or more Liberty files; read when requested."""

    def __init__(self, name: str, texts: Sequence[str]):
        self.name = name
        self.sources = [_source(text) for text in texts]
        self._cells: dict[str, TimedCell] = {}

    def __getitem__(self, name: str) -> TimedCell:
        if name not in self._cells:
            group, source = self.group(name)
            self._cells[name] = self._cell(name, group, source)
        return self._cells[name]

    def group(self, name: str) -> tuple[Group, Source]:
        """Reads what the files say of cell ``name``, and the file that does."""
        for source in self.sources:
            if name in source.places:
                first, end = source.places[name]
                return _read(source.text[first:end]), source
        raise LibraryError(f"{self.name}: no cell {name!r}")

    def _cell(self, name: str, group: Group, source: Source) -> TimedCell:
        pins = {}
        for pin in group.all("pin"):
            direction = pin.simple.get("direction", "")
            common = float(pin.simple.get("capacitance", 0))
            falling, rising = (
                float(pin.simple.get(f"{edge}_capacitance", common)) * source.load
                for edge in ("fall", "rise")
            )
            arcs: list[Arc] = []
            setup: list[Edges] = []
            for timing in pin.all("timing"):
                kind = timing.simple.get("timing_type", "combinational")
                if kind == "setup_rising":
                    setup.append(self._edges(timing, "{}_constraint", source))
                elif direction == "output" and kind in ("combinational", "rising_edge"):
                    arcs += self._arcs(timing, kind, source)
            for found in pin.arguments:
                pins[found] = Pin(
                    found, direction == "input", (falling, rising), tuple(arcs), tuple(setup),
                    pin.simple.get("clock", "") == "true",
                )  # fmt: skip
        return TimedCell(name, pins)

    def _arcs(self, timing: Group, kind: str, source: Source) -> list[Arc]:
        delay = self._edges(timing, "cell_{}", source)
        slew = self._edges(timing, "{}_transition", source)
        if delay == (None, None):
            return []
        sense = {"positive_unate": 1, "negative_unate": -1}.get(
            timing.simple.get("timing_sense", "non_unate"), 0
        )
        related = timing.simple.get("related_pin", "").split()
        return [Arc(pin, sense, kind == "rising_edge", delay, slew) for pin in related]

    def _edges(self, timing: Group, kind: str, source: Source) -> Edges:
        """The tables of the falling and of the rising edge."""
        return (
            self.table(timing, kind.format("fall"), source, source.time),
            self.table(timing, kind.format("rise"), source, source.time),
        )

    def table(self, parent: Group, kind: str, source: Source, unit: float) -> Table | None:
        """The table ``kind`` of ``parent``, its values times ``unit``; None where it has none."""
        groups = parent.all(kind)
        if not groups:
            return None
        group = groups[0]
        template = source.templates.get(group.arguments[0]) if group.arguments else None
        axes: list[tuple[bool, list[float]]] = []  # (of the signal's slew?, its values)
        for number in (1, 2):
            variable = template.simple.get(f"variable_{number}", "") if template else ""
            if not variable:
                continue
            place = f"index_{number}"
            index = group.complex.get(place) or (template.complex.get(place) if template else [])
            is_load = variable == "total_output_net_capacitance"
            is_slew = variable in _SLEWS
            scale = source.load if is_load else source.time
            axes.append((is_slew, [each * scale for each in _numbers(index or [])]))
        values = [each * unit for each in _numbers(group.complex.get("values", []))]
        size = math.prod(len(axis) for _, axis in axes)
        if len(values) != size or not values:
            raise LibraryError(
                f"{self.name}: a table {kind} has {len(values)} values; its axes need {size}"
            )
        of_slew = next((axis for is_slew, axis in axes if is_slew), [0.0])
        of_other = next((axis for is_slew, axis in axes if not is_slew), [0.0])
        width = len(of_other)
        if len(axes) == 2 and not axes[0][0]:  # the slow index is the other one
            rows = [values[i :: len(of_slew)] for i in range(len(of_slew))]
        else:
            rows = [values[i : i + width] for i in range(0, len(values), width)]
        return Table(tuple(of_slew), tuple(of_other), tuple(map(tuple, rows)))


def _is_inverter(cell: Cell) -> bool:
    if len(cell.inputs) != 1 or cell.is_flip_flop or not cell.function:
        return False
    try:
        return all(
            evaluate(cell.function, {cell.inputs[0]: value}) is not value for value in (False, True)
        )
    except (KeyError, LibraryError):
        return False


def inverter(library: Library, delays: Delays, refused: Sequence[str]) -> Cell:
    """The smallest inverter, of these the strongest; LibraryError where there is none."""
    found = [
        cell
        for cell in library.cells.values()
        if cell.area
        and _is_inverter(cell)
        and not any(fnmatch.fnmatch(cell.name, pattern) for pattern in refused)
    ]
    if not found:
        raise LibraryError(f"{library.name}: the library has no inverter")
    return min(found, key=lambda c: (c.area, -delays[c.name].input_capacitance(), c.name))


def fo4(library: Library, delays: Delays, refused: Sequence[str] = ()) -> Fo4:
    """Measured on the library's own tables; LibraryError where it has no delay tables."""
    name = inverter(library, delays, refused).name
    cell = delays[name]
    output = next((pin for pin in cell.pins.values() if not pin.is_input and pin.arcs), None)
    if output is None:
        raise LibraryError(
            f"{library.name}: {name} has no delay table; a clock needs --liberty with delays"
        )
    pin = cell.pins[output.arcs[0].source]
    slew, delay = [0.0, 0.0], [0.0, 0.0]
    for _ in range(_STEADY):
        before = list(slew)
        for edge in (FALL, RISE):
            load = 4 * pin.capacitance[edge]
            tables = [arc for arc in output.arcs if arc.delay[edge] is not None]
            delay[edge] = max(_at(arc.delay, edge, before[1 - edge], load) for arc in tables)
            slew[edge] = max(_at(arc.slew, edge, before[1 - edge], load) for arc in tables)
    return Fo4(name, (delay[FALL] + delay[RISE]) / 2, 4 * max(pin.capacitance))


def _at(tables: tuple[Any, Any], edge: int, slew: float, load: float) -> float:
    table = tables[edge]
    return table.at(slew, load) if table is not None else 0.0
