"""``python -m tb.sweep --seeds 10 [--first 2] [pytest arguments]``: the benches at fresh seeds.

One pytest run per seed on two workers, over all of ``tb`` or the paths among the pytest arguments.
Other arguments, such as ``-k`` or ``-n``, are added to that. Tests that do not
use the seed run at the first seed only. The cache in ``build/sim`` compiles each model once.

``build/sweep/KEY`` keeps ``report.md``, and ``seed-N.json`` and ``seed-N.log`` of each finished
seed. KEY is the hash of the pytest arguments and of every source file. So a sweep that was
interrupted resumes, and a sweep of other sources starts anew. Exit status: 0 if every test passed
at every seed, 1 if a test failed, 2 if pytest could not run, 130 if interrupted.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from golden import command
from golden.files import kept_json, replacing
from hdl.arguments import folder as folder_type
from tb.sources import sources_digest

__all__ = ["main", "report", "run_seed", "sources_key"]

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("golden", "hdl", "synth", "tb", "conftest.py", "pyproject.toml", "constraints.txt")
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


def _read_results(xml: Path) -> tuple[int, dict[str, str]]:
    """(tests that ran, {test: reason} of those that failed)."""
    tests, failed = 0, {}
    for case in ElementTree.parse(xml).getroot().iter("testcase"):
        tests += case.find("skipped") is None
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                name = f"{case.get('classname')}.{case.get('name')}"
                failed[name] = _reason(found.text or found.get("message") or "")
    return tests, failed


def run_seed(seed: int, arguments: list[str], folder: Path, seeded_only: bool) -> dict:
    """Run pytest once; SweepError if it was interrupted or could not start."""
    xml, log = folder / f"seed-{seed}.xml", folder / f"seed-{seed}.log"
    command = [sys.executable, "-m", "pytest", "-v", "--color=no", "--seed", str(seed)]
    command += [f"--junitxml={xml}", *(["--seeded-only"] if seeded_only else []), *arguments]
    begin, ended, bad = time.monotonic(), 0, 0
    with (
        log.open("w", buffering=1) as out,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        for line in process.stdout:
            out.write(line)
            result = _ENDED.search(line)
            if result and "::" in line and "%]" in line:
                ended += 1
                bad += result[1] in ("FAILED", "ERROR")
                if result[1] in ("FAILED", "ERROR"):
                    print(f"  seed {seed}: {line.strip()}", flush=True)
                elif sys.stdout.isatty():
                    print(f"\r  seed {seed}: {ended} ended, {bad} failed ", end="", flush=True)
    if process.returncode == 5 and seeded_only:
        return {"seed": seed, "tests": 0, "failed": {}, "seconds": 0}
    if process.returncode not in (0, 1) or not xml.exists():
        last = (log.read_text().strip().splitlines() or ["no output"])[-1]
        raise SweepError(f"seed {seed}: pytest ended with {process.returncode}: {last}; see {log}")
    tests, failed = _read_results(xml)
    xml.unlink()
    seconds = round(time.monotonic() - begin)
    return {"seed": seed, "tests": tests, "failed": failed, "seconds": seconds}


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
    """``arguments`` of pytest with two workers unless they name a number, and ``tb`` unless a path.

    The value of an option is no path: ``-k tb`` selects in all of tb.
    """
    has_workers = any(re.match(r"-n\d*$|-n=|--numprocesses", each) for each in arguments)
    places = [
        each
        for before, each in zip(["", *arguments], arguments, strict=False)
        if not each.startswith("-") and before not in _WITH_VALUE
    ]
    has_path = any(Path(ROOT, each.split("::")[0]).exists() for each in places)
    workers = [] if has_workers else ["-n", "2", "--dist", "worksteal"]
    return [*workers, *arguments, *([] if has_path else ["tb"])]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tb.sweep", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds (10)")
    parser.add_argument("--first", type=int, default=2, help="the first of them (2; CI runs 1)")
    place = ROOT / "build" / "sweep"
    parser.add_argument("--folder", type=folder_type, default=place, help="results")
    options, selected = parser.parse_known_args(arguments)
    if not 1 <= options.first <= SEED_MAX:
        parser.error(f"first must be 1..{SEED_MAX}, not {options.first}")
    if not 1 <= options.seeds <= SEED_MAX + 1 - options.first:
        parser.error(f"seeds must be 1..{SEED_MAX + 1 - options.first}, not {options.seeds}")
    selected = with_defaults(selected)
    folder = options.folder / sources_key(selected)
    folder.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first, options.first + options.seeds)
    results: list[dict] = []
    try:
        for seed in seeds:
            kept = folder / f"seed-{seed}.json"
            result = _kept(kept)
            if result is None:
                result = run_seed(seed, selected, folder, seeded_only=seed != seeds[0])
                with replacing(kept) as part:
                    part.write_text(json.dumps(result) + "\n")
            results.append(result)
            print(
                f"seed {seed} ({len(results)} of {len(seeds)}): {result['tests']} tests, "
                f"{len(result['failed'])} failed, {result['seconds']} s",
                flush=True,
            )
    except SweepError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; the same command resumes after seed {seed - 1}", file=sys.stderr)
        return 130
    finally:
        if results:
            text = report(results)
            (folder / "report.md").write_text(text)
            print(f"{text}Written to {folder / 'report.md'}", flush=True)
    return int(any(result["failed"] for result in results))


if __name__ == "__main__":
    command.run("tb.sweep", main)
