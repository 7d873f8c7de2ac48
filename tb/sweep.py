"""``python -m tb.sweep --seeds 10 [--first 2] [pytest arguments]``: the benches at fresh seeds.

One pytest run per five seeds (``--together``) on two workers, over all of ``tb`` or the paths among
the pytest arguments. Each test runs at these seeds in turn, in one simulator
(``tb.simulate.resident``). Other arguments, such as ``-k`` or ``-n``, are added to that. Tests that
do not use the seed run at the first seed only. The cache in ``build/sim`` compiles each model once.

``build/sweep/KEY`` keeps ``report.md``, ``seed-N.json`` of each finished seed, the logs, and the
names of tests that passed in a pytest run that has not ended. KEY is the hash of the pytest
arguments and of every source file. So the same sweep resumes where it was interrupted: those tests
do not run again, and those that failed do. A sweep of other sources starts anew. Exit status: 0 if
every test passed at every seed, 1 if a test failed, 2 if pytest could not run, 130 if interrupted.
"""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder, kept_json, replacing
from golden.scheduler import add_scheduler, on_workers
from hdl.arguments import folder as folder_type
from tb.simulate.sources import sources_digest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "golden", "hdl", "synth", "tb", "senbazuru", "conftest.py", "pyproject.toml",
    "constraints.txt",
)  # fmt: skip
SEED_MAX = 2**31 - 1
# Options of pytest whose value is a word of its own.
_WITH_VALUE = {
    "-k",
    "-m",
    "-p",
    "-n",
    "-o",
    "-c",
    "-W",
    "-r",
    "--dist",
    "--maxfail",
    "--tb",
    "--deselect",
    "--ignore",
    "--durations",
}
_SEED = re.compile(r"(?:-|\[)seed(\d+)\]$")  # conftest.py appends it to a test's name
_ENDED = re.compile(r"\b(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")


class SweepError(RuntimeError):
    """pytest could not run: one line."""


def sources_key(arguments: list[str], root: Path = ROOT) -> str:
    """16 hexadecimal digits of everything that decides a result, but for the seed."""
    return sources_digest(root, SOURCES, *arguments)[:16]


def _reason(text: str) -> str:
    """The line that says what failed: the last AssertionError, or else the last line."""
    lines = [line.removeprefix("E").strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"\w*Error: ", line)]
    of_simulator = [line for line in named if not re.match(r"AssertionError: tb\.\S+ failed", line)]
    return (of_simulator or named or lines or ["no message"])[-1][:300]


def _read_results(xml: Path, seeds: range) -> dict[int, tuple[int, dict[str, str]]]:
    """seed -> (tests that ran, {test: reason} of those that failed)."""
    found: dict[int, tuple[int, dict[str, str]]] = {seed: (0, {}) for seed in seeds}
    for case in ElementTree.parse(xml).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        seed = _seed_of(name, seeds)
        tests, failed = found[seed]
        found[seed] = tests + (case.find("skipped") is None), failed
        for kind in ("failure", "error"):
            problem = case.find(kind)
            if problem is not None:
                text = problem.text or problem.get("message") or ""
                failed[_SEED.sub(_without_seed, name)] = _reason(text)
    return found


def _without_seed(match: re.Match) -> str:
    """The end of a test's name: ``[seed7]`` goes, ``[wide-seed7]`` becomes ``[wide]``."""
    return "]" if match[0].startswith("-") else ""


