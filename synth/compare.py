"""``python -m synth.compare NAME``: the tables of docs/area.md, printed or, with --page, rewritten.

The tables are those of the modules of ``synth.tables`` that the rooms name. A table may name a
page of its own. ``chip`` takes any configuration:
``python -m synth.compare chip --config NAMED FIELD=VALUE ...``.
"""

import importlib
import sys
from pathlib import Path

from golden import command
from golden.files import replacing
from hdl.arguments import add_page, check_page, write_page
from hdl.pages.documents import pages_directory
from hdl.registry import configuration, rooms
from synth.area import SynthesisError
from synth.liberty import LibraryError
from synth.tables.common import Tables, add_sets
from synth.yosys import YosysError

PAGE = pages_directory().parent / "area.md"


def all_tables() -> dict[str, Tables]:
    """Name of the command line -> what it makes."""
    modules = [name for room in rooms().values() for name in room.tables]
    return {
        name: made
        for module in modules
        for name, made in importlib.import_module(f"synth.tables.{module}").TABLES.items()
    }


def main(arguments: list[str] | None = None) -> int:
    tables = all_tables()
    configured = ", ".join(name for name, each in tables.items() if each.block)
    parser = command.Parser(prog="python -m synth.compare", description=__doc__)
    parser.add_argument("what", choices=tables)
    parser.add_argument(
        "assignments", nargs="*", metavar="field=value", help=f"of {configured}, as for hdl.build"
    )
    parser.add_argument("--config", metavar="NAMED", help="start from a named configuration")
    add_sets(parser, "of libraries: ")
    parser.add_argument(
        "--hardfloat", type=Path, metavar="FOLDER", help="of hardfloat: the source of HardFloat"
    )
    add_page(parser, PAGE)
    options = parser.parse_intermixed_args(arguments)
    chosen = tables[options.what]
    is_own = bool(options.assignments) or options.config not in (None, chosen.named)
    if is_own and not chosen.block:
        parser.error(f"{options.what} compares fixed configurations: no field=value, no --config")
    if is_own and options.page:
        parser.error(f"--page: the page has {chosen.block} at {chosen.named}")
    if options.sets and options.what != "libraries":
        parser.error("--set is of libraries alone")
    if options.hardfloat and options.what != "hardfloat":
        parser.error("--hardfloat is of hardfloat alone")
    page = options.page and options.page.with_name(chosen.page)
    check_page(parser, page, chosen.sections)
    try:
        if chosen.block:
            named = options.config or chosen.named
            options.configuration = configuration(chosen.block, named, options.assignments)
        sections, seconds = chosen.make(options)
    except (LibraryError, SynthesisError, YosysError, OSError, ValueError) as error:
        print(f"synth.compare: {error}", file=sys.stderr)
        return 2
    if seconds:
        print(f"  {seconds:.0f} s of mapping in all, at any time")
    print("\n".join(sections.values()))
    write_page(page, sections)
    if page and chosen.plot:
        file = page.with_suffix("") / f"{options.what}.svg"
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as part:
            part.write_bytes(chosen.plot())
    return 0


if __name__ == "__main__":
    command.run("synth.compare", main)
