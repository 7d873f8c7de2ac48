"""``python -m sim.calibrate``: measured layers to CSV, and the delays that fit them.

    python -m senbazuru.runs.layer --config smollm2 --json FILE        once for each run
    python -m sim.calibrate FILE... --commit COMMIT             writes sim/calib/*.csv
    python -m sim.calibrate --units FILE... --commit COMMIT     figures of other runs
    python -m sim.calibrate --products FILE... --commit COMMIT  of senbazuru.runs.accelerator_rates
    python -m sim.calibrate --requests FILE --commit COMMIT     trains of senbazuru.runs.mmu_rates
    python -m sim.calibrate --fit                               writes the delays

The fit changes one delay at a time by whole cycles. It takes the runs for fitting alone. It
minimises the squared relative error of the total, and of each kind of command by its share, beyond
what the bench cannot see. A change must lower that by 2 %, so a delay that the runs do not
determine stays as it was.
"""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder, replacing
from sim.calibration import (
    FOLDER,
    TRAIN,
    LayerRun,
    load_runs,
    ranges_of,
    read_figures,
    read_products,
    read_units,
    save,
    save_products,
    save_units,
)
from sim.kllm.predict import predict
from sim.kllm.units import FITTED, JUDGES, RANGES, TIMINGS, Timings
from sim.request_rows import read_rows, save_rows

_STEPS = (4, 2, 1)  # of a delay in cycles, one after the other
_GAIN = 0.02  # of the loss, for which a delay changes
_SEEN = 3  # cycles of a command that count as no error: the bench sees an end up to 6 cycles late


def loss(runs: Sequence[LayerRun], timings: Timings) -> float:
    """The loss that the fit minimises."""
    error = 0.0
    for run in runs:
        cycles, kinds = predict(run, timings)
        error += (cycles / run.total - 1) ** 2
        measured = run.opcodes()
        whole = sum(measured.values())
        for name, amount in measured.items():
            seen = _SEEN * run.cycles[name][0]
            beyond = max(0.0, abs(kinds[name] - amount) - seen)
            error += amount / whole * (beyond / amount) ** 2
    return error / len(runs)


def fit(runs: Sequence[LayerRun], start: Timings) -> Timings:
    """The best delays near ``start``, by one delay at a time until none improves."""
    best, least = start, loss(runs, start)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for name in FITTED:
                for change in (step, -step):
                    value = getattr(best, name) + (change if name != "read_word" else change / 20)
                    if value < 0:
                        continue
                    trial = dataclasses.replace(best, **{name: value})
                    found = loss(runs, trial)
                    if found < (1 - _GAIN) * least:
                        best, least, improved = trial, found, True
    return best


def _save(timings: Timings, runs: Sequence[LayerRun], file: Path) -> None:
    """runs: that they were fitted on."""
    made: dict[str, object] = {"commit": runs[0].commit, "ranges": ranges_of(runs)}
    made |= {name: round(getattr(timings, name), 4) for name in FITTED}
    with replacing(file) as part:
        part.write_text(json.dumps(made, indent=1) + "\n")


def _some(found: Sequence[object], files: Sequence[Path]) -> None:
    """ConfigError: none, which would empty a file of calibration."""
    if not found:
        raise ConfigError(f"{', '.join(map(str, files))}: no figures of that kind")


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m sim.calibrate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="of senbazuru.runs.layer"
    )
    parser.add_argument("--commit", help="of the RTL that was measured; with FILE")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--products", action="store_true", help="FILE: of senbazuru.runs.accelerator_rates"
    )
    kind.add_argument(
        "--units", action="store_true", help="FILE: of other runs, whose cycles golden predicts"
    )
    kind.add_argument(
        "--requests", action="store_true", help="FILE: of senbazuru.runs.mmu_rates --sweep"
    )
    kind.add_argument(
        "--judge", action="store_true",
        help="FILE: of senbazuru.runs.layer, for judging alone; no fit uses them",
    )  # fmt: skip
    parser.add_argument("--fit", action="store_true", help="find the delays")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.files and not options.fit:
        parser.error("FILE or --fit must be given")
    if options.files and not re.fullmatch("[0-9a-f]{7,40}", options.commit or ""):
        parser.error(f"--commit must be 7 to 40 hex digits with FILE, not {options.commit!r}")
    try:
        with claimed_folder(options.folder):
            _calibrate(options)
    except ConfigError as error:
        print(f"sim.calibrate: {error}", file=sys.stderr)
        return 2
    return 0


def _calibrate(options: argparse.Namespace) -> None:
    if options.files and options.units:
        units = [each for file in options.files for each in read_units(file, options.commit)]
        _some(units, options.files)
        save_units(units, options.folder)
        print(f"{len(units)} figures that golden predicts")
    elif options.files and options.products:
        made = [each for file in options.files for each in read_products(file, options.commit)]
        _some(made, options.files)
        save_products(made, options.folder)
        print(f"{len(made)} products, none for fitting")
    elif options.files and options.requests:
        rows = [row for file in options.files for row in read_rows(file, options.commit)]
        _some(rows, options.files)
        save_rows(rows, options.folder)
        print(f"{len(rows)} trains of READs and APPENDs")
    elif options.files and options.judge:
        folder = options.folder / JUDGES
        folder.mkdir(exist_ok=True)
        added = [read_figures(file, options.commit) for file in options.files]
        known = [each.fields for each in added]
        runs = [*(run for run in load_runs(folder) if run.fields not in known), *added]
        save(runs, folder)
        with replacing(folder / RANGES) as part:
            part.write_text(json.dumps(ranges_of(runs), indent=1) + "\n")
        print(f"{len(added)} layers for judging, {len(runs)} in all")
    elif options.files:
        runs = [read_figures(file, options.commit) for file in options.files]
        save(runs, options.folder)
        for run in runs:
            print(f"{run.mark:8}  {run.total:6d} cycles  {run.name}")
    if options.fit:
        runs = [run for run in load_runs(options.folder) if run.mark == TRAIN]
        if not runs:
            raise ConfigError(f"{options.folder}: no run is for fitting")
        best = fit(runs, Timings())
        _save(best, runs, options.folder / TIMINGS)
        print(f"{len(runs)} runs, {len(FITTED)} delays, loss {loss(runs, best):.6f}")


if __name__ == "__main__":
    command.run("sim.calibrate", main)
