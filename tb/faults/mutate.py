"""``tb.faults.mutate [BLOCK...]``: faults in the netlist of each block, and its own tests.

Every registered block's tests, those that ``pytest tb/`` runs, are collected with the hardware
and the vectors that they use. Yosys builds random faults into that hardware, all in one model. A
fault is a bit inverted, stuck or controlled by a neighbour, at any port of any cell but clocks. A
plusarg selects the active one. A fault is killed when a test fails, crashes or hangs with it. A
fault that every test passes has survived, and is then tried for equivalence. ``--more-seeds`` runs
the tests of further seeds on what is left. Faults that die there are counted apart.

``build/mutate/kept`` holds each block whose faults are all judged. Its name has the seed and the
number of faults. Its folder is a hash of every source file at the start of the run, and of whether
the native ABC is installed. So a run that was interrupted resumes. A block is not kept if a source
has changed since the start. Exit status: 0 if every block was examined to the end, 1 if not, 2 for
bad input, 130 if interrupted.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console
from rich.table import Table

import tb.simulate.run
import tb.simulate.runner
from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder, kept_json, replacing
from golden.scheduler import add_scheduler, on_workers
from hdl.arguments import add_page, check_page, whole, write_page
from hdl.back.deliver import Delivery, package
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.registry import all_blocks, bench, find, rooms
from synth.modules import module_texts
from synth.yosys import YosysError, native_abc, run
from tb.faults import equivalence
from tb.faults.exhaustive import sends_every_word
from tb.fp16.support.formats import has_bench
from tb.sweep import SEED_MAX, check_sources, sources_key

ROOT = Path(__file__).resolve().parent.parent.parent
REPORT_DIR = ROOT / "build" / "mutate"
PAGE = ROOT / "docs" / "mutation.md"
PER_BLOCK = 4  # most recorded tests that share a block's faults, spread over its configurations
PER_MODEL = 4  # fewest faults for which another model is built, while the block has so many
TIMEOUT_FLOOR, TIMEOUT_FACTOR = 20.0, 6.0  # seconds; times the run without a fault
PROOF_LIMIT = 20  # seconds for one equivalence
WHOLE_LIMIT = 500_000  # characters of Verilog; in a larger design submodules stay whole
PROOF_BYTES = 20_000_000  # of the flattened netlist; Yosys takes minutes to say no of a larger one
SELECT = "mutant_select"


# What the tests of a block run


@dataclasses.dataclass
class Recording:
    """One co-simulation as a test of pytest starts it."""

    test: str
    block: Block
    module: str
    arguments: dict[str, Any]
    wrap: str | None = None  # as for hdl.back.verilog.convert

    @property
    def design(self) -> tuple:
        """The values that decide the Verilog."""
        return type(self.block), self.block.config, self.wrap


class _Collector:
    """Pytest plugin: tests that pass when every simulation is taken to pass."""

    def __init__(self) -> None:
        self.test = ""
        self.recorded: dict[str, list[Recording]] = {}
        self.passed: set[str] = set()

    def pytest_runtest_setup(self, item) -> None:
        self.test = item.nodeid

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def build_model(self, block: Block, *, wrap: str | None = None, **_):
        block._MustUse__silence = True  # collected by more tests than are run
        return block, wrap

    def run_model(self, model: tuple[Block, str | None], test_module: str, **arguments):
        block, wrap = model
        recording = Recording(self.test, block, test_module, arguments, wrap)
        self.recorded.setdefault(self.test, []).append(recording)
        return Path(os.devnull)


def test_file(name: str) -> Path:
    """The file with the tests of block ``name``."""
    return ROOT / bench(name)


def collect(name: str, seed: int, only: str = "") -> list[Recording]:
    """The simulations of block ``name``'s tests, those of deliberate failures left out.

    only: of the tests that pytest's ``-k`` selects by this text.
    """
    collector = _Collector()
    output = io.StringIO()
    with (
        mock.patch.object(tb.simulate.run, "build_model", collector.build_model),
        mock.patch.object(tb.simulate.run, "run_model", collector.run_model),
        contextlib.redirect_stdout(output),
    ):
        status = pytest.main(
            ["-q", "--all-cases", "-p", "no:cacheprovider", "-p", "no:unraisableexception",
             f"--rootdir={ROOT}", f"--seed={seed}", "-k", only, str(test_file(name))],
            plugins=[collector],
        )  # fmt: skip
    if status == pytest.ExitCode.INTERRUPTED:  # pytest catches Ctrl-C
        raise KeyboardInterrupt
    kept = [
        recording
        for test, recordings in collector.recorded.items()
        if test in collector.passed
        for recording in recordings
    ]
    if not kept:
        raise RuntimeError(f"{name}: no simulation found in {test_file(name)}\n{output.getvalue()}")
    return kept


def spread(recordings: list[Recording], count: int, seed: int) -> list[Recording]:
    """The recordings that share ``count`` faults: far from each other, and others at other seeds.

    A model takes most of the time of a few faults. So each has PER_MODEL of them or more.
    Tests that run one case of their testbench are taken where there is no other.
    """
    recordings = [each for each in recordings if not each.arguments.get("testcase")] or recordings
    number = min(max(count // PER_MODEL, 1), PER_BLOCK, len(recordings))
    places = ((n * len(recordings) // number + seed) % len(recordings) for n in range(number))
    return [recordings[place] for place in sorted(places)]


# Faults


@dataclasses.dataclass
class Mutant:
    """One fault of one recording, and what became of it."""

    block: str
    test: str
    number: int  # value of the plusarg
    module: str
    own: bool  # of the block itself, not of a submodule with a testbench of its own
    fault: str  # mode, cell type or name, port and bit
    wire: str
    source: str  # line of generated Verilog
    command: str
    outcome: str = ""  # killed, survived or equivalent
    by: str = ""
    proof: str = ""  # of survivors: equivalent, differs or undecided
    later: str = ""  # of survivors: what killed it at a later seed of the tests
    seconds: float = 0.0


def _field(line: str, name: str) -> str:
    found = re.search(rf"-{name} (\S+)", line)
    return found[1] if found else ""


_PREPARE = """read_verilog design.v
hierarchy -check -top {top}
{black_boxes}
proc
{attributes}
flatten
opt -nodffe -nosdff
wreduce
opt_clean
memory -nomap
opt_clean
write_rtlil base.il
"""


def _modules(design: Delivery, component: type) -> list[str]:
    """Modules that have faults: not a bench's bank, nor an operator of which fp16 has the bench."""
    *names, top = design.blocks
    is_bank = not isinstance(design.blocks[top], component)
    return [
        name
        for name in (names if is_bank else [*names, top])
        if isinstance(block := design.blocks[name], component)
        or not has_bench(type(block), block.config)
    ]


