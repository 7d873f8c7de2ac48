"""Kits written, run under both simulators, and run again with faults in the Verilog."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from hdl.back.deliver import write
from hdl.kit.kits import shown, vectors
from hdl.kit.parts import PARTS, make_kit
from hdl.registry import find
from tb.faults.mutate import Mutant, Recording, make_mutants
from tb.simulate.compile import tool_environment
from tb.simulate.run import TOP

SIMULATORS = {"icarus": "iverilog", "verilator": "verilator"}  # name in run.sh -> command
_SECONDS = 900.0  # of one compilation and run


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a kit's testbench."""

    status: int  # of run.sh: 0 PASS, 1 FAIL, 2 no run; None of these: it did not end
    text: str
    seconds: float

    @property
    def passes(self) -> bool:
        return self.status == 0

    @property
    def fails(self) -> bool:
        """The testbench found something, or did not end; a text that does not compile is none."""
        return self.status not in (0, 2)


def available(simulator: str) -> bool:
    """Whether the command of a simulator of SIMULATORS is installed."""
    return shutil.which(SIMULATORS[simulator], path=tool_environment()["PATH"]) is not None


def write_kit(name: str, folder: Path) -> None:
    """The whole kit of block ``name`` at ``shown``."""
    config = shown(name)
    made = make_kit(find(name).component(config), name, PARTS, vectors(name, config))
    write([(folder, made)])


def run_kit(folder: Path, simulator: str, *plusargs: str, seconds: float = _SECONDS) -> Run:
    """``sh run.sh`` in ``folder``; a run that does not end has status -1."""
    began = time.perf_counter()
    command = ["sh", str(folder / "run.sh"), simulator, *plusargs]
    process = subprocess.Popen(
        command, env=tool_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=seconds)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, status = process.communicate()[0], -1
    return Run(status, text, time.perf_counter() - began)


@dataclasses.dataclass(frozen=True)
class Faults:
    """A copy of a kit whose Verilog holds faults; the plusarg ``+mutant=N`` selects one."""

    folder: Path
    mutants: list[Mutant]

    def run(self, simulator: str, number: int, seconds: float = _SECONDS) -> Run:
        """The testbench with fault ``number``; 0: without a fault."""
        return run_kit(self.folder, simulator, f"+mutant={number}", seconds=seconds)


def plant(name: str, kit: Path, folder: Path, count: int, seed: int) -> Faults:
    """``count`` random faults of Yosys in the block of ``kit``, as tb.faults.mutate makes them."""
    component = find(name).component
    recording = Recording("kit", component(shown(name)), "", {})
    with tempfile.TemporaryDirectory(prefix="kit-") as place:
        _, mutants, verilog = make_mutants(name, recording, count, seed, Path(place))
    shutil.copytree(kit, folder, ignore=shutil.ignore_patterns("build"), dirs_exist_ok=True)
    text, found = re.subn(rf"^module {TOP}\b", f"module {name}", verilog, flags=re.M)
    if found != 1:
        raise RuntimeError(f"{name}: {found} modules {TOP} in the Verilog with faults")
    (folder / f"{name}.v").write_text(text)
    # The waivers of the kit name lines of the text without faults.
    rules = "".join(f'lint_off -rule {rule} -file "*"\n' for rule in _OF_NETLISTS)
    (folder / f"{name}.vlt").write_text(f"`verilator_config\n{rules}")
    return Faults(folder, mutants)


_OF_NETLISTS = ("WIDTH", "UNSIGNED", "CMPCONST", "CASEINCOMPLETE", "CASEOVERLAP", "UNOPTFLAT")
