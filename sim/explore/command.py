"""The command line of ``python -m sim.explore``."""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden import command
from golden.config import ConfigError
from golden.files import claimed, replacing
from sim.engine import shown_error
from sim.explore import chart, page
from sim.explore.accuracy import Sources
from sim.explore.commands import evaluate
from sim.explore.figures import FIGURES_UNKNOWN, Record, by_unit, figures, unknown
from sim.explore.grid import Grid, Point, grid_of, parsed, read_grid
from sim.explore.kept import Kept
from sim.explore.run import explore, facts
from sim.explore.table import Line, ordered, show
from sim.model import Model, find_model

_LISTS = ("hw", "batch", "context", "out", "lanes", "ports", "bandwidth")
_CACHE = Path("build/explore")
_PERIOD = 1.0  # seconds between two lines of progress


def line_of(point: Point, record: Record, model: Model, sources: Sources) -> Line:
    """A line of the table."""
    accuracy = sources.of(point.setup.hw)
    if "refused" in record:
        return Line(point, accuracy, refused=record["refused"])
    found = figures(record, model)
    lacking = [name for name in FIGURES_UNKNOWN if getattr(found, name) is None]
    return Line(
        point,
        accuracy,
        figures=found,
        kinds=record["kinds"],
        unknown={name: unknown(record, name) for name in lacking},
        binds=next(iter(by_unit(record["operations"])), ""),
    )


def _grid(options: argparse.Namespace) -> tuple[Grid, Grid]:
    """The points of the page, and those of the table: of a field that no option gives, the first.

    ConfigError: a bad list.
    """
    base = read_grid(options.points) if options.points else Grid()
    given = {name: getattr(options, name) for name in _LISTS if getattr(options, name)}
    try:
        grid = grid_of({name: parsed(values) for name, values in given.items()}, base)
    except ConfigError as error:
        raise ConfigError(f"--{str(error).removeprefix('--')}") from None
    firsts = {
        name: getattr(grid, name)[:1] for name in _LISTS if name != "hw" and name not in given
    }
    return grid, dataclasses.replace(grid, **firsts)


def _limited(lines: Sequence[Line], options: argparse.Namespace) -> list[Line]:
    """The lines within ``--watts`` and ``--mm2``; says how many are not, or lack the figure."""
    kept = list(lines)
    for name, figure in (("watts", "watts"), ("mm2", "area")):
        most = getattr(options, name)
        if most is None:
            continue
        known = [each for each in kept if each.figures]
        lacking = [each for each in known if getattr(each.figures, figure) is None]
        within = [
            each for each in known if each not in lacking and getattr(each.figures, figure) <= most
        ]
        above = len(known) - len(lacking) - len(within)
        names = ", ".join(dict.fromkeys(each.point.setup.hw for each in lacking))
        print(f"--{name} {most:g}: {above} points above it; without the figure: {names or 'none'}")
        kept = [*within, *(each for each in kept if not each.figures)]
    return kept


def _say(wanted: int) -> Any:
    """Says progress on stderr: each second on a terminal, and at the end."""
    elapsed = command.elapsed(lambda text: print(text, file=sys.stderr))
    last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        is_end = text.startswith(f"{wanted} of")
        if is_end or (sys.stderr.isatty() and now - last >= _PERIOD):
            last = now
            elapsed(text)

    return say


def _rows(lines: Sequence[Line]) -> str:
    return json.dumps([dataclasses.asdict(each) for each in lines], indent=1)


def _plot(file: Path, lines: Sequence[Line], kept: Kept) -> None:
    """Draws tokens/s by joules. ConfigError: no line has both."""
    kept.read()
    known = facts(list(dict.fromkeys(line.point.setup.hw for line in lines)), kept)
    drawn = chart.svg(lines, [known[line.point.setup.hw]["family"] for line in lines])
    if not drawn:
        raise ConfigError(f"{file}: no line of the table has tokens/s and joules")
    with replacing(file) as part:
        part.write_text(drawn)