def _read_places(modules: dict[str, dict]) -> dict[str, dict[str, set[int]]]:
    """Module -> input port -> the places of it that the module reads, itself or inside.

    modules: as Yosys' ``write_json`` gives them.
    """
    found: dict[str, dict[str, set[int]]] = {}

    def of(name: str) -> dict[str, set[int]]:
        if name not in found:
            ports, cells = modules[name]["ports"], modules[name]["cells"]
            read = {
                b for port in ports.values() if port["direction"] != "input" for b in port["bits"]
            }
            for cell in cells.values():
                inner = of(cell["type"]) if cell["type"] in modules else None
                for port, bits in cell["connections"].items():
                    if inner is not None:
                        read |= {bits[place] for place in inner.get(port, ())}
                    elif cell["port_directions"][port] != "output":
                        read |= set(bits)
            found[name] = {
                port: {place for place, bit in enumerate(each["bits"]) if bit in read}
                for port, each in ports.items()
                if each["direction"] == "input"
            }
        return found[name]

    for name in modules:
        of(name)
    return found


def _reads(directory: Path, top: str, boxes: list[str]) -> Callable[[str], bool]:
    """Whether the fault of a line of Yosys is at a place that its cell reads.

    A black box does not read every bit of its inputs. Synthesis would remove the logic before them.
    """
    if not boxes:
        return lambda line: True
    run(
        f"read_verilog design.v\nhierarchy -check -top {top}\nproc\nopt_clean\n"
        "write_json -noscopeinfo places.json\n",
        directory,
        stem="places",
    )
    read = _read_places(json.loads((directory / "places.json").read_text())["modules"])
    cells = re.findall(r"^  cell \\(\S+) \\(\S+)$", (directory / "base.il").read_text(), re.M)
    kinds = {name: kind for kind, name in cells if kind in boxes}

    def is_read(line: str) -> bool:
        kind = kinds.get(_field(line, "cell").lstrip("\\"))
        port = _field(line, "port").lstrip("\\")
        if kind is None or port not in read[kind]:
            return True
        return int(_field(line, "portbit")) in read[kind][port]

    return is_read


def _fixed(netlist: str) -> Callable[[str], bool]:
    """Whether the fault of a line of Yosys is at the enable or a reset of an asynchronous read.

    Such a port of a memory has neither, and Yosys writes no other netlist than one with constants.
    """
    clocked: dict[str, int] = {}  # of each memory a bit per read port
    name = ""
    for line in netlist.splitlines():
        if found := re.match(r"  cell \$mem\w* \\?(\S+)$", line):
            name = found[1]
        elif found := re.match(r"    parameter \\RD_CLK_ENABLE (?:\d+'([01]+)|(\d+))$", line):
            clocked[name] = int(found[1], 2) if found[1] else int(found[2])

    def is_fixed(line: str) -> bool:
        ports = clocked.get(_field(line, "cell").lstrip("\\"))
        if ports is None or _field(line, "port").lstrip("\\") not in (
            "RD_EN", "RD_ARST", "RD_SRST"
        ):  # fmt: skip
            return False
        return not ports >> int(_field(line, "portbit")) & 1

    return is_fixed


