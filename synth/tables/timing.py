"""``python -m synth.tables.timing --set NAME=FILE[,FILE...]``: the tables of docs/timing.md.

Without ``--set`` it says how to get OpenSTA and a library with delays.
"""

import sys

from golden import command
from golden.markers import table
from hdl.arguments import add_page, check_page, write_page
from hdl.million.room import BLOCKS as MILLION
from hdl.pages.documents import pages_directory
from hdl.registry import configuration_of, find
from synth.area import Libraries, SynthesisError
from synth.liberty import LibraryError
from synth.tables.common import add_sets, library_sets
from synth.timing import TimingReport, delays_of, program_of, time_block
from synth.yosys import YosysError

PAGE = pages_directory().parent / "timing.md"
CLOCK_NS = 2.0  # of the runs; the netlists do not depend on it

# name of a block, and its configuration as registry.configuration_of takes it
_Blocks = tuple[tuple[str, ...], ...]
_BLOCKS: _Blocks = (
    ("stream_fifo",),
    ("fp16_add",),
    ("fp16_mul",),
    ("fp16_fma",),
    ("fp16_to_fp32",),
    ("fp16_divide",),
    ("index_nearest",),
    ("kllm_select_column",),
    ("kllm_row_lookup", "elements=2"),
    ("kllm_scaler", "stages=6"),
    ("kllm_pe_lane", "--config=small"),
    ("kllm_quantizer", "--config=small"),
    ("kllm_norm_stats", "--config=small"),
    ("kllm_functional_unit", "--config=small"),
    ("oaken_quant_engine", "lanes=8"),
    ("oaken_kv_engine", "--config=small"),
)
# section of the page -> its blocks
GROUPS: dict[str, _Blocks] = {
    "timing": _BLOCKS,
    "timing_million": tuple((name, "--config=small") for name in sorted(MILLION)),
}

HELP = """\
A clock needs a Liberty file with delay tables; the project ships none.
  make timing LIBERTY=NAME=FILE[,FILE...]            prints the tables of docs/timing.md
  python -m synth.report NAME --clock-ns T --liberty FILE   times one block
Sky130 HD and ASAP7 are open: https://github.com/google/skywater-pdk,
https://github.com/The-OpenROAD-Project/asap7
OpenSTA, the program `sta`, is used where it is on PATH. Debian and Ubuntu: apt-get install opensta.
Source: https://github.com/The-OpenROAD-Project/OpenSTA. Without it the project estimates by the
same tables, and says so."""


def timing_tables(group: str, sets: dict[str, Libraries]) -> dict[str, str]:
    """Sections ``group`` and ``group_paths``."""
    rows, paths = [], []
    for name, *assignments in GROUPS[group]:
        label = " ".join([name, *assignments])
        for library, libraries in sets.items():
            report = time_block(
                find(name).component(configuration_of(name, assignments)), name, libraries, CLOCK_NS
            )
            print(f"  {library}: {label}: {report.timer}", flush=True)
            rows.append(_row(label, library, report))
            limit = report.limit or report.paths[0]
            for path in report.paths:
                if path is limit or path.ns > limit.ns:
                    paths.append(
                        (
                            label,
                            library,
                            path.kind,
                            f"`{path.start}` ({path.start_module})",
                            f"`{path.end}` ({path.end_module})",
                            f"{path.ns:.3f}",
                            f"{report.depth(path):.1f}",
                        )
                    )
    head = (
        "block", "library", "kGE", "ns", "MHz", "FO4",
        "inputs, FO4", "outputs, FO4", "with RAM, FO4",
    )  # fmt: skip
    path_head = ("block", "library", "path", "from", "to", "ns", "FO4")
    return {
        group: table(head, rows),
        f"{group}_paths": table(path_head, paths, align_right=False),
    }


def _row(label: str, library: str, report: TimingReport) -> tuple[str, ...]:
    def deepest(wanted: str) -> str:
        found = [report.depth(path) for path in report.paths if wanted in path.kind.split(" to ")]
        return f"{max(found):.1f}" if found else ""

    limit = report.limit
    return (
        label,
        library,
        f"{report.kge:.2f}",
        f"{limit.ns:.3f}" if limit else "",
        f"{report.mhz:,.0f}" if report.mhz else "",
        f"{report.depth(limit):.1f}" if limit else "",
        deepest("input"),
        deepest("output"),
        deepest("RAM"),
    )


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m synth.tables.timing", description=__doc__)
    add_sets(parser)
    parser.add_argument("--only", choices=GROUPS, help="the tables of one group of blocks")
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    groups = [options.only] if options.only else list(GROUPS)
    check_page(parser, options.page, (f"{g}{end}" for g in groups for end in ("", "_paths")))
    if not options.sets:
        if options.page:
            parser.error("--page needs --set: the tables are of libraries")
        print(HELP)
        print(f"sta: {program_of(None) or 'not on PATH'}")
        return 0
    try:
        sets = library_sets(options.sets)
        for libraries in sets.values():
            delays_of(libraries)
        sections: dict[str, str] = {}
        for group in groups:
            sections |= timing_tables(group, sets)
    except (LibraryError, SynthesisError, YosysError, OSError) as error:
        print(f"synth.tables.timing: {error}", file=sys.stderr)
        return 2
    print("\n".join(sections.values()))
    write_page(options.page, sections)
    return 0


if __name__ == "__main__":
    command.run("synth.tables.timing", main)
