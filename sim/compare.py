"""``python -m sim.compare``: one model on several chips, each next to the first."""

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden import command
from golden.config import ConfigError
from golden.files import claimed
from sim.engine import engine_of, shown_error
from sim.model import find_model
from sim.plot import comparison
from sim.run import Run, add_sizes, give, shown

__all__ = ["compare", "main"]


def compare(
    hardware: Sequence[str], model: str, batch: int, prompt: int, out: int
) -> list[dict[str, Any]]:
    """``Run.summary`` of each chip; of one that cannot run the model, ``refused`` says why."""
    found = find_model(model)
    made: list[dict[str, Any]] = []
    for name in hardware:
        engine = engine_of(name)
        try:
            run = Run(engine, found, batch, prompt, out).compute()
        except ConfigError as error:
            made.append({"hardware": engine.hardware.name, "refused": str(error)})
            continue
        made.append(run.summary())
    return made


def _print(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120, soft_wrap=True)
    able = [row for row in rows if "refused" not in row]
    table = Table()
    names = ("chip", "first token", "further", "tokens/s", "times", "J/token", "times less")
    for name in names:
        table.add_column(name, justify="left" if name == "chip" else "right")
    for row in able:
        first = able[0]
        table.add_row(
            row["hardware"],
            shown(row["first_token_seconds"], "s"),
            shown(row["token_seconds"], "s"),
            f"{row['tokens_per_second']:.1f}",
            f"{row['tokens_per_second'] / first['tokens_per_second']:.2f}",
            shown(row["joules_per_token"], "J"),
            f"{first['joules_per_token'] / row['joules_per_token']:.2f}",
        )
    console.print(table)
    for row in rows:
        if "refused" in row:
            console.print(f"{row['hardware']}: {row['refused']}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m sim.compare", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--hw", required=True, nargs="+", help="known chips, or JSON files")
    parser.add_argument("--model", required=True, help="a known model, config.json or its folder")
    add_sizes(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write pictures as SVG")
    options: argparse.Namespace = parser.parse_args(arguments)
    outputs = contextlib.ExitStack()
    try:
        outputs.enter_context(claimed(options.plot))
        rows = compare(options.hw, options.model, options.batch, options.prompt, options.out)
        if any("refused" not in row for row in rows):
            give(options.plot, lambda: comparison(rows))
    except (ConfigError, ArithmeticError) as error:
        print(f"sim.compare: {shown_error(error)}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    if all("refused" in row for row in rows):
        print(f"sim.compare: {rows[0]['refused']}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        _print(rows)
    return 0


if __name__ == "__main__":
    command.run("sim.compare", main)