def make_mutants(
    name: str, recording: Recording, count: int, seed: int, directory: Path
) -> tuple[Delivery, list[Mutant], str]:
    """(design, faults, Verilog with all of them): ``count`` spread over the distinct modules.

    Half are in the block's own modules and half in submodules, which have testbenches of their
    own. Operators have none here: the benches of fp16 run their arithmetic with far more vectors,
    and have their faults. Among modules a share grows with the square root of the cells, so that
    small ones have some. A design above ``WHOLE_LIMIT`` has faults in the block's own modules
    alone. Its submodules are black boxes for Yosys, and keep their Verilog.
    """
    design = package(convert(recording.block, tb.simulate.run.TOP, recording.wrap))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "design.v").write_text(design.verilog)
    component = find(name).component
    modules = _modules(design, component)
    own = own_modules(design, component)
    texts = module_texts(design.verilog)
    of_block = with_plain(design, own, texts)
    is_large = len(design.verilog) > WHOLE_LIMIT
    kept = [module for module in texts if module not in of_block] if is_large else []
    modules = [module for module in modules if module in own] if kept else modules
    # A module of its own, or a plain submodule that Amaranth named after it. Attributes outlive
    # flattening.
    attributes = "\n".join(
        f'setattr -set fault_module "{module}" {module}/c:* {module}.*/c:*' for module in modules
    )
    listing = "\n".join(
        f"mutate -list {4 * count + 8} -seed {seed} -o list_{k}.txt a:fault_module={module}"
        for k, module in enumerate(modules)
    )
    counting = "\n".join(
        f"tee -q -o cells_{k}.txt select -count a:fault_module={module}"
        for k, module in enumerate(modules)
    )
    run(
        _PREPARE.format(
            top=design.name,
            attributes=attributes,
            black_boxes="\n".join(f"blackbox {module}" for module in kept),
        )
        + counting
        + "\n"
        + listing
        + "\n",
        directory,
    )

    lines = design.verilog.splitlines()
    is_read = _reads(directory, design.name, kept)
    is_fixed = _fixed((directory / "base.il").read_text())
    pools: dict[str, list[str]] = {}
    weights: dict[str, float] = {}
    for k, module in enumerate(modules):
        found = (directory / f"list_{k}.txt").read_text().splitlines()
        # Clocks of flip-flops and RAMs: a fault there is one of the clock tree, not of the logic.
        found = [line for line in found if not re.search(r"-port \\?(\w+_)?CLK\b", line)]
        found = [line for line in found if is_read(line) and not is_fixed(line)]
        cells = int(re.findall(r"\d+", (directory / f"cells_{k}.txt").read_text())[0])
        if found and cells:
            pools[module], weights[module] = found, cells**0.5
    own_total = sum(weight for module, weight in weights.items() if module in own)
    other_total = sum(weights.values()) - own_total
    if own_total and other_total:
        for module in weights:
            weights[module] /= own_total if module in own else other_total
    shares = _shares(weights, {m: len(p) for m, p in pools.items()}, count)
    mutants = []
    for module, share in shares.items():
        step = len(pools[module]) / share if share else 1
        for line in (pools[module][int(n * step)] for n in range(share)):
            number = len(mutants) + 1
            source = re.findall(r"-src design\.v:(\d+)", line)
            kind = re.search(r"\$(\w+)\$design\.v|\$(proc\w+)", _field(line, "cell"))
            control = f"-ctrlbit {_field(line, 'ctrlbit')}" if "-ctrlbit" in line else ""
            fault = (
                f"{_field(line, 'mode')} {(kind[1] or kind[2]) if kind else 'cell'} "
                f"{_field(line, 'port')}"
                f"[{_field(line, 'portbit')}] {control}"
            ).strip()
            mutants.append(
                Mutant(
                    block=name,
                    test=recording.test.split("::")[-1],
                    number=number,
                    module=module,
                    own=module in own,
                    fault=fault,
                    wire=f"{_field(line, 'wire')}[{_field(line, 'wirebit')}]"
                    if "-wire " in line
                    else "",
                    source=lines[int(source[-1]) - 1].strip() if source else "",
                    command=line,
                )
            )
    width = max(len(mutants).bit_length(), 1)
    apply = "\n".join(
        mutant.command.replace("mutate ", f"mutate -ctrl {SELECT} {width} {mutant.number} ", 1)
        for mutant in mutants
    )
    run(
        f"read_rtlil base.il\n{apply}\nwrite_verilog -noattr mutated.v\n",
        directory,
        stem="apply",
    )
    verilog = _select_by_plusarg((directory / "mutated.v").read_text(), width)
    return design, mutants, "\n".join([verilog, *(texts[module] for module in kept)])


def own_modules(design: Delivery, component: type) -> set[str]:
    """The modules of ``component``; a bench's bank or wrapper is not among them."""
    return {module for module, each in design.blocks.items() if isinstance(each, component)}


