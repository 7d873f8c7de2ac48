"""``senbazuru.runs.build_report [blocks] [chip] [benches] [rooms]``: tables of docs/build.md.

``blocks``: time, memory and Verilog of every registered block at its default configuration, and
Verilator's lint of it. ``chip``: the same for each room's chip.
``benches``: each testbench in the run whose report is ``--junit``. ``rooms``: all tests of that run
by folder, next to the run of ``--before``. All times are processor seconds, which a busy machine
changes little.
"""

import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from golden import command
from golden.markers import table
from hdl.arguments import add_page, check_page, write_page
from hdl.back.deliver import Delivery, package
from hdl.back.verilog import convert
from hdl.registry import all_blocks, configuration, find, rooms
from synth.area import is_macro
from synth.modules import instantiated, module_texts, stub
from tb.simulate.run import LINT_WAIVERS, ROOT, tool_environment

PAGE = ROOT / "docs" / "build.md"
_SECTIONS = {
    "blocks": ("build_blocks",),
    "chip": ("build_chip",),
    "benches": ("build_benches",),
    "rooms": ("build_rooms",),
}
_CO_SIMULATING = ("tb.", "senbazuru.")  # packages whose tests run Verilated models


def _seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def lint_seconds(top: str, verilog: str) -> float:
    """Processor seconds of ``verilator --lint-only -Wall``; AssertionError if not clean."""
    before = _seconds(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="lint-") as folder:
        source = Path(folder) / f"{top}.v"
        source.write_text(verilog)
        command = ["verilator", "--lint-only", "-Wall", "--top-module", top]
        command += [f"-Wno-{rule}" for rule in LINT_WAIVERS]
        result = subprocess.run(
            [*command, str(source)], env=tool_environment(), capture_output=True, text=True
        )
        if result.returncode:
            raise AssertionError(f"{top}: {result.stderr[:2000]}")
    return _seconds(resource.RUSAGE_CHILDREN) - before


def _convert(name: str, config) -> tuple[Delivery, float, float]:
    """(design, processor seconds, MiB at most)."""
    start = _seconds(resource.RUSAGE_SELF) + _seconds(resource.RUSAGE_CHILDREN)
    design = package(convert(find(name).component(config), name))
    spent = _seconds(resource.RUSAGE_SELF) + _seconds(resource.RUSAGE_CHILDREN) - start
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)  # the child is Yosys alone
    return design, spent, max(resource.getrusage(each).ru_maxrss for each in who) / 1024


def _lint_modules(design: Delivery) -> Iterator[float]:
    """Lint seconds of each module, its children being black boxes."""
    texts = module_texts(design.verilog)
    stubs = {module: stub(text) for module, text in texts.items()}
    for module, text in texts.items():
        children = "".join(stubs[child] for child in instantiated(text, set(texts)))
        around = f"/* verilator lint_off UNDRIVEN */\n{children}/* verilator lint_on UNDRIVEN */\n"
        yield lint_seconds(module, around + text)


def _block_row(name: str) -> tuple[str, ...]:
    design, seconds, peak = _convert(name, configuration(name, None, []))
    try:
        lint = f"{sum(_lint_modules(design)):.1f}"
    except AssertionError as error:
        lint = "fails"
        print(error, file=sys.stderr)
    return (
        f"`{name}`",
        f"{len(design.blocks)}",
        f"{len(design.verilog.encode()) / 1000:,.1f}",
        f"{seconds:.1f}",
        f"{peak:,.0f}",
        lint,
    )


def _alone(function: Callable, *arguments):
    """``function`` in a process of its own: its memory at most is then its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)


def block_tables() -> dict[str, str]:
    """Section ``build_blocks``."""
    rows = []
    # A whole chip has tables of its own.
    chips = {name for name, _ in _chips()}
    names = [name for name in all_blocks() if name not in chips]
    for place, name in enumerate(names, start=1):
        rows.append(_alone(_block_row, name))
        print(f"  [{place}/{len(names)}] {' '.join(rows[-1])}", flush=True)
    head = (
        "block", "distinct modules", "Verilog, KB", "emission, s", "memory, MiB", "lint, s",
    )  # fmt: skip
    return {"build_blocks": table(head, rows)}


def chip_tables(whole: bool = False) -> dict[str, str]:
    """Section ``build_chip``.

    whole: lint the design in one go as well. Verilator then takes more than 8 GB, because it
    makes a copy of a module for each instance.
    """
    made = [_alone(_chip_tables, *chip, whole) for chip in _chips()]
    return {section: "\n".join(each[section] for each in made) for section in made[0]}


def _chips() -> list[tuple[str, str]]:
    """(block, named configuration) of every room's chip."""
    return [room.chip for room in rooms().values() if room.chip]


