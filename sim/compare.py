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
from sim.engine import NOT_SCALED, engine_of, shown_error
from sim.model import find_model
from sim.plot import comparison
from sim.run import UNKNOWN, Run, add_sizes, give, shown


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
        except (ConfigError, ArithmeticError) as error:
            made.append({"hardware": engine.hardware.name, "refused": shown_error(error)})
            continue
        made.append(run.summary())
    return made


def _energy(first: dict[str, Any], row: dict[str, Any], name: str) -> tuple[str, str]:
    """Joules, and how many times less than the first chip's; empty where either is not scaled."""
    if row[name] == NOT_SCALED:
        return NOT_SCALED, ""
    times = "" if first[name] == NOT_SCALED else f"{first[name] / row[name]:.2f}"
    return shown(row[name], "J"), times


def _print(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120, soft_wrap=True)
    able = [row for row in rows if "refused" not in row]
    first = able[0]
    if first is not rows[0]:
        console.print(
            f"{rows[0]['hardware']} is refused: times are those of {first['hardware']}, the next"
        )
    size = f"{first['prompt']} + {first['out']} tokens, batch {first['batch']}"
    decodes = first["out"] > 1
    whole, step, chip = (
        Table(title=title, title_justify="left")
        for title in (f"the whole request, {size}", "decoding alone", "the chip and its cache")
    )
    for table, names in (
        (whole, ("first token", "request", "times faster", "J", "times less")),
        (step, ("token", "tokens/s", "times faster", "J/token", "times less")),
        (chip, ("bits of K", "bits of V", "GB of K and V", "MB on chip", "mm2")),
    ):
        table.add_column("chip")
        for name in names:
            table.add_column(name, justify="right")
    for row in able:
        whole.add_row(
            row["hardware"],
            shown(row["first_token_seconds"], "s"),
            shown(row["seconds"], "s"),
            f"{first['seconds'] / row['seconds']:.2f}",
            *_energy(first, row, "joules"),
        )
        step.add_row(
            row["hardware"],
            shown(row["token_seconds"], "s"),
            f"{row['tokens_per_second']:.1f}",
            f"{row['tokens_per_second'] / first['tokens_per_second']:.2f}",
            *_energy(first, row, "joules_per_token"),
        )
        held = row["on_chip_bytes"]
        areas = [
            f"{value if value == NOT_SCALED else f'{value:.2f}'} ({name[5:-4]})"
            for name, value in row.items()
            if name.startswith("area_")
        ]
        chip.add_row(
            row["hardware"],
            f"{row['k_bits']:.2f}",
            f"{row['v_bits']:.2f}",
            f"{row['kv_bytes'] / 1e9:.3f}",
            UNKNOWN if held is None else f"{held / 1e6:.2f}",
            ", ".join(areas) or UNKNOWN,
        )
    for table in (whole, step, chip) if decodes else (whole, chip):
        console.print(table)
    for row in rows:
        if "refused" in row:
            console.print(f"{row['hardware']}: {row['refused']}")
        for reason in row.get("not_scaled", ()):
            console.print(f"{row['hardware']}: {NOT_SCALED}: {reason}")
        for reason in row.get("extrapolated", ()):
            console.print(f"{row['hardware']}: extrapolated: {reason}")


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
