"""``python -m synth.tables.placed --set NAME=FILE[,FILE...]``: docs/timing.md's clocks with wires.

Each placement is kept under build/synth, so a run that was stopped goes on. A block above
``--most`` kGE is not placed unless ``--also`` names it, and its row says so. Its size is that of
the page's other tables.
"""

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from golden import command
from golden.markers import table
from hdl.arguments import add_page, check_page, whole, write_page
from hdl.registry import configuration_of, find
from synth.area import Libraries, SynthesisError
from synth.liberty import LibraryError
from synth.placed import PlacedReport, check, map_block, place_mapped
from synth.tables import timing
from synth.tables.common import add_sets, library_sets
from synth.yosys import YosysError

MOST = 60  # kGE of a block that is placed
HEAD = (
    "block", "library", "kGE", "no wires, ns", "MHz", "wires, ns", "MHz", "longer by", "wire, mm",
    "die, um",
)  # fmt: skip


def sizes(page: Path, group: str) -> dict[tuple[str, str], float]:
    """(block with its configuration, library) -> kGE in the section ``group`` of ``page``."""
    text = page.read_text() if page.exists() else ""
    found = re.search(rf"<!-- generated: {group} -->\n(.*?)<!-- end", text, re.S)
    rows = [line.split("|")[1:] for line in (found[1] if found else "").splitlines()[2:]]
    return {(row[0].strip(), row[1].strip()): float(row[2]) for row in rows}


def _row(label: str, library: str, report: PlacedReport) -> tuple[str, ...]:
    own, limit = report.limit(False), report.limit()
    figures: tuple[str, ...] = ("", "", "", "", "")
    if own and limit:
        figures = (
            f"{own.ns:.3f}", f"{1000 / own.ns:,.0f}", f"{limit.ns:.3f}", f"{1000 / limit.ns:,.0f}",
            f"{limit.ns / own.ns - 1:.0%}",
        )  # fmt: skip
    die = f"{report.die.width:,.0f} x {report.die.height:,.0f}"
    return label, library, f"{report.kge:.2f}", *figures, f"{report.length_um / 1000:,.1f}", die


def _without(label: str, library: str, kge: float) -> tuple[str, ...]:
    return label, library, f"{kge:.2f}", "", "", f"not placed: {kge:.0f} kGE", *[""] * 4


def placed_table(
    group: str, sets: dict[str, Libraries], limit: float, also: Sequence[str] = ()
) -> str:
    """Rows of the blocks of ``group`` in each library; ``also``: larger ones that are placed."""
    rows, known = [], sizes(timing.PAGE, group)
    for name, *assignments in timing.GROUPS[group]:
        most = math.inf if name in also else limit
        label = " ".join([name, *assignments])
        for library, libraries in sets.items():
            kge = known.get((label, library), 0.0)
            if kge <= most:
                block = find(name).component(configuration_of(name, assignments))
                mapped = map_block(block, name, libraries)
                kge = mapped.kge
            if kge > most:
                print(f"  {library}: {label}: not placed: {kge:.0f} kGE", flush=True)
                rows.append(_without(label, library, kge))
                continue
            report = place_mapped(mapped)
            print(f"  {library}: {label}: {report.seconds:.0f} s", flush=True)
            rows.append(_row(label, library, report))
    return table(HEAD, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m synth.tables.placed", description=__doc__)
    add_sets(parser)
    parser.add_argument("--only", choices=timing.GROUPS, help="the table of one group of blocks")
    parser.add_argument(
        "--most", type=whole(), default=MOST, metavar="KGE", help=f"default: {MOST}"
    )
    parser.add_argument(
        "--also", action="append", default=[], metavar="NAME", help="a block that may be larger"
    )
    add_page(parser, timing.PAGE)
    options = parser.parse_args(arguments)
    groups = [options.only] if options.only else list(timing.GROUPS)
    check_page(parser, options.page, (f"{group}_placed" for group in groups))
    if not options.sets:
        parser.error("--set is needed: the tables are of libraries with delays")
    try:
        sets = library_sets(options.sets)
        for libraries in sets.values():
            check(libraries)
        sections = {
            f"{group}_placed": placed_table(group, sets, options.most, options.also)
            for group in groups
        }
    except (LibraryError, SynthesisError, YosysError, OSError) as error:
        print(f"synth.tables.placed: {error}", file=sys.stderr)
        return 2
    print("\n".join(sections.values()))
    write_page(options.page, sections)
    return 0


if __name__ == "__main__":
    command.run("synth.tables.placed", main)
