"""Paired differences of losses: ``python -m golden.llm.reports.codebooks TABLE --text FILE``.

``antisymmetric``: KLLM with and without antisymmetric codebooks, a pair for each seed.
``products``: bit-true runs, every product of the lanes on the same windows.
"""

import argparse
import dataclasses
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden import command
from golden.files import claimed, made_folder
from golden.llm.eval.accuracy.arguments import PAGE, ROOT
from golden.markers import rewrite, table

_BASE = "kllm-plain-w4a4"
_HALF = "antisymmetric=true"


@dataclasses.dataclass(frozen=True)
class Paired:
    """Mean of (other - own) and its standard error, sd / sqrt(n); NaN from fewer than 2 pairs."""

    mean: float
    error: float

    @classmethod
    def of(cls, own: Sequence[float], other: Sequence[float]) -> "Paired":
        differences = [b - a for a, b in zip(own, other, strict=True)]
        if len(differences) < 2:
            return cls(statistics.fmean(differences), math.nan)
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        return cls(statistics.fmean(differences), error)

    @property
    def cells(self) -> list[str]:
        """Difference, standard error, and what the difference does to the perplexity."""
        error = "" if math.isnan(self.error) else f"{self.error:.4f}"
        return [f"{self.mean:+.4f}", error, f"{math.expm1(self.mean):+.2%}"]


@dataclasses.dataclass(frozen=True)
class Variants:
    """methods: spelling by label, the first of them is what the others are compared with.

    is_exact: the exact arithmetic of the hardware. by_seed: a line for each seed.
    """

    name: str
    methods: dict[str, str]
    is_exact: bool
    by_seed: bool


TABLES = (
    Variants(
        "antisymmetric",
        {"any": _BASE, "antisymmetric": f"{_BASE}:{_HALF}"},
        is_exact=False,
        by_seed=True,
    ),
    Variants(
        "products",
        {
            "`rounded`": _BASE,
            "`fixed16`": f"{_BASE}:product=fixed16",
            "`fixed12`": f"{_BASE}:product=fixed12",
            "`fixed16`, antisymmetric": f"{_BASE}:{_HALF},product=fixed16",
            "`exact`": f"{_BASE}:product=exact",
        },
        is_exact=True,
        by_seed=False,
    ),
)
_COLUMNS = ("difference, nats", "standard error", "of perplexity")


def _losses(report: Any, method: str, seed: int) -> list[float] | None:
    from golden.llm.eval.accuracy.bench import Row

    record = report.records.get(Row(report.settings["text"], method, seed))
    return None if record is None or record.failed else record.window_losses


def _perplexity(losses: Sequence[float]) -> str:
    return f"{math.exp(statistics.fmean(losses)):.3f}"


def _by_seed(which: Variants, report: Any) -> str:
    """A line for each seed; the last has the means and the error over seeds."""
    (own_label, own), (label, other) = which.methods.items()
    rows, means = [], []
    for seed in report.settings["seeds"]:
        a, b = _losses(report, own, seed), _losses(report, other, seed)
        if a is None or b is None:
            continue
        rows.append([f"seed {seed}", _perplexity(a), _perplexity(b), *Paired.of(a, b).cells])
        means.append((statistics.fmean(a), statistics.fmean(b)))
    if means:
        a, b = ([each[i] for each in means] for i in (0, 1))
        over = f"{len(means)} seeds"
        rows.append([over, _perplexity(a), _perplexity(b), *Paired.of(a, b).cells])
    return table(("codebooks", own_label, label, *_COLUMNS), rows)


def _mean(every: Sequence[Sequence[float]]) -> list[float]:
    """Mean over seeds of each window: windows are independent, seeds of one window are not."""
    return [statistics.fmean(each) for each in zip(*every, strict=True)]


def _by_method(which: Variants, report: Any) -> str:
    """A line for each method: means over all windows, and the seeds that its reference has too."""
    reference = next(iter(which.methods.values()))
    rows = []
    for label, method in which.methods.items():
        own, losses, seeds = [], [], []
        for seed in report.settings["seeds"]:
            a, b = _losses(report, reference, seed), _losses(report, method, seed)
            if a is not None and b is not None:
                own.append(a)
                losses.append(b)
                seeds.append(str(seed))
        if not seeds:
            continue
        cells = ["", "", ""]
        if method != reference:
            cells = Paired.of(_mean(own), _mean(losses)).cells
        rows.append([label, ", ".join(seeds), _perplexity(_mean(losses)), *cells])
    return table(("product", "seeds", "perplexity", *_COLUMNS), rows)


