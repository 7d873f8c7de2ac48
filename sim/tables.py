"""A command that prints tables of a page, and writes them with ``--page``."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.markers import rewrite
from sim.engine import shown_error


def print_tables(
    name: str,
    description: str,
    tables: Mapping[str, Callable[[], str]],
    page: Path,
    arguments: Sequence[str] | None,
    head: Callable[[str], str] | None = None,
) -> int:
    """The command line of ``python -m NAME``; 0, or 2 after one line on stderr.

    tables : a function of the text of each section of ``page``
    head : of a section's name, what is printed above its table
    """
    parser = command.Parser(prog=f"python -m {name}", description=description.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(tables), help="these tables")
    parser.add_argument("--page", action="store_true", help=f"write the tables of docs/{page.name}")
    options: argparse.Namespace = parser.parse_args(arguments)
    if options.page:
        parser.need_page(page)
    made = {}
    try:
        for section in options.only or tables:
            made[section] = text = tables[section]()
            print(*([head(section)] if head else []), text, sep="\n\n")
    except (ConfigError, ArithmeticError) as error:
        print(f"{name}: {shown_error(error)}", file=sys.stderr)
        return 2
    if options.page:
        rewrite(page, made)
    return 0