def _number(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _parser() -> command.Parser:
    from sim import explore as package

    parser = command.Parser(
        prog="python -m sim.explore",
        description="Puts chips and schemes side by side, in a table and on a page.",
        epilog=(package.__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--model", required=True, help="a known model, config.json or its folder")
    parser.add_argument("--hw", nargs="+", help="known chips, or JSON files (all known ones)")
    for name, text in (
        ("batch", "sequences side by side"),
        ("context", "tokens before"),
        ("lanes", "lanes of KLLM, or own"),
        ("ports", "ports of KLLM, or own"),
        ("bandwidth", "GB/s of the memory, or own"),
    ):
        parser.add_argument(f"--{name}", nargs="+", help=f"{text}; the table has all of them")
    parser.add_argument("--out", nargs=1, help="tokens after (128)")
    parser.add_argument("--points", type=Path, metavar="FILE", help="a grid: JSON of these lists")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the page (explore.html)")
    parser.add_argument("--no-page", action="store_true", help="the table's points alone, no page")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table as SVG")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines of the table")
    parser.add_argument("--watts", type=_number, help="most watts in decoding, of the table")
    parser.add_argument("--mm2", type=_number, help="most area, of the table")
    parser.add_argument(
        "--accuracy", type=Path, nargs="+", default=[], metavar="FILE",
        help="rows of this model, which golden.llm.eval -o has kept",
    )  # fmt: skip
    parser.add_argument(
        "--accuracy-of", default="", metavar="MODEL", help="whose rows to take where there are none"
    )
    parser.add_argument("--cache", type=Path, default=_CACHE, help=f"a folder ({_CACHE})")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    return parser


def _lacking(lines: Sequence[Line], model: str, sources: Sources) -> None:
    """Names the command for schemes without a row."""
    methods = dict.fromkeys(
        line.accuracy.method
        for line in lines
        if line.accuracy.loss is None and line.accuracy.method
    )
    if methods:
        print(f"no row of {sources.model} for {', '.join(methods)}. A row for --accuracy:")
        print(f"  {evaluate(model, next(iter(methods)))}")


def _explored(options: argparse.Namespace, file: Path | None) -> tuple[list[Line], str, Sources]:
    """Measures, and writes the page to ``file``. Lines of the table, their title, and sources."""
    model = find_model(options.model)
    sources = Sources(model.name, tuple(options.accuracy), options.accuracy_of)
    whole, chosen = _grid(options)
    grid = chosen if file is None else whole
    charts = "" if file is None else page.script(options.cache)
    points = grid.points()
    kept = Kept(options.cache, options.model)
    records = explore(points, kept, options.workers, _say(len(points)))
    if file is not None:
        named = (options.model, model)
        found = page.data(grid, named, records, facts(grid.hw, kept), sources)
        with replacing(file) as part:
            part.write_text(page.page(found, charts))
    lines = [
        line_of(point, records[point], model, sources)
        for point in chosen.points()
        if point in records
    ]
    sizes = {(line.point.batch, line.point.context) for line in lines}
    said = "".join(f", batch {b}, {c:,} tokens" for b, c in sizes) if len(sizes) == 1 else ""
    return lines, f"{model.name}{said}, {chosen.out[0]} tokens after", sources


def answer(arguments: list[str]) -> list[Line]:
    """The lines of the table of a command line without a page. ConfigError, as the command."""
    options = _parser().parse_args(arguments)
    return _limited(_explored(options, None)[0], options)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error(f"--workers must be 1 or more, not {options.workers}")
    if options.no_page and options.output:
        parser.error("--no-page and --output exclude each other")
    file = None if options.no_page else options.output or Path("explore.html")
    outputs = contextlib.ExitStack()
    try:
        outputs.enter_context(claimed(file, options.json, options.plot))
        lines, title, sources = _explored(options, file)
        lines = _limited(lines, options)
        if options.plot:
            _plot(options.plot, lines, Kept(options.cache, options.model))
        if options.json:
            with replacing(options.json) as part:
                part.write_text(_rows(ordered(lines)))
    except (ConfigError, ArithmeticError) as error:
        print(f"sim.explore: {shown_error(error)}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sim.explore: {error.filename or options.cache}: {error.strerror}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    show(title, lines)
    _lacking(lines, options.model, sources)
    if file is not None:
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    return 0
