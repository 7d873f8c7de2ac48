"""The options of ``python -m golden.llm.eval.accuracy``, apart from what needs torch."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from golden import command
from golden.llm.eval.accuracy.tables import TABLES
from golden.scheduler import add_scheduler

DESCRIPTION = "Run the rows of the tables and write a page of them."
ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "accuracy.md"
WORK = ROOT / "build" / "accuracy"
_TABLES = tuple(each.name for each in TABLES)


def arguments(tables: Iterable[str] = _TABLES) -> argparse.ArgumentParser:
    """The parser; it needs no torch. ``tables``: names."""
    parser = command.Parser(prog="python -m golden.llm.eval.accuracy", description=DESCRIPTION)
    parser.add_argument("--model", help="as for golden.llm.eval; SmolLM2-135M if none")
    parser.add_argument(
        "--text", action="append", default=[], metavar="NAME=FILE",
        help="a text to evaluate, plain or .jsonl; may be repeated; ours if none",
    )  # fmt: skip
    parser.add_argument("--seq", type=int, help="tokens of a window; 2048, or what the model takes")
    parser.add_argument("--tokens", type=int, help="of each text; all if none")
    parser.add_argument(
        "--sweep-tokens", type=int,
        help="tables that vary one thing run on so many tokens of the first text; all if none",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=1, help="calibrations of each method: 0, 1 ..")
    parser.add_argument(
        "--calibration-text", type=Path, help="default: the first text, after what is evaluated"
    )
    parser.add_argument(
        "--calibration-windows", type=int, help="8, or what the method had better have"
    )
    parser.add_argument("--calibration-tokens", type=int, help="of a window; 256, or likewise")
    parser.add_argument("--table", nargs="+", choices=list(tables), help="only these")
    parser.add_argument("--row", nargs="+", metavar="METHOD", help="only these, as spelt; * is any")
    parser.add_argument("--dry-run", action="store_true", help="list the rows, run none")
    parser.add_argument("--minutes", type=float, help="begin no row after these")
    parser.add_argument(
        "--page", type=Path, nargs="?", const=PAGE,
        help="rewrite FILE, or docs/accuracy.md without one; default: accuracy.md in --work",
    )  # fmt: skip
    parser.add_argument(
        "--page-only", action="store_true",
        help="run no row: write FILE of --page, or docs/accuracy.md, again from its rows.json",
    )
    parser.add_argument("--work", type=Path, default=WORK, help="folder of finished rows")
    parser.add_argument("--batch", type=int, help="windows at a time")
    parser.add_argument("--threads", type=int, help="of the CPU; torch's choice if none")
    parser.add_argument("--device", help="cuda if there is one, else cpu")
    add_scheduler(parser)
    return parser
