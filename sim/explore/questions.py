"""``python -m sim.explore.questions``: an architect's questions, answered by ``sim.explore``.

Each answer is the table of a command line. ``--page`` writes the tables of docs/explore.md.
"""

import functools
import shlex
from pathlib import Path

from golden import command
from golden.markers import table
from sim.explore.command import answer
from sim.explore.table import COLUMNS, cells, name_of, ordered
from sim.tables import print_tables

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
    tables = {name: functools.partial(answered, name) for name in QUESTIONS}
    return print_tables(
        "sim.explore.questions", __doc__ or "", tables, PAGE, given,
        lambda name: f"python -m sim.explore {QUESTIONS[name]}",
    )  # fmt: skip


if __name__ == "__main__":
    command.run("sim.explore.questions", main)