def _run_pytest(command: list[str], which: str, log: Path) -> int:
    """Run ``command`` and add its output to ``log``; the exit status."""
    count = bad = 0
    with (
        log.open("a", buffering=1) as out,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            result = _ENDED.search(line)
            if result and "::" in line and "%]" in line:
                count += 1
                bad += result[1] in ("FAILED", "ERROR")
                if result[1] in ("FAILED", "ERROR"):
                    print(f"  {which}: {line.strip()}", flush=True)
                elif sys.stdout.isatty():
                    print(f"\r  {which}: {count} ended, {bad} failed ", end="", flush=True)
    return process.returncode


def _seed_of(test: str, seeds: range) -> int:
    """A test that does not use the seed counts as of the first."""
    found = _SEED.search(test)
    return int(found[1]) if found else seeds[0]


def run_seeds(seeds: range, arguments: list[str], folder: Path, seeded_only: bool) -> list[dict]:
    """Run pytest once for all ``seeds``, without what passed in a run before that did not end.

    SweepError if it was interrupted or could not start.
    """
    name = f"seed-{seeds[0]}" if len(seeds) == 1 else f"seed-{seeds[0]}-{seeds[-1]}"
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    xml, log, passed = (folder / f"{name}.{suffix}" for suffix in ("xml", "log", "passed"))
    # A worker that takes the place of another one reads it too, so it does not grow in the run.
    left_out = folder / f"{name}.left-out"
    kept = passed.read_text() if passed.exists() else ""
    kept = kept[: kept.rfind("\n") + 1]  # a line that was cut is no test
    for file in (passed, left_out):
        file.write_text(kept)
    xml.unlink(missing_ok=True)
    before = list(dict.fromkeys(kept.splitlines()))
    if before:
        print(f"  {which}: {len(before)} tests have passed already", flush=True)
    command = [sys.executable, "-m", "pytest", "-v", "--all-cases", "--color=no"]
    command += ["--seed", str(seeds[0])]
    command += ["--seeds", str(len(seeds)), f"--junitxml={xml}"]
    command += [f"--leave-out={left_out}", f"--passed={passed}"]
    command += [*(["--seeded-only"] if seeded_only else []), *arguments]
    begin = time.monotonic()
    status = _run_pytest(command, which, log)
    has_none = status == 5 and (seeded_only or before)
    if (status not in (0, 1) and not has_none) or not (has_none or xml.exists()):
        last = (log.read_text().strip().splitlines() or ["no output"])[-1]
        raise SweepError(f"{which}: pytest ended with {status}: {last}; see {log}")
    results = _read_results(xml, seeds) if xml.exists() else {seed: (0, {}) for seed in seeds}
    earlier = Counter(_seed_of(test, seeds) for test in before)
    for file in (xml, passed, left_out):
        file.unlink(missing_ok=True)
    seconds = round((time.monotonic() - begin) / len(seeds))
    return [
        {"seed": seed, "tests": tests + earlier[seed], "failed": failed, "seconds": seconds}
        for seed, (tests, failed) in results.items()
    ]


def _kept(file: Path) -> dict | None:
    """The result of ``run_seed`` in ``file``; None: missing or damaged."""
    found = kept_json(file)
    if not isinstance(found, dict) or set(found) != {"seed", "tests", "failed", "seconds"}:
        return None
    return found if isinstance(found["failed"], dict) else None


def _join(seeds) -> str:
    return ", ".join(map(str, seeds))


def report(results: list[dict]) -> str:
    """The sweep as Markdown: a line on all seeds, then each test that failed at one of them."""
    seeds = [result["seed"] for result in results]
    tests = sum(result["tests"] for result in results)
    found: dict[str, list[tuple[int, str]]] = {}
    for result in results:
        for name, reason in result["failed"].items():
            found.setdefault(name, []).append((result["seed"], reason))
    failures = sum(map(len, found.values()))
    lines = [f"{len(seeds)} seeds ({_join(seeds)}), {tests} tests, {failures} failed."]
    if found:
        lines += ["", "| test | seeds | first reason |", "| --- | --- | --- |"]
    for name, at in sorted(found.items()):
        reason = at[0][1].replace("|", "\\|")
        lines.append(f"| `{name}` | {_join(seed for seed, _ in at)} | {reason} |")
    return "\n".join(lines) + "\n"


def with_defaults(arguments: list[str]) -> list[str]:
    """``arguments`` of pytest; two workers unless they name a number, all benches unless a path.

    The value of an option is no path: ``-k tb`` selects in all of them.
    """
    has_workers = any(re.match(r"-n\d*$|-n=|--numprocesses", each) for each in arguments)
    places = [
        each
        for before, each in zip(["", *arguments], arguments, strict=False)
        if not each.startswith("-") and before not in _WITH_VALUE
    ]
    has_path = any(Path(ROOT, each.split("::")[0]).exists() for each in places)
    workers = [] if has_workers else ["-n", "2", "--dist", "worksteal"]
    return [*workers, *arguments, *([] if has_path else ["tb", "senbazuru"])]


def _chunks(seeds: range, most: int) -> list[range]:
    return [seeds[at : at + most] for at in range(0, len(seeds), most)]


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.sweep", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds (10)")
    parser.add_argument("--first", type=int, default=2, help="the first of them (2; CI runs 1)")
    parser.add_argument("--together", type=int, default=5, help="seeds per pytest run (5)")
    place = ROOT / "build" / "sweep"
    parser.add_argument("--folder", type=folder_type, default=place, help="results")
    add_scheduler(parser)
    options, selected = parser.parse_known_args(arguments)
    if not 1 <= options.first <= SEED_MAX:
        parser.error(f"first must be 1..{SEED_MAX}, not {options.first}")
    if not 1 <= options.seeds <= SEED_MAX + 1 - options.first:
        parser.error(f"seeds must be 1..{SEED_MAX + 1 - options.first}, not {options.seeds}")
    if options.together < 1:
        parser.error(f"together must be 1 or more, not {options.together}")
    selected = with_defaults(selected)
    folder = options.folder / sources_key(selected)
    try:
        with claimed_folder(folder):
            return _sweep(options, selected, folder)
    except (ConfigError, OSError) as error:
        print(f"tb.sweep: {error}", file=sys.stderr)
        return 2