def with_plain(design: Delivery, own: set[str], names: Iterable[str]) -> list[str]:
    """Keeps of ``names`` the top, those in ``own``, and plain submodules: OWN.x belongs to OWN."""
    return [name for name in names if name == design.name or name.split(".")[0] in own]


def _shares(weights: dict[str, float], limits: dict[str, int], count: int) -> dict[str, int]:
    """``count`` in proportion to the weights, at least one each while they last."""
    shares = dict.fromkeys(weights, 0)
    for _ in range(min(count, sum(limits.values()))):
        open_modules = [name for name in weights if shares[name] < limits[name]]
        least = min(open_modules, key=lambda name: (shares[name] + 0.5) / weights[name])
        shares[least] += 1
    return shares


def _select_by_plusarg(verilog: str, width: int) -> str:
    """The port that Yosys added becomes a register that a plusarg sets: no bench knows of it."""
    verilog, count = re.subn(rf",\s*{SELECT}\b(?=[^;]*\);)", "", verilog, count=1)
    assert count == 1, "the added port is not last"
    verilog = re.sub(rf"^  wire (?:\[\d+:0\] )?{SELECT} ?;\n", "", verilog, flags=re.M)
    register = (
        f"  reg [{width - 1}:0] {SELECT};\n"
        f'  initial if (!$value$plusargs("mutant=%d", {SELECT})) {SELECT} = 0;\n'
    )
    verilog, count = re.subn(
        rf"^  input (?:\[\d+:0\] )?{SELECT} ?;\n", lambda _: register, verilog, flags=re.M
    )
    assert count == 1, "the added port has no declaration"
    # A bit controlled by its neighbour looks like a loop to a simulator that sees whole words;
    # a multiplexer by one-hot selects is written as a case of which the first match counts.
    waived = ("UNOPTFLAT", "CASEOVERLAP")
    return "".join(f"/* verilator lint_off {rule} */\n" for rule in waived) + verilog


# Running


@dataclasses.dataclass
class Simulation:
    """The start of the simulator by cocotb's runner, to be repeated once per fault."""

    command: list[str]
    environment: dict[str, str]
    directory: Path
    limit: float = 0.0
    tests: int = 0


def build(recording: Recording, verilog: str) -> tb.simulate.run.Model:
    """The model with the faults."""
    return tb.simulate.run.build_model(
        recording.block, transform=lambda design: verilog, wrap=recording.wrap
    )


def prepare(model: tb.simulate.run.Model, recording: Recording) -> Simulation:
    """Write what the recorded test needs, and run it without a fault for its time limit."""
    started: list[tuple[list[str], dict[str, str]]] = []

    class Recorder(tb.simulate.runner.Runner):
        def _execute(self, cmds, cwd):
            started.append(([str(part) for part in cmds[0]], dict(self.env)))
            raise SystemExit(0)

    # Only what the runner would start is wanted: the run itself "fails" at once.
    with (
        mock.patch.object(tb.simulate.runner, "Runner", Recorder),
        contextlib.suppress(SystemExit, AssertionError, RuntimeError),
    ):
        tb.simulate.run.run_model(model, recording.module, **recording.arguments)
    command, environment = started[0]
    simulation = Simulation(
        command, {**os.environ, **environment, "COCOTB_MAX_FAILURES": "1"},
        Path(environment["TB_DIR"]),
    )  # fmt: skip
    by, seconds = simulate(simulation, 0)
    if by:
        raise RuntimeError(f"{recording.test} fails without a fault: {by}")
    simulation.limit = TIMEOUT_FLOOR + TIMEOUT_FACTOR * seconds
    return simulation


class _Judges:
    """The tests of one design, that of ``first`` before the others; a model for all of them."""

    def __init__(self, first: Recording, recordings: list[Recording], verilog: str) -> None:
        others = [each for each in recordings if each is not first and each.design == first.design]
        self._recordings = [first, *others]
        self._model = build(first, verilog)
        self._lock = threading.Lock()  # prepare() patches tb.simulate.run
        self._prepared = [prepare(self._model, first)]

    def judge(self, number: int) -> tuple[str, float]:
        """(what killed fault ``number`` or "", seconds)."""
        seconds = 0.0
        for n, recording in enumerate(self._recordings):
            with self._lock:
                if n == len(self._prepared):
                    self._prepared.append(prepare(self._model, recording))
            by, taken = simulate(self._prepared[n], number)
            seconds += taken
            if by:
                return (by if not n else f"{recording.test.split('::')[-1]}: {by}"), seconds
        return "", seconds

    def close(self) -> None:
        for simulation in self._prepared:
            shutil.rmtree(simulation.directory, ignore_errors=True)


