"""``senbazuru.runs.kits [BLOCK...]``: kits under both simulators, and with planted faults.

Writes the kit of each block, by default of all that have golden vectors, at the configuration that
``hdl.kit.kits`` names. Its testbench must pass under Icarus Verilog and under Verilator. Then
faults are planted in the Verilog until the testbench has failed on ``--faults`` of them in each
simulator. Faults that it does not find are printed by name. ``--page`` rewrites the table of
docs/kits.md.
Exit status 1: a testbench does not pass, or has found too few faults.
"""

import dataclasses
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder, kept_json, replacing
from golden.markers import table
from hdl.arguments import add_page, check_page, whole, write_page
from hdl.kit.kits import all_kits
from hdl.registry import find
from tb.kits.check import SIMULATORS, Faults, Run, available, plant, run_kit, write_kit
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "kits.md"
_FOLDER = ROOT / "build" / "kits" / "runs"
_PASS = re.compile(r"^PASS \w+: (\d+) episodes at \d+ flows, (\d+) transfers", re.M)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.kits", description=__doc__)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help="by default all with vectors")
    parser.add_argument(
        "--simulator", action="append", choices=("icarus", "verilator"),
        help="by default both; may be given twice",
    )  # fmt: skip
    parser.add_argument("--faults", type=whole(0), default=3, help="faults to be found of a block")
    parser.add_argument("--tries", type=whole(), default=10, help="most faults planted in a block")
    parser.add_argument("--seed", type=whole(), default=1, help="of the faults")
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["kits"])
    try:
        for name in options.blocks:
            find(name)
        return report(options)
    except ConfigError as error:
        print(f"senbazuru.runs.kits: {error}", file=sys.stderr)
        return 2


@dataclasses.dataclass
class Judged:
    """One kit: its runs, and the faults planted in it."""

    name: str
    configuration: str
    runs: dict[str, Run]
    found: list[str] = dataclasses.field(default_factory=list)  # of faults, in every simulator
    missed: list[str] = dataclasses.field(default_factory=list)
    without: list[str] = dataclasses.field(default_factory=list)  # no fault, and yet no PASS

    @property
    def passes(self) -> bool:
        return all(run.passes for run in self.runs.values())

    def limit(self, simulator: str) -> float:
        """Seconds after which a run with a fault does not end."""
        return 60 + 6 * self.runs[simulator].seconds

    def numbers(self) -> tuple[str, str]:
        """Episodes and transfers that the testbench counted."""
        for run in self.runs.values():
            if found := _PASS.search(run.text):
                return found[1], found[2]
        return "-", "-"

    def row(self) -> list[object]:
        seconds = [
            f"{self.runs[each].seconds:.0f}" if each in self.runs else "-" for each in SIMULATORS
        ]
        tried = len(self.found) + len(self.missed)
        faults = f"{len(self.found)} of {tried}" if tried else "-"
        if self.without:
            faults += f", not under {' and '.join(self.without)}"
        return [f"`{self.name}`", self.configuration, *self.numbers(), *seconds, faults]


def _passes_in(faults: Faults, number: int, judged: Judged) -> str:
    """The first simulator in which the testbench passes a fault; empty: it fails in all.

    The fastest comes first. A run that takes six times as long as without a fault does not end.
    """
    order = sorted(judged.runs, key=lambda each: each == "icarus")
    for each in order:
        limit = judged.limit(each)
        if each not in judged.without and not faults.run(each, number, seconds=limit).fails:
            return each
    return ""


