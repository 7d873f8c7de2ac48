"""``python -m golden.llm.eval.accuracy``: run the rows of the tables and write a page of them.

Rows that are done are not run again: they wait under ``--work`` for the next time.
"""

import argparse
import contextlib
import dataclasses
import fnmatch
import functools
import importlib.metadata
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.files import in_turn, replacing
from golden.llm import text as own_text
from golden.llm.checkpoint import Checkpoint, CheckpointError, load, read_text
from golden.llm.eval.accuracy import page, plots
from golden.llm.eval.accuracy.arguments import PAGE, arguments
from golden.llm.eval.accuracy.bench import Bench, Record, Row, digest
from golden.llm.eval.accuracy.report import Report, load_report, save_report
from golden.llm.eval.accuracy.tables import TABLES, Table, number
from golden.llm.eval.calibration_text import (
    CalibrationText,
    calibration_size,
    calibration_text,
    calibration_windows,
)
from golden.llm.eval.command import ARCHITECTURES, choose_device, evaluation_windows, quiet
from golden.llm.eval.method import Method
from golden.llm.eval.perplexity import check_finite
from golden.llm.methods import parse_all
from golden.markers import fill
from golden.scheduler import on_workers

_WINDOWS = 8, 256  # of methods that need few tokens, and their tokens
_OWN = "own"  # name of golden.llm.text.EVALUATION


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise ConfigError(f"text must be NAME=FILE, not {text!r}")
    return name, Path(path)


def _is_calibrated(method: str) -> bool:
    try:
        return any(each.calibrated for each in parse_all(method))
    except ConfigError:
        return False  # its row says why


def all_rows(
    texts: list[str], seeds: list[int], sweeps: str, tables: Iterable[Table] = TABLES
) -> list[Row]:
    """Every row of some tables once: the first seed of all, then the others.

    sweeps: text of the tables that are not whole. Each text has a row of fp32.
    """
    found: dict[Row, None] = {}
    for seed in seeds:
        for table in tables:
            for method in ("fp32", *(entry.method for entry in table.entries)):
                if seed != seeds[0] and not (table.seeds and _is_calibrated(method)):
                    continue
                for text in texts if table.whole else [sweeps]:
                    found[Row(text, method, seed)] = None
    return list(found)


def chosen_rows(
    options: argparse.Namespace, texts: list[str], seeds: list[int], sweeps: str
) -> list[Row]:
    """Those of ``--table`` and ``--row``; ConfigError: there are none."""
    names = options.table or [each.name for each in TABLES]
    rows = all_rows(texts, seeds, sweeps, [each for each in TABLES if each.name in names])
    if options.row:
        for pattern in options.row:
            if not fnmatch.filter([row.method for row in rows], pattern):
                raise ConfigError(f"no row of {', '.join(names)} is spelt {pattern!r}")
        rows = [
            row
            for row in rows
            if any(fnmatch.fnmatchcase(row.method, each) for each in options.row)
        ]
    return rows


def named_texts(given: Iterable[str]) -> dict[str, Path]:
    """Files by name of NAME=FILE; ConfigError: not of this form, or a name twice."""
    found: dict[str, Path] = {}
    for name, path in map(_named, given):
        if name in found:
            raise ConfigError(f"two texts are called {name!r}")
        found[name] = path
    return found


def _texts(options: argparse.Namespace, checkpoint: Checkpoint) -> dict[str, list[Tensor]]:
    contents: dict[str, str | None] = {
        name: read_text(path) for name, path in named_texts(options.text).items()
    }
    found = {}
    for name, content in (contents or {_OWN: None}).items():
        try:
            found[name] = evaluation_windows(checkpoint, content, options.seq, options.tokens)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}") from None
    return found


def _sweeps(options: argparse.Namespace, name: str) -> str:
    """The text of the sweeps: the first one, or its beginning."""
    tokens = options.sweep_tokens
    return name if tokens is None else f"{name}, first {tokens:,} tokens"


