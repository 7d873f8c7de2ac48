"""``python -m senbazuru.runs.soak``: random requests to the Verilated MMU (docs/paging-soak.md)."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from golden import command
from golden.files import replacing
from golden.paging.format import Status
from hdl.arguments import add_page, check_page, whole, write_page
from senbazuru.runs.cycles import owned
from senbazuru.runs.soak.check import Mismatch
from senbazuru.runs.soak.faults import FAULTS
from senbazuru.runs.soak.run import Figures, soak, soak_config

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PAGE = ROOT / "docs" / "paging-soak.md"


def _rows(figures: Figures) -> list[tuple[str, str]]:
    return [
        ("requests", f"{figures.requests:,}"),
        ("requests per second", f"{figures.requests / figures.seconds:,.0f}"),
        ("minutes", f"{figures.seconds / 60:.1f}"),
        ("cycles", f"{figures.cycles:,}"),
        ("pages taken", f"{figures.pages_taken:,}"),
        ("pages that a child has in common", f"{figures.pages_shared:,}"),
        ("most pages in use when all was at rest", f"{figures.most_pages:,}"),
        ("most of them in common", f"{figures.most_shared:,}"),
        ("bytes written", f"{figures.bytes_written:,}"),
        ("bytes read and compared", f"{figures.bytes_read:,}"),
        ("write bursts", f"{figures.write_bursts:,}"),
        ("of these answered by an error", f"{figures.write_errors:,}"),
        ("read bursts", f"{figures.read_bursts:,}"),
        ("words answered by an error", f"{figures.read_errors:,}"),
        ("times that all was at rest", f"{figures.drains:,}"),
    ]


def _statuses(figures: Figures) -> tuple[list[str], list[list[str]]]:
    ops = list(figures.statuses)
    names = [status.name for status in Status]
    names = [name for name in names if any(name in each for each in figures.statuses.values())]
    rows = [[name, *(f"{figures.statuses[op].get(name, 0):,}" for op in ops)] for name in names]
    return ["status", *ops], rows


def _markdown(figures: Figures) -> str:
    head, rows = _statuses(figures)
    lines = ["| what | number |", "|---|---:|"]
    lines += [f"| {name} | {value} |" for name, value in _rows(figures)]
    lines += ["", f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.soak", description=__doc__)
    parser.add_argument("--requests", type=whole(), default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    add_page(parser, PAGE)
    parser.add_argument("--no-forks", action="store_true", help="an MMU without forks")
    parser.add_argument("--fault", choices=sorted(FAULTS), help="plant a fault; it must be found")
    options = parser.parse_args(arguments)
    if options.page and options.fault:
        parser.error("--page: the page is of a run without a fault: no --fault")
    if options.no_forks and (options.page or options.fault):
        parser.error("--no-forks: page and faults have an MMU of their own: no --page, no --fault")
    check_page(parser, options.page, ["soak"])
    with owned(parser, options.json):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    console = Console()
    columns = (
        TextColumn("{task.completed:>9,.0f} of {task.total:,.0f} requests"),
        BarColumn(),
        TextColumn("{task.fields[cycles]:,} cycles"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    block = FAULTS[options.fault].block() if options.fault else None
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("soak", total=options.requests, cycles=0)

        def progress(requests: int, cycles: int, seconds: float) -> None:
            bar.update(task, completed=requests, cycles=cycles)

        try:
            config = soak_config(forks=not options.no_forks)
            figures = soak(
                options.requests, options.seed, config=config, block=block, progress=progress
            )
        except Mismatch as error:
            bar.stop()
            print(f"senbazuru.runs.soak: seed {options.seed}: {error}", file=sys.stderr)
            return 0 if options.fault else 1
    table = Table("what", "number")
    for row in _rows(figures):
        table.add_row(*row)
    head, rows = _statuses(figures)
    statuses = Table(*head)
    for row in rows:
        statuses.add_row(*row)
    console.print(table, statuses)
    if options.json:
        with replacing(options.json) as part:
            part.write_text(json.dumps(dataclasses.asdict(figures), indent=2) + "\n")
    write_page(options.page, {"soak": _markdown(figures) + "\n"})
    if options.fault:
        print(f"senbazuru.runs.soak: the fault {options.fault} was not found", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.soak", main)