def _chip_tables(name: str, named: str, whole: bool) -> dict[str, str]:
    design, seconds, peak = _convert(name, configuration(name, named, []))
    print(f"  {name}: {seconds:.1f} s, {peak:,.0f} MiB", flush=True)
    size = len(design.verilog.encode()) / 1e6
    head = (named, "")
    rows = [
        ("distinct modules", f"{len(design.blocks)}"),
        ("of them RAM macros", f"{sum(is_macro(block) for block in design.blocks.values())}"),
        ("Verilog, MB", f"{size:.2f}"),
        ("Verilog, lines", f"{design.verilog.count(chr(10)):,}"),
        ("emission, s of the processor", f"{seconds:.1f}"),
        ("emission, MiB at most", f"{peak:,.0f}"),
    ]
    lint = sum(_lint_modules(design))
    if whole:
        seconds = lint_seconds(name, design.verilog)
        rows.append(("lint of the whole, s of the processor", f"{seconds:.1f}"))
    rows.append(("lint module by module, all, s", f"{lint:.1f}"))
    return {"build_chip": table(head, rows)}


def processor_seconds(report: Path) -> dict[str, list[float]]:
    """The processor seconds of each test of a JUnit report that ran, by test module.

    ValueError if the report has none, or a test without them.
    """
    tests: dict[str, list[float]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            spent = case.find("properties/property[@name='processor']")
            if spent is None:
                raise ValueError(f"{report}: {case.get('name')} has no property processor")
            tests.setdefault(case.get("classname", ""), []).append(float(spent.get("value", "")))
    if not tests:
        raise ValueError(f"{report} has no test")
    return tests


def bench_tables(report: Path, before: Path | None = None) -> dict[str, str]:
    """Section ``build_benches``: processor seconds of each test file that co-simulates."""
    rows = [
        (f"`{module.replace('.', '/')}.py`", f"{len(spent)}", f"{sum(spent):.0f}")
        for module, spent in sorted(processor_seconds(report).items())
        if module.startswith(_CO_SIMULATING)
    ]
    if not rows:
        raise ValueError(f"{report} has no test of tb or senbazuru")
    return {"build_benches": table(("testbench", "tests", "processor, s"), rows)}


def room_tables(report: Path, before: Path | None = None) -> dict[str, str]:
    """Section ``build_rooms``: processor seconds by folder, and those of ``before`` if given."""
    columns = []
    for each in filter(None, (before, report)):
        rooms: dict[str, list[float]] = {}
        for module, spent in processor_seconds(each).items():
            is_bench = module.startswith(_CO_SIMULATING)
            room = "/".join(module.split(".")[:-1]) if is_bench else "tests"
            for key in (room, "all"):
                rooms.setdefault(key, []).extend(spent)
        columns.append(rooms)
    names = sorted({name for rooms in columns for name in rooms} - {"all"})
    rows = []
    for name in (*names, "all"):
        row = [f"`{name}`" if name != "all" else name]
        for rooms in columns:
            row += [f"{len(rooms.get(name, []))}", f"{sum(rooms.get(name, [])):.0f}"]
        rows.append(tuple(row))
    head = ("room", "tests", "processor, s")
    if before is not None:
        head = ("room", "tests before", "processor before, s", "tests", "processor, s")
    return {"build_rooms": table(head, rows)}


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.build_report", description=__doc__)
    parser.add_argument(
        "what",
        nargs="*",
        choices=tuple(_SECTIONS),
        default=["blocks", "chip"],
    )
    parser.add_argument("--whole", action="store_true", help="lint the chip in one go, > 8 GB")
    parser.add_argument(
        "--junit",
        type=Path,
        default=Path("build") / "tests.xml",
        help="of benches and rooms (%(default)s)",
    )
    parser.add_argument("--before", type=Path, help="of rooms: the report of an earlier run")
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, [name for what in options.what for name in _SECTIONS[what]])
    os.environ["AMARANTH_USE_YOSYS"] = "builtin"
    try:
        for what in options.what:
            if what == "blocks":
                sections = block_tables()
            elif what == "chip":
                sections = chip_tables(options.whole)
            else:
                tables = {"benches": bench_tables, "rooms": room_tables}[what]
                sections = tables(options.junit, options.before)
            assert tuple(sections) == _SECTIONS[what]
            print("\n".join(sections.values()))
            write_page(options.page, sections)
    except (AssertionError, OSError, ValueError, ElementTree.ParseError) as error:
        print(f"senbazuru.runs.build_report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.build_report", main)