def simulate(simulation: Simulation, number: int) -> tuple[str, float]:
    """(what killed it or "", seconds) of one run with fault ``number``."""
    work = Path(tempfile.mkdtemp(prefix=f"fault-{number}-", dir=simulation.directory))
    results = work / "results.xml"
    start = time.perf_counter()
    try:
        with (work / "log").open("wb") as log:
            process = subprocess.Popen(
                [*simulation.command, f"+mutant={number}"],
                cwd=work,
                env={**simulation.environment, "COCOTB_RESULTS_FILE": str(results)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(simulation.limit or None)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return "no end within the time limit", time.perf_counter() - start
        seconds = time.perf_counter() - start
        if not results.exists():
            return f"simulator ended with status {process.returncode}", seconds
        cases = list(ElementTree.parse(results).getroot().iter("testcase"))
        failed = [case.get("name", "") for case in cases if len(case.findall("failure"))
                  or len(case.findall("error"))]  # fmt: skip
        if failed:
            return failed[0], seconds
        if not number:
            simulation.tests = len(cases)
        return ("" if cases and process.returncode == 0 else "no test ran"), seconds
    finally:
        shutil.rmtree(work, ignore_errors=True)


# Equivalence of survivors


def compare(directory: Path, mutant: Mutant, design: Delivery, recording: Recording) -> str:
    """ "equivalent" where it is proved that no test can see the fault, by one of these proofs:

    1. The bench has sent every word of an operator of one operand (``tb.faults.exhaustive``). 2.
    From equal registers and inputs, every register and output gets the same value (SAT). 3. One of
    ``tb.faults.equivalence``; only where the native Yosys, which has an ABC, is installed.

    Else "differs" where inputs are known that show the fault, legal or not, or "undecided".
    """
    stem = f"equal_{mutant.number}"
    if recording.module == "tb.fp16.check_operator" and not recording.arguments.get("testcase"):
        vectors = recording.arguments["vectors"]
        if sends_every_word(recording.block, vectors, mutant.command, directory, stem):
            return "equivalent"
    if (directory / "base.il").stat().st_size > PROOF_BYTES:
        return "undecided"
    top = design.name
    fault = mutant.command.replace(f"-module {top} ", "-module gate ")
    is_whole = len(design.verilog) <= WHOLE_LIMIT
    # Ports of submodules that are black boxes become inputs and outputs too.
    cut = "" if is_whole else "-evert"
    one_step = (
        f"read_rtlil base.il\nrename {top} gold\nmemory_map\nopt_clean\ndesign -stash gold\n"
        f"read_rtlil base.il\nrename {top} gate\n{fault}\nmemory_map\nopt_clean\n"
        "design -stash gate\n"
        "design -copy-from gold -as gold gold\ndesign -copy-from gate -as gate gate\n"
        # Registers become inputs and outputs, so that one step of logic is compared; what the
        # fault does not reach is the same logic of the same inputs, and merges.
        f"expose -sep __register_ -dff -evert-dff {cut} -shared gold gate\n"
        "miter -equiv -flatten gold gate both\nhierarchy -top both\nopt -full\n"
        f"sat -verify -prove trigger 0 -timeout {PROOF_LIMIT} both\n"
    )
    with contextlib.suppress(YosysError):
        run(one_step, directory, stem=stem, timeout=2 * PROOF_LIMIT)
        return "equivalent"
    abc = native_abc()
    if abc is None:
        return "undecided"
    setting = equivalence.Setting(directory, top, abc, PROOF_LIMIT, boxes=not is_whole)
    return equivalence.judge(setting, mutant.command, stem)


# Whole run


def _progress(done: list[Mutant], total: int, start: float) -> str:
    killed = sum(mutant.outcome == "killed" for mutant in done)
    rate = f"{killed / len(done):.1%}" if done else "-"
    return f"{len(done)} of {total} faults, {rate} killed, {time.perf_counter() - start:.0f} s"


def _judge_later(
    left: list[Mutant],
    recording: Recording,
    seeds: range,
    verilog: str,
    jobs: int,
    collected_at: Callable[[int], list[Recording]],
) -> None:
    """Run the tests of ``recording``'s design at ``seeds`` on the faults that are left."""
    for seed in seeds:
        left = [mutant for mutant in left if not mutant.later]
        if not left:
            return
        same = [each for each in collected_at(seed) if each.design == recording.design]
        if not same:  # the tests of a seed may draw their designs
            continue
        judges = _Judges(same[0], same, verilog)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            found = list(pool.map(judges.judge, [mutant.number for mutant in left]))
        judges.close()
        for mutant, (by, _) in zip(left, found, strict=True):
            mutant.later = f"seed {seed}: {by}" if by else ""


def examine(
    name: str, count: int, seed: int, jobs: int, report, *, prove: bool, more_seeds: int = 0
) -> list[Mutant]:
    """All faults of one block, run and judged; ``report`` is called after each.

    more_seeds: of the tests, that the survivors meet after all.
    """
    collected_at = functools.cache(functools.partial(collect, name))
    collected = collected_at(seed)
    recordings = spread(collected, count, seed)
    counts = [count // len(recordings) + (k < count % len(recordings))
              for k in range(len(recordings))]  # fmt: skip
    mutants: list[Mutant] = []
    for k, (recording, share) in enumerate(zip(recordings, counts, strict=True)):
        directory = REPORT_DIR / name / str(k)
        salt = int(hashlib.sha256(f"{seed} {name} {k}".encode()).hexdigest()[:6], 16)
        design, part, verilog = make_mutants(name, recording, share, salt, directory)
        judges = _Judges(recording, collected, verilog)

        def judge(mutant, judges=judges, directory=directory, design=design, recording=recording):
            mutant.by, mutant.seconds = judges.judge(mutant.number)
            mutant.outcome = "killed" if mutant.by else "survived"
            if prove and not mutant.by:
                mutant.proof = compare(directory, mutant, design, recording)
                if mutant.proof == "equivalent":
                    mutant.outcome = mutant.proof
            return mutant

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for mutant in pool.map(judge, part):
                mutants.append(mutant)
                report(mutant)
        judges.close()
        left = [mutant for mutant in part if mutant.outcome == "survived"]
        later = range(seed + 1, seed + 1 + more_seeds)
        _judge_later(left, recording, later, verilog, jobs, collected_at)
    return mutants


def allocate(names: list[str], total: int, weights: dict[str, int]) -> dict[str, int]:
    """``total`` faults over the blocks, by weight, each at least one."""
    whole = sum(weights[name] for name in names)
    return {name: max(1, -(-total * weights[name] // whole)) for name in names}


def _outcomes(mutants: list[Mutant]) -> list[int]:
    """[faults, killed, equivalent, survived]"""
    found = collections.Counter(mutant.outcome for mutant in mutants)
    return [len(mutants), found["killed"], found["equivalent"], found["survived"]]


def summary(mutants: list[Mutant]) -> list[tuple[str, list[int], list[int]]]:
    """(block, outcomes of faults in it, outcomes of faults in its submodules), by block."""
    blocks = sorted({mutant.block for mutant in mutants})
    return [
        (
            name,
            _outcomes([m for m in mutants if m.block == name and m.own]),
            _outcomes([m for m in mutants if m.block == name and not m.own]),
        )
        for name in blocks
    ]


def _sentence(what: str, outcomes: list[int]) -> str:
    faults, killed, equivalent, survived = outcomes
    return (
        f"{what}: {faults} faults, {killed} killed, {equivalent} proved equivalent, {survived} "
        f"survived: {killed / max(faults - equivalent, 1):.1%} killed of those not equivalent."
    )


def _later_sentence(mutants: list[Mutant], more_seeds: int) -> str:
    """Tells how many faults the tests of further seeds killed."""
    faults, killed, equivalent, _ = _outcomes(mutants)
    later = sum(bool(mutant.later) for mutant in mutants)
    return (
        f"With the tests of the next {more_seeds} seeds: {killed + later} killed: "
        f"{(killed + later) / max(faults - equivalent, 1):.1%} of those not equivalent."
    )


def _result(mutants: list[Mutant], is_broken: bool) -> str:
    """One block's result; a block that could not be examined is never "0 of 0 killed"."""
    killed = sum(mutant.outcome == "killed" for mutant in mutants)
    found = f"{killed} of {len(mutants)} killed"
    if not is_broken:
        return found
    return f"NOT EXAMINED to the end, {found} before" if mutants else "NOT EXAMINED"


def page_tables(
    mutants: list[Mutant], seed: int, seconds: float, more_seeds: int = 0
) -> dict[str, str]:
    """Sections of docs/mutation.md."""
    own = _outcomes([m for m in mutants if m.own])
    inner = _outcomes([m for m in mutants if not m.own])
    outcomes = ("faults", "killed", "equivalent", "survived")
    head = ["block", *outcomes, "in submodules", *outcomes[1:]]
    lines = [
        f"Seed {seed}, {seconds / 60:.0f} minutes.",
        "",
        f"- {_sentence('All', _outcomes(mutants))}",
        f"- {_sentence('In the blocks themselves', own)}",
        f"- {_sentence('In their submodules', inner)}",
        *([f"- {_later_sentence(mutants, more_seeds)}"] if more_seeds else []),
        "",
        f"| {' | '.join(head)} |",
        "| --- |" + " ---: |" * 8,
    ]
    for name, *parts in [*summary(mutants), ("**all**", own, inner)]:
        cells = [str(count) if part[0] else "" for part in parts for count in part]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    head = ["block", "test", "module", "fault", "line of Verilog", "compared"]
    head += ["killed later"] if more_seeds else []
    survivors = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for m in mutants:
        if m.outcome == "survived":
            wire = f" `{m.wire}`" if m.wire else ""
            source = m.source[:90].replace("|", "&#124;")
            survivors.append(
                f"| {m.block} | `{m.test}` | `{m.module}` | `{m.fault}`{wire} | `{source}` "
                f"| {m.proof} |" + (f" {m.later.split(':')[0]} |" if more_seeds else "")
            )
    return {
        "mutation": "\n".join(lines) + "\n",
        "survivors": "\n".join(survivors) + "\n",
    }


def results_key() -> str:
    """16 hexadecimal digits of what decides a result: the sources, and whether ABC is there."""
    return sources_key(["no native ABC"] if native_abc() is None else [])


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings that are the same for every block of one seed."""

    key: str  # results_key() at the start of the run
    seed: int
    jobs: int
    prove: bool
    more_seeds: int = 0

    def kept_file(self, name: str, count: int) -> Path:
        folder = REPORT_DIR / "kept" / self.key
        end = ("" if self.prove else "-unproved") + (f"-{self.more_seeds}" * (self.more_seeds > 0))
        return folder / f"{name}-{count}-{self.seed}{end}.json"

    def examine(self, name: str, count: int, report: Callable[[Mutant], object]) -> dict:
        """The record of one block that ``keep`` writes; ``examine`` judges its faults."""
        begin, mutants = time.perf_counter(), list[Mutant]()

        def judged(mutant: Mutant) -> None:
            mutants.append(mutant)
            report(mutant)

        examine(
            name, count, self.seed, self.jobs, judged,
            prove=self.prove, more_seeds=self.more_seeds,
        )  # fmt: skip
        seconds = round(time.perf_counter() - begin, 1)
        return {"seconds": seconds, "mutants": [dataclasses.asdict(each) for each in mutants]}

    def keep(self, name: str, count: int, found: dict) -> bool:
        """Write one block's result, but for a run whose sources have changed since its start."""
        if results_key() != self.key:
            return False
        kept = self.kept_file(name, count)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as part:
            part.write_text(json.dumps(found) + "\n")
        return True


def read_kept(file: Path) -> tuple[list[Mutant], float] | None:
    """(faults, seconds) of one block that ``Setting.keep`` wrote; None: missing or damaged."""
    found = kept_json(file)
    try:
        return [Mutant(**each) for each in found["mutants"]], float(found["seconds"])
    except (TypeError, KeyError, ValueError):
        return None


# A block has a process of its own: ``collect`` patches modules, and a worker may have threads.
_PROGRAM = "import sys; from tb.faults.mutate import work; work(sys.argv[1], sys.stdin.read())"


def work(target: str, task: str) -> None:
    """Examine the block of ``task``, JSON, and write what ``Setting.keep`` keeps to ``target``."""
    options = json.loads(task)
    os.chdir(ROOT)
    setting = Setting(**options["setting"])
    found = setting.examine(options["name"], options["count"], lambda _: None)
    Path(target).write_text(json.dumps(found))


def _on_worker(task: dict[str, Any]) -> dict[str, Any]:
    """Returns what ``work`` writes, or ``broken``: why the block was not examined to the end.

    SweepError: the sources of the worker are not those of the command.
    """
    check_sources(results_key(), task["setting"]["key"])
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        target = Path(folder) / "found.json"
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(target)], cwd=ROOT, input=json.dumps(task),
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            return {"broken": (done.stderr.strip().splitlines() or ["no message"])[-1]}
        return json.loads(target.read_text())


def by_workers(
    counts: dict[str, int], setting: Setting, address: str, console: Console
) -> dict[str, str]:
    """Examine the blocks that are not kept on a scheduler's workers, and keep them.

    Returns the blocks that were not examined to the end, and why.
    """
    tasks = [
        {"name": name, "count": count, "setting": dataclasses.asdict(setting)}
        for name, count in counts.items()
        if read_kept(setting.kept_file(name, count)) is None
    ]
    broken: dict[str, str] = {}
    for n, (number, found) in enumerate(on_workers(_on_worker, tasks, address), start=1):
        name = tasks[number]["name"]
        if "broken" in found:
            broken[name] = found["broken"]
        elif not setting.keep(name, tasks[number]["count"], found):
            console.print(f"{name}: not kept: a source has changed since the start")
        console.print(f"{name} is done, {n} of {len(tasks)}", highlight=False)
    return broken


def examine_all(
    counts: dict[str, int], setting: Setting, console: Console
) -> tuple[list[Mutant], dict[str, str], float]:
    """(faults, blocks not examined to the end and why, seconds) of one seed.

    The seconds are those of the blocks' examinations, kept ones included.
    """
    total = sum(counts.values())
    start, earlier = time.perf_counter(), 0.0
    done: list[Mutant] = []
    broken: dict[str, str] = {}
    with console.status("") as status:
        for name, count in counts.items():
            line = _progress(done, total, start)
            status.update(f"{name}: building; {line}")

            def report(mutant, name=name, status=status):
                done.append(mutant)
                line = _progress(done, total, start)
                status.update(f"{name}: {line}")

            before = len(done)
            kept = setting.kept_file(name, count)
            found = read_kept(kept)
            if found is not None:
                done.extend(found[0])
                earlier += found[1]
                console.print(f"{name}: {_result(done[before:], False)}, as kept", highlight=False)
                continue
            try:
                found = setting.examine(name, count, report)
                if not setting.keep(name, count, found):
                    console.print(f"{name}: not kept: a source has changed since the start")
            except Exception as error:  # the other blocks are still worth examining
                broken[name] = str(error)
                console.print(f"{name}: {str(error)[:2000]}", style="red", markup=False)
            line = _progress(done, total, start)
            console.print(f"{name}: {_result(done[before:], name in broken)}; {line}",
                          highlight=False)  # fmt: skip
    return done, broken, time.perf_counter() - start + earlier


def _print_seed(
    done: list[Mutant], broken: dict[str, str], setting: Setting, seconds: float, console: Console
) -> None:
    """Table and survivors on the terminal, and report-SEED.json."""
    table = Table(box=None, header_style="bold")
    table.add_column("block")
    for where in ("", " inside"):
        for heading in ("faults", "killed", "equal", "survived"):
            table.add_column(heading + where, justify="right")
    for name, *parts in summary(done):
        table.add_row(name, *(str(n) if part[0] else "" for part in parts for n in part))
    console.print(table)
    for mutant in done:
        if mutant.outcome == "survived":
            console.print(
                f"survived: {mutant.block} {mutant.test}: {mutant.module}: {mutant.fault} "
                f"{mutant.wire}: {mutant.source}{mutant.later and '; killed at ' + mutant.later}",
                markup=False,
                highlight=False,
            )
    REPORT_DIR.mkdir(parents=True, exist_ok=True)
    killed = sum(mutant.outcome == "killed" for mutant in done)
    seed, more = setting.seed, setting.more_seeds
    file = REPORT_DIR / f"report-{seed}.json"
    found = {
        "seed": seed,
        "seconds": round(seconds, 1),
        "faults": len(done),
        "killed": killed,
        "equivalent": sum(mutant.outcome == "equivalent" for mutant in done),
        "more_seeds": more,
        "killed_later": sum(bool(mutant.later) for mutant in done),
        "not_examined": broken,
        "mutants": [dataclasses.asdict(mutant) for mutant in done],
    }
    with replacing(file) as part:
        part.write_text(json.dumps(found, indent=1) + "\n")
    if broken:
        console.print(f"not examined: {', '.join(broken)}", style="red", highlight=False)
    later = f"{found['killed_later']} more at the next {more} seeds, " if more else ""
    console.print(
        f"seed {seed}: {len(done)} faults, {killed} killed ({killed / max(len(done), 1):.1%}), "
        f"{later}{seconds / 60:.1f} min; {file.relative_to(ROOT)}",
        highlight=False,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.faults.mutate", description=__doc__)
    parser.add_argument("blocks", nargs="*", help="default: all")
    parser.add_argument("--mutants", type=whole(), default=240, help="over all blocks together")
    parser.add_argument(
        "--seed",
        type=whole(0, SEED_MAX),
        nargs="+",
        default=[1],
        help="one or several; the page has the last",
    )
    parser.add_argument("--jobs", type=whole(), default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--more-seeds", type=whole(0), default=0, help="of the tests, for faults that survive"
    )
    parser.add_argument("--no-prove", action="store_true", help="leave survivors unexamined")
    add_scheduler(parser)
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.blocks) - set(all_blocks()))
    if unknown:
        print(f"tb.faults.mutate: no block is called {unknown[0]!r}", file=sys.stderr)
        return 2
    if max(options.seed) + options.more_seeds > SEED_MAX:
        parser.error(f"seed + more-seeds must be 0..{SEED_MAX}")
    check_page(parser, options.page, ["mutation", "survivors"])
    os.chdir(ROOT)
    names = options.blocks or list(all_blocks())
    weights = {name: room.fault_weight for room in rooms().values() for name in room.blocks}
    counts = allocate(names, options.mutants, {name: weights[name] for name in names})
    console = Console()
    any_broken = False
    key = results_key()
    outputs = contextlib.ExitStack()
    try:
        outputs.enter_context(claimed_folder(REPORT_DIR))
        for seed in options.seed:
            setting = Setting(key, seed, options.jobs, not options.no_prove, options.more_seeds)
            left: dict[str, str] = {}
            if options.scheduler is not None:
                left = by_workers(counts, setting, options.scheduler, console)
            here = {name: count for name, count in counts.items() if name not in left}
            done, broken, seconds = examine_all(here, setting, console)
            broken |= left
            _print_seed(done, broken, setting, seconds, console)
            any_broken = any_broken or bool(broken)
    except KeyboardInterrupt:
        print("tb.faults.mutate: interrupted; the same command resumes", file=sys.stderr)
        return 130
    except (ConfigError, OSError) as error:
        print(f"tb.faults.mutate: {error}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    if options.page:
        write_page(options.page, page_tables(done, seed, seconds, options.more_seeds))
    return 1 if any_broken else 0


if __name__ == "__main__":
    command.run("tb.faults.mutate", main)