def _key(kit: Path, simulators: list[str], options) -> str:
    """Hash of everything that decides what ``judge`` finds: what runs, and the options."""
    parts = [*simulators, str(options.faults), str(options.tries), str(options.seed)]
    name = kit.name
    run = [kit / file for file in (f"{name}.v", f"{name}.vlt", f"{name}_tb.v", "run.sh")]
    for path in (*run, *sorted(kit.glob("vectors/*"))):
        parts += [str(path.relative_to(kit)), hashlib.sha256(path.read_bytes()).hexdigest()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def judge(name: str, simulators: list[str], options) -> Judged:
    """Run the kit of block ``name``, and with faults until ``options.faults`` are found.

    What an earlier run has found with the same files is kept in build/kits/runs.
    """
    kit = _FOLDER / name
    shutil.rmtree(kit, ignore_errors=True)
    write_kit(name, kit)
    kept = _FOLDER / "kept" / f"{name}-{_key(kit, simulators, options)}.json"
    if (found := kept_json(kept)) is not None:
        runs = {each: Run(**run) for each, run in found.pop("runs").items()}
        return Judged(**found, runs=runs)
    judged = _judge(name, kit, simulators, options)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with replacing(kept) as part:
        part.write_text(json.dumps(dataclasses.asdict(judged)))
    return judged


def _judge(name: str, kit: Path, simulators: list[str], options) -> Judged:
    faulty = _FOLDER / f"{name}.faults"
    shutil.rmtree(faulty, ignore_errors=True)
    judged = Judged(name, _configuration(name), {each: run_kit(kit, each) for each in simulators})
    if not judged.passes or not options.faults:
        return judged
    faults = plant(name, kit, faulty, options.tries, options.seed)
    # The netlist is another text, of whole words: Icarus may find a loop between bits of one.
    judged.without = [
        each for each in simulators if not faults.run(each, 0, seconds=judged.limit(each)).passes
    ]
    if len(judged.without) == len(simulators):
        return judged
    for mutant in faults.mutants:
        missed = _passes_in(faults, mutant.number, judged)
        line = f"{mutant.fault} at {mutant.wire or 'a cell'}: {mutant.source}"
        if missed:
            judged.missed.append(f"{line} ({missed})")
        else:
            judged.found.append(line)
        if len(judged.found) == options.faults:
            break
    return judged


def _configuration(name: str) -> str:
    kit = all_kits()[name]
    return kit.shown or "default"


def _print(judged: Judged, wanted: int) -> bool:
    """Prints what was found of a kit; tells whether it is right."""
    for simulator, run in judged.runs.items():
        lines = run.text.strip().splitlines() or ["nothing printed"]
        verdicts = [each for each in lines if each.startswith(("PASS", "FAIL"))]  # after progress
        line = (verdicts or lines)[0]
        print(f"{judged.name:26} {simulator:10} {run.seconds:6.1f} s  {line}", flush=True)
    for simulator in judged.without:
        print(f"{judged.name:26} {simulator:10} does not pass the netlist without a fault")
    for line in judged.missed:
        print(f"{judged.name:26} not found: {line}", flush=True)
    enough = len(judged.found) >= wanted
    if judged.passes and wanted:
        print(f"{judged.name:26} faults found: {len(judged.found)}", flush=True)
    return judged.passes and enough


def _cell(line: str) -> str:
    """A line of Verilog as code in a table."""
    return "`" + line.replace("|", "\\|") + "`"


def report(options) -> int:
    """The runs of the command. ConfigError: a block without vectors, a missing simulator."""
    kits = all_kits()
    for name in options.blocks:
        if name not in kits:
            raise ConfigError(f"{name} has no golden vectors for a testbench")
    simulators = options.simulator or list(SIMULATORS)
    for each in simulators:
        if not available(each):
            raise ConfigError(f"--simulator: {SIMULATORS[each]} is not installed")
    every, right = [], []
    with claimed_folder(_FOLDER):
        for name in options.blocks or sorted(kits):
            every.append(judge(name, simulators, options))
            right.append(_print(every[-1], options.faults))
    head = [
        "block",
        "configuration",
        "episodes",
        "transfers",
        "Icarus, s",
        "Verilator, s",
        "faults",
    ]
    text = table(head, [judged.row() for judged in every])
    print(text)
    missed = [[f"`{each.name}`", _cell(line)] for each in every for line in each.missed]
    if missed:
        head = ["block", "fault that the testbench does not find"]
        text += "\n" + table(head, missed, align_right=False)
    print(f"{sum(right)} of {len(every)} kits pass and find {options.faults} faults")
    write_page(options.page, {"kits": text})
    return 0 if all(right) else 1


if __name__ == "__main__":
    command.run("senbazuru.runs.kits", main)
