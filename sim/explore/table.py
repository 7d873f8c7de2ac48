"""The table on the terminal: a line for each point, the fastest first."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from sim.explore.accuracy import Accuracy
from sim.explore.figures import Figures
from sim.explore.grid import OWN, Point
from sim.run import shown
from sim.sweep import pareto

# Letters after a figure; one that is extrapolated is in parentheses.
LETTERS = {
    "measured": "m", "counted": "c", "paper": "p", "fitted": "f", "assumed": "a", "scaled": "s",
}  # fmt: skip
LESS = {"joules": "joules_per_token", "area": "area", "loss": "loss"}


@dataclasses.dataclass(frozen=True)
class Line:
    """A point that runs, or the reason why it does not.

    kinds : of ``time``, ``energy``, ``area``, ``bits`` and ``bytes``
    unknown : by figure that is None, why
    """

    point: Point
    accuracy: Accuracy
    refused: str = ""
    figures: Figures | None = None
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unknown: Mapping[str, str] = dataclasses.field(default_factory=dict)
    binds: str = ""


def front(lines: Sequence[Line], objectives: Sequence[str]) -> set[int]:
    """Numbers of the lines that no other line beats in tokens/s and ``objectives``.

    objectives : of LESS, the small ones are better. A line that lacks a figure takes no part.
    """
    rows = []
    for line in lines:
        row = dict(dataclasses.asdict(line.figures)) if line.figures else {}
        row["loss"] = line.accuracy.loss
        rows.append(row)
    return set(pareto(rows, [LESS[name] for name in objectives], ["tokens_per_second"]))


def objectives(lines: Sequence[Line]) -> list[str]:
    """Those of LESS of which some line has a figure."""
    return [
        name
        for name, field in LESS.items()
        if any(
            line.figures
            and (line.accuracy.loss if field == "loss" else getattr(line.figures, field))
            is not None
            for line in lines
        )
    ]


def _cell(text: str, kind: str) -> str:
    return f"({text})" if kind == "extrapolated" else f"{text} {LETTERS[kind]}"


def name_of(line: Line) -> str:
    """The chip, and what is changed of it."""
    setup = line.point.setup
    said = [f"lanes {setup.lanes}"] if setup.lanes is not None else []
    said += [f"ports {setup.ports}"] if setup.ports is not None else []
    said += [f"{setup.bandwidth:g} GB/s"] if setup.bandwidth is not None else []
    return f"{setup.hw}: {', '.join(said)}" if said else setup.hw


def loss_text(accuracy: Accuracy) -> str:
    """A loss in percent with its kind; ``no row`` without one."""
    if accuracy.loss is None:
        return "no row" if accuracy.method else "no method"
    return _cell(f"{100 * accuracy.loss:+.3g} %", accuracy.kind)


def cells(line: Line) -> list[str]:
    """The cells of COLUMNS, of a line that runs."""
    found, kinds = line.figures, line.kinds
    assert found is not None

    def cell(figure: str, kind: str, show: Callable[[float], str]) -> str:
        value = getattr(found, figure)
        return line.unknown[figure] if value is None else _cell(show(value), kinds[kind])

    area = cell("area", "area", lambda value: f"{value:,.4g}")
    if found.area_by == "ours":
        area += ", ours"
    return [
        cell("tokens_per_second", "time", lambda value: f"{value:,.4g}"),
        cell("first_token_seconds", "time", lambda value: shown(value, "s")),
        cell("joules_per_token", "energy", lambda value: shown(value, "J")),
        cell("watts", "energy", lambda value: f"{value:.3g}"),
        area,
        cell("on_chip_bytes", "bytes", lambda value: f"{value / 1e6:.4g}"),
        _cell(f"{found.k_bits:.2f}/{found.v_bits:.2f}", kinds["bits"]),
        _cell(f"{found.weight_bits:.2f}", "counted"),
        loss_text(line.accuracy),
        line.binds,
    ]


COLUMNS = ("tokens/s", "first token", "J/token", "W", "mm2", "MB on chip", "bits K/V", "bits W",
            "loss", "binds")  # fmt: skip


def ordered(lines: Sequence[Line]) -> list[Line]:
    """The lines that run, the fastest first, and then those that are refused."""
    able = [line for line in lines if line.figures]
    refused = [line for line in lines if not line.figures]

    def rate(line: Line) -> float:
        assert line.figures is not None
        return -line.figures.tokens_per_second

    return [*sorted(able, key=rate), *refused]


def show(title: str, lines: Sequence[Line]) -> None:
    """Prints the table, what its letters mean, and what is refused."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(width=160, soft_wrap=True)
    chosen = objectives(lines)
    best = front(lines, chosen)
    sizes = {(line.point.batch, line.point.context) for line in lines}
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False
    )
    table.add_column("chip", no_wrap=True)
    for name in () if len(sizes) == 1 else ("batch", "context"):
        table.add_column(name, justify="right")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "binds" else "right")
    numbers = {id(line): number for number, line in enumerate(lines)}
    for line in ordered(lines):
        if line.figures:
            star = "*" if numbers[id(line)] in best else ""
            size = [f"{line.point.batch}", f"{line.point.context:,}"] if len(sizes) > 1 else []
            table.add_row(f"{star}{name_of(line)}", *size, *cells(line))
    if table.row_count:
        console.print(table)
        letters = ", ".join(f"{letter} {kind}" for kind, letter in LETTERS.items())
        console.print(f"{letters}, (...) extrapolated")
        said = ", ".join(("tokens/s", *chosen))
        console.print(f"* no other line is better in one of {said} and as good in all others")
    for text in dict.fromkeys(_refusal(line, len(sizes) > 1) for line in lines if line.refused):
        console.print(text)


def _refusal(line: Line, has_sizes: bool) -> str:
    """One line; the same for all lanes, ports and bandwidths that are refused alike."""
    sizes = f" at batch {line.point.batch}, {line.point.context:,} tokens" if has_sizes else ""
    return f"{line.point.setup.hw}{sizes} cannot: {line.refused}"


def changed_text(value: float | None) -> str:
    """A value of a list of lanes, ports or bandwidths."""
    return OWN if value is None else f"{value:g}"
