"""``python -m synth.compare NAME``: the tables of docs/area.md.

The tables are those of the modules of ``synth.tables`` that the rooms name.
"""

import argparse
import importlib
import sys
from pathlib import Path

from golden.markers import fill
from hdl.registry import rooms
from synth.area import SynthesisError
from synth.liberty import LibraryError
from synth.yosys import YosysError

__all__ = ["all_tables", "main"]

PAGE = Path("docs") / "area.md"


def all_tables() -> dict:
    """Name -> function of the options that returns (sections, seconds of mapping or 0)."""
    modules = [name for room in rooms().values() for name in room.tables]
    return {
        name: made
        for module in modules
        for name, made in importlib.import_module(f"synth.tables.{module}").TABLES.items()
    }


def main(arguments: list[str] | None = None) -> int:
    tables = all_tables()
    parser = argparse.ArgumentParser(prog="python -m synth.compare", description=__doc__)
    parser.add_argument("what", choices=tables)
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="NAME=FILE[,FILE...]"
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    try:
        sections, seconds = tables[options.what](options)
        if seconds:
            print(f"  {seconds:.0f} s of mapping in all, at any time")
        options.page.write_text(fill(options.page.read_text(), sections))
    except (LibraryError, SynthesisError, YosysError, OSError, ValueError) as error:
        print(f"synth.compare: {error}", file=sys.stderr)
        return 2
    print(f"{options.page}: {', '.join(sections)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