def _beginning(options: argparse.Namespace, whole: list[Tensor]) -> list[Tensor]:
    """The first ``--sweep-tokens`` tokens of a text as whole windows."""
    seq, limit = len(whole[0]), sum(map(len, whole))
    if not seq <= options.sweep_tokens <= limit:
        raise ConfigError(f"sweep tokens must be {seq}..{limit}, not {options.sweep_tokens}")
    return whole[: options.sweep_tokens // seq]


def _calibration(
    options: argparse.Namespace, checkpoint: Checkpoint, used: int, methods: Sequence[Method] = ()
) -> tuple[str, list[Tensor]]:
    """(name of the text, windows) for some methods: a text of its own, the first one, or ours.

    ``used``: tokens of the first text that are evaluated. They are left out where the content is
    the same.
    """
    first = _named(options.text[0]) if options.text else None
    evaluated = read_text(first[1]) if first else own_text.EVALUATION
    text = calibration_text(options.calibration_text, methods)
    if first is not None and options.calibration_text is None:
        assert evaluated is not None
        text = CalibrationText(first[0], evaluated)
    name, skip = text.name, 0
    if text.content == evaluated:
        name, skip = f"{name} behind these", used
    count, tokens = options.calibration_windows, options.calibration_tokens
    if not methods:
        count, tokens = count or _WINDOWS[0], tokens or _WINDOWS[1]
    size = calibration_size(checkpoint, methods, count, tokens)
    try:
        return name, calibration_windows(checkpoint, text.content, *size, skip)
    except CheckpointError as error:
        raise CheckpointError(f"calibration: {error}") from None


def _demanding(rows: Iterable[Row]) -> list[Method]:
    """Methods of some rows that had better have thousands of tokens."""
    found = []
    for spelling in {row.method for row in rows}:
        with contextlib.suppress(ConfigError):  # its row says why
            found += [each for each in parse_all(spelling) if each.calibration_tokens]
    return found


def _run_rows(bench: Bench, rows: list[Row], seeds: list[int], minutes: float | None) -> str:
    """Run the rows that are not done, with one line for each; returns how it ended."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    todo = [row for row in rows if not bench.done(row)]
    console.print(f"{len(rows) - len(todo)} of {len(rows)} rows are done")
    start = time.monotonic()
    failed = 0
    for i, row in enumerate(todo, 1):
        elapsed = time.monotonic() - start
        if minutes is not None and elapsed > 60 * minutes:
            return f"stopped after {minutes:g} minutes, {len(todo) - i + 1} rows are left"
        begin = time.monotonic()
        try:
            record = bench.run(row, seeds)
        except KeyboardInterrupt:
            return f"interrupted, {len(todo) - i + 1} rows are left"
        elapsed = time.monotonic() - start
        what = f"failed: {record.failed}" if record.failed else number(record.perplexity)
        failed += bool(record.failed)
        left = elapsed / i * (len(todo) - i) / 60
        line = f"{row.method}, {row.text}, seed {row.seed}: {what}"
        took = f"{time.monotonic() - begin:.0f} s, about {left:.0f} minutes left"
        console.print(escape(f"[{i}/{len(todo)}] {line} ({took})"), soft_wrap=True)
    return f"all rows have run, {failed} failed" if failed else "all rows are done"


@functools.cache
def _bench_here(argv: tuple[str, ...]) -> Bench:
    """The bench of a command line in this process: the model stays loaded."""
    quiet()
    return _prepared(arguments(each.name for each in TABLES).parse_args(argv)).bench


def _on_worker(task: tuple[tuple[str, ...], list[Row], list[int]]) -> list[tuple[str, Record]]:
    """(digest of what the row depends on, record) of each row."""
    argv, rows, seeds = task
    bench = _bench_here(argv)
    return [(digest(bench.key(row)), bench.run(row, seeds)) for row in rows]


def _by_workers(bench: Bench, rows: list[Row], seeds: list[int], argv: list[str], to: str) -> None:
    """Run the rows that are not done on the workers of scheduler ``to``, and store them.

    Rows of one method are one task: they calibrate once for all texts. ConfigError: a worker has
    another model, text or code.
    """
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        if not bench.done(row):
            by_method.setdefault(row.method, []).append(row)
    tasks = [(tuple(argv), each, seeds) for each in by_method.values()]
    for n, (place, found) in enumerate(on_workers(_on_worker, tasks, to), start=1):
        for row, (key, record) in zip(tasks[place][1], found, strict=True):
            if key != digest(bench.key(row)):
                raise ConfigError(
                    f"--scheduler {to}: a worker has another model, text or code for {row.method}"
                )
            bench.store(row, record)
        print(f"[{n}/{len(tasks)}] {tasks[place][1][0].method}", file=sys.stderr, flush=True)


def write(report: Report, path: Path) -> list[Path]:
    """Write the page, and its plots and rows.json into a folder of its name next to it.

    Returns the written paths. A page that does not exist begins as docs/accuracy.md.
    CheckpointError: matplotlib is missing.
    """
    folder = path.with_suffix("")
    drawn = plots.draw(report)
    folder.mkdir(parents=True, exist_ok=True)
    with in_turn(path):  # another run may fill other sections
        save_report(folder / "rows.json", report)
        written = [path, folder / "rows.json"]
        for name in plots.PLOTS.keys() - drawn.keys():
            (folder / f"{name}.svg").unlink(missing_ok=True)
        for name, content in drawn.items():
            with replacing(folder / f"{name}.svg") as part:
                part.write_bytes(content)
            written.append(folder / f"{name}.svg")
        base = (path if path.exists() else PAGE).read_text()
        addresses = {name: f"{folder.name}/{name}.svg" for name in drawn}
        with replacing(path) as part:
            part.write_text(fill(base, page.sections(report, addresses), is_partial=True))
    return written


def _settings(
    options: argparse.Namespace, bench: Bench, names: list[str], calibration: str
) -> dict[str, Any]:
    first = bench.texts[names[0]]
    return {
        "model": bench.checkpoint.name,
        "fingerprint": bench.fingerprint,
        "texts": [{"name": name, "sha256": digest(bench.texts[name])} for name in names],
        "sweeps": _sweeps(options, names[0]),
        "seq": len(first[0]),
        "tokens": sum(map(len, first)),
        "calibration": {
            "text": calibration,
            "windows": len(bench.calibration),
            "tokens": len(bench.calibration[0]),
            "many": {"windows": len(bench.many), "tokens": len(bench.many[0])},
        },
        "seeds": list(range(options.seeds)),
        "device": bench.device.type,
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
    }


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """The run that a command line wants. calibration: name of its text."""

    bench: Bench
    rows: list[Row]
    names: list[str]
    sweeps: str
    calibration: str


def _prepared(options: argparse.Namespace) -> _Prepared:
    """CheckpointError or ConfigError in one line."""
    if options.seeds < 1:
        raise ConfigError(f"seeds must be at least 1, not {options.seeds}")
    if options.threads is not None:
        if options.threads < 1:
            raise ConfigError(f"threads must be at least 1, not {options.threads}")
        torch.set_num_threads(options.threads)
    if options.batch is not None and options.batch < 1:
        raise ConfigError(f"batch must be at least 1, not {options.batch}")
    seeds = list(range(options.seeds))
    names = [_named(each)[0] for each in options.text] or [_OWN]
    sweeps = _sweeps(options, names[0])
    rows = chosen_rows(options, names, seeds, sweeps)
    device = choose_device(options.device)
    checkpoint = load(options.model, ARCHITECTURES, device)
    check_finite(checkpoint.model)
    texts = _texts(options, checkpoint)
    if sweeps not in texts:
        texts[sweeps] = _beginning(options, texts[names[0]])
    used = sum(map(len, texts[names[0]]))
    name, calibration = _calibration(options, checkpoint, used)
    demanding = _demanding(rows)
    many = _calibration(options, checkpoint, used, demanding)[1] if demanding else calibration
    bench = Bench(checkpoint, texts, calibration, options.work, options.batch, many=many)
    return _Prepared(bench, rows, names, sweeps, name)


def run(options: argparse.Namespace, argv: list[str]) -> int:
    """CheckpointError or ConfigError in one line; ``argv``: the words of ``options``."""
    if options.page_only:
        target = options.page or PAGE
        report = load_report(target.with_suffix("") / "rows.json")
        print("\n".join(map(str, write(report, target))))
        return 0
    prepared = _prepared(options)
    bench, rows, names, sweeps = prepared.bench, prepared.rows, prepared.names, prepared.sweeps
    seeds = list(range(options.seeds))
    if options.dry_run:
        return _list(bench, rows)
    if options.scheduler is not None:
        _by_workers(bench, rows, seeds, argv, options.scheduler)
    end = _run_rows(bench, rows, seeds, options.minutes)
    whole = all_rows(names, seeds, sweeps)
    found = {row: record for row in whole if (record := bench.stored(row)) is not None}
    if len(found) == len(whole) and not any(each.failed for each in found.values()):
        shutil.rmtree(options.work / "calibration", ignore_errors=True)  # gigabytes
    settings = {**_settings(options, bench, names, prepared.calibration), "rows": len(whole)}
    for path in write(Report(settings, found), options.page or options.work / "accuracy.md"):
        print(path)
    print(f"accuracy: {end}", file=sys.stderr)
    return 130 if end.startswith("interrupted") else 0


def _list(bench: Bench, rows: list[Row]) -> int:
    done = 0
    for row in rows:
        record = bench.stored(row)
        what = "to run" if record is None else f"done: {number(record.perplexity)}"
        if record is not None and record.failed:
            what = f"to run again, failed: {record.failed}"
        done += bench.done(row)
        print(f"{row.text}, seed {row.seed}, {row.method}: {what}")
    print(f"{done} of {len(rows)} rows are done")
    return 0


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, 130 when interrupted, or 2 after one line on stderr."""
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(each.name for each in TABLES).parse_args(argv)
    quiet()
    try:
        return run(options, argv)
    except (CheckpointError, ConfigError) as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"accuracy: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
