"""``senbazuru.runs.power NAME CASE --clock-ns T --liberty FILE``: power of a block's mapped gates.

The block's own bench drives the gates: the case CASE of its tests, such as ``int8`` of
``test_lane[int8]``. Every check of the bench holds for the gates too. The toggles of all nets in
that run, times the energies of the Liberty file, are the power (docs/power.md).

Exit status: 0; 1 if the gates fail the bench; 2 for bad input; 130 if interrupted.
"""

import contextlib
import dataclasses
import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import tb.simulate.run
from golden import command
from golden.config import ConfigError
from golden.files import claimed, made_folder, replacing
from hdl.arguments import folder, period, whole
from hdl.back.verilog import convert
from hdl.block import Operations
from hdl.registry import find
from synth import gates
from synth.area import Libraries, SynthesisError, load_libraries
from synth.energy import Energies
from synth.liberty import LibraryError
from synth.netlist import map_for_speed, netlist_of
from synth.power import GROUPS, Power, measure
from synth.timing import Times, delays_of, estimate
from synth.yosys import YosysError, default_tool
from tb.faults.mutate import Recording, collect, test_file

# Of a C++ function of gates. As one function, 12,600 gates cost g++ 40 s; in functions of 500, 5 s.
_STATEMENTS = 500


class BenchError(ValueError):
    """No such bench, or one that cannot drive gates; one line."""


@dataclasses.dataclass(frozen=True)
class PowerReport:
    """Power of a block in one library under one case of its bench."""

    name: str
    case: str
    test: str  # cocotb tests that ran; empty: all
    library: str
    configuration: dict[str, Any]
    power: Power
    operations: Operations | None
    kge: float  # of the netlist that ran
    ns: float | None  # its worst path between registers, by this project's estimate

    @property
    def operation_pj(self) -> float | None:
        """pJ per operation, everything included; None where the block counts none."""
        if self.operations is None:
            return None
        moved = {each.name: each.transfers for each in self.power.streams}
        return self.power.each_pj(moved.get(self.operations.port, 0), self.operations.number)

    def to_json(self) -> dict[str, Any]:
        plain = {
            "name": self.name,
            "case": self.case,
            "test": self.test,
            "library": self.library,
            "configuration": self.configuration,
            "kge": round(self.kge, 4),
            "ns": None if self.ns is None else round(self.ns, 6),
        }
        each = self.operation_pj
        if self.operations is not None and each is not None:
            plain["pj_per_operation"] = {"unit": self.operations.unit, "pj": round(each, 9)}
        return plain | self.power.to_json()


def _case(recording: Recording) -> str:
    """The text in pytest's brackets, without the seed; else the name of the test."""
    name, _, inside = recording.test.rpartition("::")[2].partition("[")
    return re.sub(r"-?seed\d+$", "", inside.removesuffix("]")) or name


def bench_of(name: str, case: str, seed: int = 1) -> Recording:
    """The simulation that case ``case`` of block ``name``'s tests runs. Raises BenchError."""
    find(name)
    where = test_file(name).relative_to(tb.simulate.run.ROOT)
    plain = bool(re.fullmatch(r"\w+", case))
    try:
        found = collect(name, seed, case if plain else "")
    except RuntimeError:
        found = []
    for recording in found:
        if _case(recording) == case:
            if type(recording.block) is not find(name).component or recording.wrap:
                raise BenchError(f"{case} of {where} wraps {name}; power needs the block itself")
            return recording
    cases = list(dict.fromkeys(_case(each) for each in collect(name, seed)))
    raise BenchError(f"{where} has no case {case!r} that simulates; it has: {', '.join(cases)}")


class MappedGates:
    """A block mapped once, on whose gates any number of benches run.

    LibraryError: no power tables.
    """

    def __init__(self, name: str, block: Any, libraries: Libraries, tool: str | None = None):
        delays, self.fo4 = delays_of(libraries)
        self.energies = Energies(delays)
        self.energies[self.fo4.cell]  # refused before the mapping
        self.design = convert(block, name)
        self.top = map_for_speed(self.design, libraries, self.fo4, tool or default_tool())
        self.netlist = netlist_of(self.design, self.top, libraries, delays)
        self.kge = self.netlist.um2 / libraries.library.nand2.area / 1000
        text = gates.verilog(self.design, self.top, self.netlist, self.energies)
        self.model = tb.simulate.run.build_model(
            block, name=name, transform=lambda _: text, statements=_STATEMENTS
        )

    @functools.cached_property
    def times(self) -> Times:
        return Times(self.netlist, self.fo4)

    def power(
        self, recording: Recording, clock_ns: float, test: str = "", steps: Sequence[str] = ()
    ) -> Power:
        """Runs a bench and adds up the energies.

        steps: ports of one bit whose cycles are counted. AssertionError: a check of it fails.
        """
        arguments = recording.arguments | ({"testcase": test} if test else {})
        folder = tb.simulate.run.run_model(self.model, recording.module, **arguments)
        file = folder / gates.RECORD
        try:
            recorded = gates.read_record(file.read_text(), self.netlist, self.energies)
        finally:
            file.unlink(missing_ok=True)
        return measure(
            self.top, self.netlist, self.energies, self.fo4, recorded, clock_ns, self.design.name,
            steps, self.times,
        )  # fmt: skip


