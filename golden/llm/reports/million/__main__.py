"""``python -m golden.llm.reports.million [TABLE ...] --text NAME=FILE``: MILLION's accuracy."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from golden import command
from golden.llm.eval.accuracy.arguments import PAGE, ROOT
from golden.llm.reports.common import (
    add_row_options,
    check_rows,
    fits,
    give,
    loaded,
    settings,
    status,
    texts_of,
)
from golden.llm.reports.million.tables import TABLES

if TYPE_CHECKING:
    from golden.llm.checkpoint import Checkpoint
    from golden.llm.reports.million.run import Runner

ROWS, CHANNELS = "million.json", "million_channels.json"
_CHANNEL_WINDOWS = 4


def _arguments() -> argparse.ArgumentParser:
    parser = command.Parser(
        prog="python -m golden.llm.reports.million",
        description="Run the rows on MILLION, in parts, and write their sections of a page.",
    )
    names = [each.name for each in TABLES]
    parser.add_argument(
        "table", nargs="*", metavar="TABLE", help=f"all if none: {', '.join(names)}"
    )
    add_row_options(parser, PAGE, ROOT / "build" / "million", windows=4, seeds=(0, 1, 2))
    parser.add_argument("--calibration-windows", type=int, default=8)
    parser.add_argument(
        "--continue", action="store_true", dest="goes_on",
        help="rows of the same settings next to the page count as run",
    )  # fmt: skip
    return parser


def write(page: Path) -> None:
    """The sections of a page from the rows next to it."""
    from golden.llm.eval.accuracy.report import load_report
    from golden.llm.reports.million.channels import load_channels
    from golden.llm.reports.million.page import sections

    folder = page.with_suffix("")
    file = folder / CHANNELS
    content = load_channels(file) if file.exists() else None
    give(page, sections(load_report(folder / ROWS), content))


def _runner(options: argparse.Namespace, checkpoint: "Checkpoint") -> "Runner":
    from golden.llm.checkpoint import windows
    from golden.llm.eval.accuracy.bench import Bench
    from golden.llm.reports.million.run import Runner

    first, texts = texts_of(options, checkpoint)
    parts = Runner.in_parts(texts, options.part)
    learned = windows(
        checkpoint, first, options.calibration_windows, options.calibration_tokens, options.skip
    )
    return Runner(texts, Bench(checkpoint, parts, learned, options.work, 1), options.part)


def _run(options: argparse.Namespace) -> int:
    """``_measured`` with its rows claimed: they go on from what the file holds at the start."""
    from golden.files import claimed, made_folder

    folder = options.page.with_suffix("") if options.page else options.work
    with made_folder(folder), claimed(folder / ROWS):
        return _measured(options, folder)


def _measured(options: argparse.Namespace, folder: Path) -> int:
    from golden.llm.eval.accuracy.report import Report, load_report, save_report
    from golden.llm.reports.million import channels
    from golden.llm.reports.million.page import sections
    from golden.llm.reports.million.run import earlier_rows, wanted_rows

    checkpoint = loaded(options)
    runner = _runner(options, checkpoint)
    own = settings(
        options, runner.bench, runner.texts, {"windows": options.calibration_windows}, TABLES
    )
    chosen = [each for each in TABLES if not options.table or each.name in options.table]
    rows = wanted_rows(chosen, list(runner.texts), options.seeds)
    rows = [row for row in rows if fits(row.method, options.row)]
    if options.goes_on:
        before = load_report(folder / ROWS)
        runner.earlier = earlier_rows(before, own, runner.texts, options.part)
    end = runner.run(rows, options.seeds, options.minutes)
    every = wanted_rows(TABLES, list(runner.texts), options.seeds)
    report = Report(own, {row: found for row in every if (found := runner.record(row))})
    save_report(folder / ROWS, report)
    if not (folder / CHANNELS).exists():
        first, windows = next(iter(runner.texts.items()))
        some = windows[:_CHANNEL_WINDOWS]
        of_channels = {
            "model": checkpoint.name, "fingerprint": report.settings["fingerprint"],
            "text": first, "windows": len(some), "seq": options.seq,
        }  # fmt: skip
        layers = channels.measure(checkpoint, some)
        channels.save_channels(folder / CHANNELS, of_channels, layers)
    if options.page:
        write(options.page)
    else:
        content = channels.load_channels(folder / CHANNELS)
        give(None, sections(report, content))
    print(f"million: {end}", file=sys.stderr)
    return 130 if end.startswith("interrupted") else 0


def _check(options: argparse.Namespace) -> None:
    """ConfigError: options that make no sense together."""
    from golden.config import ConfigError

    names = [each.name for each in TABLES]
    for name in options.table:
        if name not in names:
            raise ConfigError(f"table must be one of {', '.join(names)}, not {name!r}")
    if options.page_only:
        return
    check_rows(options)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, 130 when interrupted, or 2 after one line on stderr."""
    options = _arguments().parse_args(arguments)

    def run() -> int:
        _check(options)
        if options.page_only:
            write(options.page or PAGE)
            return 0
        return _run(options)

    return status("million", run)


if __name__ == "__main__":
    command.run("golden.llm.reports.million", main)