@dataclasses.dataclass(frozen=True)
class _Task:
    """Some seeds for a worker; key: ``sources_key(selected)`` of the command."""

    key: str
    seeds: range
    selected: list[str]
    folder: Path
    seeded_only: bool


def check_sources(here: str, wanted: str) -> None:
    """SweepError: the key of the sources of this worker is not that of the command."""
    if here != wanted:
        raise SweepError(f"the sources of this worker, in {ROOT}, are not those of the command")


def _on_worker(task: _Task) -> list[dict]:
    """The results of a task. SweepError: the sources here are not those of the command."""
    check_sources(sources_key(task.selected), task.key)
    task.folder.mkdir(parents=True, exist_ok=True)
    return run_seeds(task.seeds, task.selected, task.folder, task.seeded_only)


def _keep(results: list[dict], folder: Path) -> None:
    for result in results:
        with replacing(folder / f"seed-{result['seed']}.json") as part:
            part.write_text(json.dumps(result) + "\n")


def _by_workers(options: argparse.Namespace, selected: list[str], folder: Path) -> None:
    """Run the seeds that are not kept on a scheduler's workers, and keep them."""
    seeds = range(options.first, options.first + options.seeds)
    tasks = [
        _Task(sources_key(selected), chunk, selected, folder, chunk[0] != seeds[0])
        for chunk in _chunks(seeds, options.together)
        if any(_kept(folder / f"seed-{seed}.json") is None for seed in chunk)
    ]
    for number, found in on_workers(_on_worker, tasks, options.scheduler):
        _keep(found, folder)
        print(f"{tasks[number].seeds} is done, one of {len(tasks)}", flush=True)


def _sweep(options: argparse.Namespace, selected: list[str], folder: Path) -> int:
    """Run the seeds that are not kept, with their folder claimed."""
    seeds = range(options.first, options.first + options.seeds)
    if options.scheduler is not None:
        _by_workers(options, selected, folder)
    results: list[dict] = []
    try:
        for chunk in _chunks(seeds, options.together):
            found = [_kept(folder / f"seed-{seed}.json") for seed in chunk]
            if None in found:
                found = run_seeds(chunk, selected, folder, seeded_only=chunk[0] != seeds[0])
                _keep(found, folder)
            for result in found:
                results.append(result)
                print(
                    f"seed {result['seed']} ({len(results)} of {len(seeds)}): "
                    f"{result['tests']} tests, {len(result['failed'])} failed, "
                    f"{result['seconds']} s",
                    flush=True,
                )
    except SweepError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; the same command resumes at seed {chunk[0]}", file=sys.stderr)
        return 130
    finally:
        if results:
            text = report(results)
            with replacing(folder / "report.md") as part:
                part.write_text(text)
            print(f"{text}Written to {folder / 'report.md'}", flush=True)
    return int(any(result["failed"] for result in results))


if __name__ == "__main__":
    command.run("tb.sweep", main)