def power_of(
    name: str,
    recording: Recording,
    libraries: Libraries,
    clock_ns: float,
    *,
    test: str = "",
    tool: str | None = None,
) -> PowerReport:
    """Map the block of ``recording``, run its bench on the gates, and add up the energies.

    AssertionError: the gates fail a check of the bench. LibraryError: no power tables.
    """
    mapped = MappedGates(name, recording.block, libraries, tool)
    operations = recording.block.operations
    steps = (operations.port,) if operations else ()
    power = mapped.power(recording, clock_ns, test, steps)
    netlist, fo4, library = mapped.netlist, mapped.fo4, libraries.library
    paths = (each.ns for each in estimate(netlist, fo4) if each.kind == "register to register")
    return PowerReport(
        name, _case(recording), test, library.name, recording.block.config.describe(), power,
        operations, netlist.um2 / library.nand2.area / 1000, next(paths, None),
    )  # fmt: skip


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        justify = "right" if number else "left"
        table.add_column(head, justify=justify, no_wrap=bool(number), overflow="fold")
    return table


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def print_report(report: PowerReport, console: Console) -> None:
    """Prints where the energy goes, and what the figures rest on."""
    power = report.power
    total = power.cycle_pj
    console.print(
        f"[bold]{report.name}[/bold] {report.case} in {report.library}, {power.volts:g} V, "
        f"{power.clock_ns:g} ns: [bold]{power.milliwatts:.4g} mW[/bold], "
        f"{total:.4g} pJ per cycle",
        highlight=False,
    )
    groups = _table("pJ per cycle", "internal", "switching", "all", "mW", "share")
    for group in GROUPS:
        both = power.group_pj(group)
        groups.add_row(
            group, f"{power.internal[group]:.4g}", f"{power.switching[group]:.4g}", f"{both:.4g}",
            f"{both / power.clock_ns:.4g}", _share(both, total),
        )  # fmt: skip
    leakage = power.leakage_mw * power.clock_ns
    groups.add_row(
        "leakage", "", "", f"{leakage:.4g}", f"{power.leakage_mw:.4g}", _share(leakage, total)
    )
    console.print(groups)
    modules = _table("module", "pJ per cycle", "leakage mW", "share")
    for name, (dynamic, mw) in sorted(power.modules.items(), key=lambda item: -item[1][0]):
        both = dynamic + mw * power.clock_ns
        modules.add_row(name, f"{both:.4g}", f"{mw:.3g}", _share(both, total))
    console.print(modules)
    for stream in power.streams:
        each = power.each_pj(stream.transfers)
        if each is not None:
            text = f"{stream.name}: {stream.transfers:,} transfers, {each:.4g} pJ each"
            console.print(text, highlight=False)
    if report.operations is not None and report.operation_pj is not None:
        unit = report.operations.unit
        console.print(
            f"{report.operation_pj:.4g} pJ per {unit}: {report.operations.number} {unit} for "
            f"each transfer of {report.operations.port}",
            highlight=False,
        )
    console.print(
        f"{power.cycles:,} cycles out of reset, {power.toggles / power.cycles:,.1f} nets toggle in "
        f"each; {report.kge:,.2f} kGE mapped for speed, and the bench passes on these gates; "
        "no glitches, no wires, no clock tree, no RAM",
        highlight=False,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.power", description=__doc__)
    parser.add_argument("name", help="block (python -m hdl.build --list shows all)")
    parser.add_argument("case", help="case of the block's tests that simulates it")
    parser.add_argument("--clock-ns", type=period, required=True, metavar="T")
    parser.add_argument(
        "--liberty", action="append", required=True, type=Path, metavar="FILE",
        help="cell library with power tables (.lib or .lib.gz), may be given more than once",
    )  # fmt: skip
    parser.add_argument(
        "--test", default="", metavar="NAME", help="cocotb test to run; default: all of the bench"
    )
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=1)
    parser.add_argument(
        "-o", dest="directory", type=folder, default=Path("build"),
        help="writes DIR/NAME/power.json",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print power.json and nothing else")
    options = parser.parse_args(arguments)
    target = options.directory / options.name / "power.json"
    outputs = contextlib.ExitStack()
    try:
        find(options.name)
        libraries = load_libraries(options.liberty)
        delays, fo4 = delays_of(libraries)
        Energies(delays)[fo4.cell]  # refused before the bench's vectors are made
        outputs.enter_context(made_folder(target.parent))
        outputs.enter_context(claimed(target))
        recording = bench_of(options.name, options.case, options.seed)
        report = power_of(options.name, recording, libraries, options.clock_ns, test=options.test)
        text = json.dumps(report.to_json(), indent=2) + "\n"
        with replacing(target) as part:
            part.write_text(text)
    except (
        BenchError, ConfigError, LibraryError, SynthesisError, YosysError, OSError,
    ) as error:  # fmt: skip
        print(f"senbazuru.runs.power: {error}", file=sys.stderr)
        return 2
    except AssertionError as error:
        text = str(error).splitlines()[0]
        is_missing = bool(options.test) and "no cocotb test ran" in text
        if is_missing:
            text = f"the bench of {options.name} has no test {options.test!r}"
        print(f"senbazuru.runs.power: {text}", file=sys.stderr)
        return 2 if is_missing else 1
    finally:
        outputs.close()
    if options.json:
        print(text, end="")
    else:
        print_report(report, Console())
        print(f"written to {target}")
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.power", main)
