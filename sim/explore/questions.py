"""``python -m sim.explore.questions``: an architect's questions, answered by ``sim.explore``.

Each answer is the table of a command line. ``--page`` writes the tables of docs/explore.md.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.markers import rewrite, table
from sim.engine import shown_error
from sim.explore.command import answer
from sim.explore.table import COLUMNS, cells, name_of, ordered

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explore.md"
# By section of the page; the page has the same command lines.
QUESTIONS = {
    "explore_watts": "--model llama-2-7b --bandwidth own 64 256 --watts 20",
    "explore_lanes": "--model llama-2-7b --hw kllm-a4 --lanes 1 4 16 64 --bandwidth own 64 2",
    "explore_caches": "--model llama-2-7b --hw oaken-hbm million-4b --context 32000 --batch 1 8",
}


def arguments(name: str, cache: Path | None = None) -> list[str]:
    """The options of a question. cache: a folder in the place of the usual one."""
    more = ["--cache", str(cache)] if cache else []
    return [*shlex.split(QUESTIONS[name]), "--no-page", *more]


def answered(name: str, cache: Path | None = None) -> str:
    """The table of a question in Markdown. ConfigError: a chip's file has a bad field."""
    lines = answer(arguments(name, cache))
    sizes = {line.point.batch for line in lines}
    rows = [
        [name_of(line), *([str(line.point.batch)] if len(sizes) > 1 else []), *cells(line)]
        for line in ordered(lines)
        if line.figures
    ]
    return table(["chip", *(["batch"] if len(sizes) > 1 else []), *COLUMNS], rows)


def main(given: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m sim.explore.questions", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), help="these tables")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/explore.md")
    options: argparse.Namespace = parser.parse_args(given)
    if options.page:
        parser.need_page(PAGE)
    chosen: Sequence[str] = options.only or list(QUESTIONS)
    made = {}
    try:
        for name in chosen:
            made[name] = answered(name)
            print(f"python -m sim.explore {QUESTIONS[name]}", made[name], sep="\n\n")
    except (ConfigError, ArithmeticError) as error:
        print(f"sim.explore.questions: {shown_error(error)}", file=sys.stderr)
        return 2
    if options.page:
        rewrite(PAGE, made)
    return 0


if __name__ == "__main__":
    command.run("sim.explore.questions", main)