def section(which: Variants, report: Any) -> str:
    """The text between the markers of a table."""
    own = report.settings
    text = f"{own['windows']} windows of {own['seq']:,} tokens of {own['text']}"
    learned = "{windows} windows of {tokens} tokens behind {skip:,} tokens".format(
        **own["calibration"]
    )
    pairs = [
        ("model", f"{own['model']} (weights {own['fingerprint'][:12]})"),
        ("text", f"{text} (ids {own['sha256'][:12]})"),
        ("predictions", f"{own['windows'] * (own['seq'] - 1):,} of each row"),
        ("calibration", learned),
        ("arithmetic", "bit-true" if which.is_exact else "the fast path"),
    ]
    made = _by_seed(which, report) if which.by_seed else _by_method(which, report)
    return table(("setting", "value"), pairs, align_right=False) + "\n" + made


def _rows_file(which: Variants, page: Path) -> Path:
    return page.with_suffix("") / f"{which.name}.json"


def _write(which: Variants, page: Path) -> None:
    from golden.llm.eval.accuracy.report import load_report

    rewrite(page, {which.name: section(which, load_report(_rows_file(which, page)))})
    print(page)


def _run(options: argparse.Namespace, which: Variants, target: Path) -> int:
    import torch

    from golden.llm.checkpoint import load, read_text, windows
    from golden.llm.eval.accuracy.bench import Bench, Row, digest
    from golden.llm.eval.accuracy.report import Report, save_report
    from golden.llm.eval.command import ARCHITECTURES, choose_device, exact_layers, quiet
    from golden.llm.eval.perplexity import check_finite

    quiet()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    checkpoint = load(options.model, ARCHITECTURES, choose_device(options.device))
    check_finite(checkpoint.model)
    content = read_text(options.text)
    texts = windows(checkpoint, content, options.windows, options.seq)
    learned = windows(
        checkpoint, content, options.calibration_windows, options.calibration_tokens, options.skip
    )
    exact = exact_layers(checkpoint, ["*"]) if which.is_exact else ()
    name = options.text.name if options.text else "the built-in text"
    bench = Bench(checkpoint, {name: texts}, learned, options.work, options.batch, exact)
    report = Report(
        {
            "model": checkpoint.name,
            "fingerprint": bench.fingerprint,
            "text": name,
            "sha256": digest(texts),
            "windows": options.windows,
            "seq": options.seq,
            "seeds": options.seeds,
            "calibration": {
                "windows": options.calibration_windows,
                "tokens": options.calibration_tokens,
                "skip": options.skip,
            },
        },
        {},
    )
    for seed in options.seeds:
        for label, method in which.methods.items():
            row = Row(name, method, seed)
            record = report.records[row] = bench.run(row)
            what = f"failed: {record.failed}" if record.failed else f"{record.perplexity:.3f}"
            took = f"{record.calibration_seconds:.0f} s, {record.seconds:.0f} s"
            print(f"{label}, seed {seed}: {what} ({took})", file=sys.stderr, flush=True)
            save_report(target, report)
    if options.page:
        _write(which, options.page)
    else:
        print(section(which, report), end="")
    return int(any(each.failed for each in report.records.values()))


def _arguments() -> argparse.ArgumentParser:
    parser = command.Parser(
        prog="python -m golden.llm.reports.codebooks",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("table", choices=[each.name for each in TABLES])
    parser.add_argument("--model", help="as for golden.llm.eval; SmolLM2-135M if none")
    parser.add_argument("--text", type=Path, help="plain or .jsonl; ours if none")
    parser.add_argument("--windows", type=int, default=5, help="evaluated")
    parser.add_argument("--seq", type=int, default=2048, help="tokens of a window")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of calibrations")
    parser.add_argument("--skip", type=int, default=20480, help="tokens before the calibration's")
    parser.add_argument("--calibration-windows", type=int, default=8)
    parser.add_argument("--calibration-tokens", type=int, default=256, help="of a window")
    parser.add_argument(
        "--page", type=Path, nargs="?", const=PAGE,
        help="write the rows and the section of FILE, or of docs/accuracy.md without one",
    )  # fmt: skip
    parser.add_argument(
        "--page-only", action="store_true", help="run no row: write the section from its rows"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "codebooks")
    parser.add_argument("--batch", type=int, default=1, help="windows at a time")
    parser.add_argument("--threads", type=int, help="of the CPU; torch's choice if none")
    parser.add_argument("--device", help="cuda if there is one, else cpu")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, 1 where a row failed, or 2 after one line on stderr."""
    options = _arguments().parse_args(arguments)
    which = next(each for each in TABLES if each.name == options.table)
    from golden.config import ConfigError
    from golden.llm.checkpoint import CheckpointError

    try:
        if options.page_only:
            _write(which, options.page or PAGE)
            return 0
        if options.windows * options.seq > options.skip:
            raise ConfigError(
                f"skip must be at least {options.windows * options.seq}, the tokens that are "
                f"evaluated, not {options.skip}"
            )
        target = _rows_file(which, options.page or options.work / "page.md")
        with made_folder(target.parent), claimed(target):
            return _run(options, which, target)
    except (CheckpointError, ConfigError) as error:
        print(f"codebooks: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    command.run("golden.llm.reports.codebooks", main)
