"""``python -m tb.faults.telling [FILE...]``: do the cases that ``make test`` leaves out find more?

A bench marks a test function with ``@pytest.mark.telling("case", ...)``. ``make test`` runs the
named cases of that function, ``make test-all`` and ``--all-cases`` run all. For each such bench
this command plants faults in the sources of its block, one at a time (tb.faults.source). It runs
the telling cases until one fails. It then runs the other cases on what they let pass.

The sources of a bench are the module of its block, and modules of the same folder that it imports.
A module that holds a block with a bench of its own is none of them. ``--faults`` of them are drawn,
alike from all places, by ``--seed``. ``build/telling`` keeps each answer by a hash of all sources.

Exit status: 0 if no fault is found by the other cases alone, 1 if there is one, 2 for bad input.
"""

import dataclasses
import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.files import kept_json, replacing
from golden.markers import table
from hdl.arguments import whole
from hdl.registry import all_blocks, bench
from tb.faults.source import INVALID, VARIABLE, sites
from tb.simulate.sources import imported_files
from tb.sweep import sources_key

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "build" / "telling"
MARK = "mark.telling"
_LIMIT = 1200  # seconds of one pytest run; a fault that hangs every wait is found


@dataclasses.dataclass(frozen=True)
class Fault:
    """Fault ``number`` of ``file``, in the order of its text."""

    file: str
    number: int
    line: int
    kind: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, {self.kind}"


def marked() -> list[str]:
    """The files that leave out cases."""
    rooms = (ROOT / "tb", ROOT / "senbazuru", ROOT / "tests")
    files = [each for room in rooms for each in sorted(room.rglob("test_*.py"))]
    return [each.relative_to(ROOT).as_posix() for each in files if MARK in each.read_text()]


def marked_benches() -> list[str]:
    """Those of them that are the bench of a block."""
    benches = {bench(name) for name in all_blocks()}
    return [each for each in marked() if each in benches]


def sources_of(file: str) -> list[Path]:
    """The sources that the bench ``file`` answers for. ConfigError: it is no block's bench."""
    places = {
        name: Path(inspect.getfile(block.component)) for name, block in all_blocks().items()
    }
    own = [places[name] for name in places if bench(name) == file]
    if not own:
        raise ConfigError(f"{file} is not the bench of a registered block")
    others = {path for name, path in places.items() if bench(name) != file}
    found, waiting = list[Path](), own
    while waiting:
        path = waiting.pop(0)
        if path not in found:
            found.append(path)
            own_folder = {each for each in imported_files(path, ROOT) if each.parent == path.parent}
            waiting += sorted(own_folder - others)
    return found


def faults_of(file: str, count: int, seed: int) -> list[Fault]:
    """Draws at most ``count`` faults for the bench ``file`` by ``seed``."""
    every = [
        Fault(path.relative_to(ROOT).as_posix(), number, line, kind)
        for path in sources_of(file)
        for number, (line, kind) in enumerate(sites(path.read_text()))
    ]
    drawn = random.Random(f"{file} {seed}").sample(every, min(count, len(every)))
    return sorted(drawn, key=lambda each: (each.file, each.number))


def _pytest(arguments: list[str], fault: Fault | None = None) -> tuple[int, str]:
    environment = dict(os.environ)
    words = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]
    if fault is not None:
        environment[VARIABLE] = f"{ROOT / fault.file}:{fault.number}"
        words += ["-x", "--tb=no", "-p", "tb.faults.source"]
    try:
        done = subprocess.run(
            [*words, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=_LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, "FAILED timeout"
    return done.returncode, done.stdout


def _cases(file: str, *options: str) -> list[str]:
    status, text = _pytest(["--collect-only", *options, file])
    if status:
        raise ConfigError(f"{file} cannot be collected: {text.strip().splitlines()[-1]}")
    return [line for line in text.splitlines() if "::" in line]


def _judge(file: str, fault: Fault, telling: Path) -> dict[str, str]:
    """by: "telling", "others", "none" or "invalid"; case: the first that failed."""
    runs = (("telling", []), ("others", ["--all-cases", f"--leave-out={telling}"]))
    for by, options in runs:
        status, text = _pytest([*options, file], fault)
        if status == INVALID:
            return {"by": "invalid", "case": ""}
        if status not in (0, 5):
            failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
            case = failed[0].split()[1] if failed else "?"
            return {"by": by, "case": case.partition("::")[2]}
    return {"by": "none", "case": ""}


def examine(file: str, count: int, seed: int, jobs: int) -> list[tuple[Fault, dict[str, str]]]:
    """Each fault of the bench ``file`` and what found it."""
    drawn = faults_of(file, count, seed)
    folder = KEPT / sources_key(["telling", file])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="telling-") as temporary:
        telling = Path(temporary) / "telling"
        telling.write_text("\n".join(_cases(file)) + "\n")

        def judged(fault: Fault) -> dict[str, str]:
            name = f"{fault.file.replace('/', '.')}-{fault.number}.json"
            found = kept_json(folder / name)
            if not (isinstance(found, dict) and set(found) == {"by", "case"}):
                found = _judge(file, fault, telling)
                with replacing(folder / name) as part:
                    part.write_text(json.dumps(found))
            print(f"  {fault}: {found['by']} {found['case']}".rstrip(), flush=True)
            return found

        with ThreadPoolExecutor(jobs) as pool:
            return list(zip(drawn, pool.map(judged, drawn), strict=True))


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.faults.telling", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="benches (all that leave out)")
    parser.add_argument("--faults", type=whole(1, 1000), default=8, help="per bench (8)")
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=1)
    parser.add_argument("--jobs", type=whole(1, 64), default=2, help="runs at the same time (2)")
    options = parser.parse_args(arguments)
    head = (
        "bench", "cases of `make test`", "others", "faults", "telling", "neither", "others alone"
    )  # fmt: skip
    rows, alone = [], []
    try:
        for file in options.files or marked_benches():
            told, every = len(_cases(file)), len(_cases(file, "--all-cases"))
            print(f"{file}: {told} of {every} cases are telling", flush=True)
            found = examine(file, options.faults, options.seed, options.jobs)
            by = Counter(answer["by"] for _, answer in found)
            valid = len(found) - by["invalid"]
            counts = (told, every - told, valid, by["telling"], by["none"], by["others"])
            rows.append((f"`{file}`", *map(str, counts)))
            alone += [(file, fault, each) for fault, each in found if each["by"] == "others"]
    except ConfigError as error:
        print(f"tb.faults.telling: {error}", file=sys.stderr)
        return 2
    print(table(head, rows))
    for file, fault, answer in alone:
        print(f"{file}: {answer['case']} alone finds {fault}")
    return 1 if alone else 0


if __name__ == "__main__":
    command.run("tb.faults.telling", main)
