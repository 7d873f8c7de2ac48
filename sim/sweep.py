"""``python -m sim.sweep FILE``: every combination of chips, models, sizes and fields.

FILE is an object of lists. Each combination is a point:

    {"hw": ["kllm-a4"], "model": ["llama-2-7b"], "batch": [1, 4], "prompt": [128], "out": [128],
     "set": {"constants.clock.value": [500, 700], "settings.counter": ["select", "flipflop"]}}

The rows are in the order of the points, whatever the number of workers. A run that is stopped keeps
its finished points in the output, and the same command continues. A point that a chip cannot do has
a reason in its row.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from golden import command
from golden.config import ConfigError
from golden.files import claimed, replacing
from golden.scheduler import add_scheduler, on_workers
from sim.engine import NOT_SCALED
from sim.points import Point, chip, point_rows, points
from sim.run import write_csv

# What every chosen point shows besides the fields that it is chosen by.
_ALSO = (
    "first_token_seconds",
    "seconds",
    "joules",
    "k_bits",
    "v_bits",
    "not_scaled",
    "extrapolated",
)
_BLOCK = 32  # points that a worker takes at a time


def _kept(file: Path, wanted: Sequence[Point]) -> dict[int, dict[str, Any]]:
    """Rows of an earlier run by number. ConfigError: the file is of other points."""
    kept: dict[int, dict[str, Any]] = {}
    if not file.exists():
        return kept
    for line in file.read_text(errors="replace").splitlines():
        try:
            each = json.loads(line)
            number, point, row = int(each["number"]), each["point"], dict(each["row"])
            _ = each["chip"]
        except (ValueError, KeyError, TypeError):
            continue  # a line that a stopped run has not finished
        if not 0 <= number < len(wanted) or wanted[number] != point or each["chip"] != chip(point):
            raise ConfigError(
                f"{file}: is of another sweep, or a chip or a model has changed; give another "
                "--output"
            )
        if not row.get("failed"):  # a defect of the simulator, which may be mended by now
            kept[number] = row
    return kept


def _mapped(
    blocks: Sequence[list[Point]], workers: int, scheduler: str | None
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Blocks by number as they are done."""
    if scheduler is not None:
        yield from on_workers(point_rows, blocks, scheduler)
    elif workers == 1:
        yield from enumerate(map(point_rows, blocks))
    else:
        with concurrent.futures.ProcessPoolExecutor(workers) as pool:
            futures = {pool.submit(point_rows, block): n for n, block in enumerate(blocks)}
            for done in concurrent.futures.as_completed(futures):
                try:
                    yield futures[done], done.result()
                except concurrent.futures.BrokenExecutor:
                    raise ConfigError("a worker has ended; finished points stay") from None


def pareto(
    rows: Iterable[Mapping[str, Any]], less: Sequence[str], more: Sequence[str]
) -> list[int]:
    """Numbers of the rows that no other row beats: in nothing worse, and in something better.

    A row with no number there, refused or not scaled, takes no part.
    """
    scored = [
        (n, [*(row[name] for name in less), *(-row[name] for name in more)])
        for n, row in enumerate(rows)
        if all(isinstance(row.get(name), int | float) for name in (*less, *more))
    ]
    scored.sort(key=lambda each: each[1])
    best: list[tuple[int, list[float]]] = []
    for n, score in scored:
        if not any(all(a <= b for a, b in zip(o, score, strict=True)) and o != score
                   for _, o in best):  # fmt: skip
            best.append((n, score))
    return sorted(n for n, _ in best)


def _sweep(options: argparse.Namespace) -> list[dict[str, Any]]:
    wanted = points(options.file)
    kept = _kept(options.output, wanted)
    numbers = [n for n in range(len(wanted)) if n not in kept]
    blocks = [numbers[n : n + _BLOCK] for n in range(0, len(numbers), _BLOCK)]
    say = command.elapsed(lambda text: print(text, file=sys.stderr))
    before = options.output.read_bytes() if options.output.exists() else b""
    with options.output.open("a") as out:
        if before and not before.endswith(b"\n"):
            print(file=out)  # a stopped run has left a line without its end
        made = _mapped(
            [[wanted[n] for n in block] for block in blocks], options.workers, options.scheduler
        )
        for block, rows in made:
            for n, row in zip(blocks[block], rows, strict=True):
                kept[n] = row
                line = {"number": n, "point": wanted[n], "chip": chip(wanted[n]), "row": row}
                print(json.dumps(line), file=out)
            out.flush()
            if sys.stderr.isatty() or len(kept) == len(wanted):
                say(f"{len(kept)} of {len(wanted)} points")
    return [kept[n] for n in range(len(wanted))]


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(prog="python -m sim.sweep", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON of lists")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("sweep.jsonl"), help="finished points"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all rows in order")
    parser.add_argument(
        "--less", nargs="+", default=["joules_per_token"], metavar="FIELD", help="better if small"
    )
    parser.add_argument(
        "--more", nargs="+", default=["tokens_per_second"], metavar="FIELD", help="better if large"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    add_scheduler(parser)
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error(f"--workers must be 1 or more, not {options.workers}")
    outputs = contextlib.ExitStack()
    try:
        for file in (options.output, options.csv):
            if file is not None and file.resolve() == options.file.resolve():
                raise ConfigError(f"{file} is the file of the sweep: choose another output")
        outputs.enter_context(claimed(options.output, options.csv))
        rows = _sweep(options)
        if options.csv:
            with replacing(options.csv) as part:
                part.write_text(write_csv(rows))
    except ConfigError as error:
        print(f"sim.sweep: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sim.sweep: {error.filename or options.output}: {error.strerror}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    able = [row for row in rows if "refused" not in row]
    known = dict.fromkeys(n for row in able for n in row)
    unknown = [n for n in (*options.less, *options.more) if able and n not in known]
    if unknown:
        fields = ", ".join(
            n for n in known if any(isinstance(row.get(n), int | float) for row in able)
        )
        print(
            f"sim.sweep: --less and --more must be of {fields}, not {unknown[0]}", file=sys.stderr
        )
        return 2
    best = pareto(rows, options.less, options.more)
    refused = sum("refused" in row for row in rows)
    chosen = (*options.less, *options.more)
    left = sum(NOT_SCALED in (row.get(name) for name in chosen) for row in rows)
    print(
        f"{len(rows)} points, {refused} refused, {left} left out as a figure is {NOT_SCALED}, "
        f"{len(best)} that no other beats"
    )
    names = ["hw", "model", "batch", *chosen, *_ALSO]
    for n in best:
        row = rows[n]
        sets = {k: v for k, v in row.items() if "." in k}
        print(json.dumps({name: row.get(name) for name in names} | sets))
    return 0


if __name__ == "__main__":
    command.run("sim.sweep", main)
