"""``python -m golden.eval.reports.million [TABLE ...] --text NAME=FILE``: MILLION's accuracy."""

import argparse
import fnmatch
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golden import command
from golden.eval.accuracy.arguments import PAGE, ROOT
from golden.eval.reports.million.tables import TABLES

if TYPE_CHECKING:
    from golden.checkpoint import Checkpoint
    from golden.eval.reports.million.run import Runner

__all__ = ["CHANNELS", "ROWS", "main"]

ROWS, CHANNELS = "million.json", "million_channels.json"
_CHANNEL_WINDOWS = 4


def _arguments() -> argparse.ArgumentParser:
    parser = command.Parser(
        prog="python -m golden.eval.reports.million",
        description="Run the rows on MILLION, in parts, and write their sections of a page.",
    )
    names = [each.name for each in TABLES]
    parser.add_argument(
        "table", nargs="*", metavar="TABLE", help=f"all if none: {', '.join(names)}"
    )
    parser.add_argument("--model", help="as for golden.eval; SmolLM2-135M if none")
    parser.add_argument(
        "--text", action="append", default=[], metavar="NAME=FILE",
        help="a text to evaluate, plain or .jsonl; may be repeated; the first calibrates",
    )  # fmt: skip
    parser.add_argument("--windows", type=int, default=4, help="of each text, whole parts")
    parser.add_argument("--part", type=int, default=4, help="windows that run at a time")
    parser.add_argument("--seq", type=int, default=512, help="tokens of a window")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of calibrations")
    parser.add_argument("--skip", type=int, default=20480, help="tokens before the calibration's")
    parser.add_argument("--calibration-windows", type=int, default=8)
    parser.add_argument("--calibration-tokens", type=int, default=256, help="of a window")
    parser.add_argument("--row", nargs="+", metavar="METHOD", help="only these, as spelt; * is any")
    parser.add_argument(
        "--continue", action="store_true", dest="goes_on",
        help="rows of the same settings next to the page count as run",
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, help="begin no part after these")
    parser.add_argument(
        "--page", type=Path, nargs="?", const=PAGE,
        help="write the rows and the sections of FILE, or of docs/accuracy.md without one",
    )  # fmt: skip
    parser.add_argument(
        "--page-only", action="store_true", help="run no row: write the sections from the rows"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "million")
    parser.add_argument("--threads", type=int, help="of the CPU; torch's choice if none")
    parser.add_argument("--device", help="cuda if there is one, else cpu")
    return parser


def write(page: Path) -> None:
    """The sections of a page from the rows next to it."""
    from golden.eval.accuracy.report import load_report
    from golden.eval.reports.million.channels import load_channels
    from golden.eval.reports.million.page import sections
    from golden.markers import rewrite

    folder = page.with_suffix("")
    file = folder / CHANNELS
    content = load_channels(file) if file.exists() else None
    rewrite(page, sections(load_report(folder / ROWS), content))
    print(page)


def _runner(options: argparse.Namespace, checkpoint: "Checkpoint") -> "Runner":
    from golden.checkpoint import read_text, windows
    from golden.eval.accuracy.bench import Bench
    from golden.eval.accuracy.command import named_texts
    from golden.eval.reports.million.run import Runner

    contents = {name: read_text(path) for name, path in named_texts(options.text).items()}
    texts = {
        name: windows(checkpoint, content, options.windows, options.seq)
        for name, content in contents.items()
    }
    first = next(iter(contents.values()))
    parts = Runner.in_parts(texts, options.part)
    learned = windows(
        checkpoint, first, options.calibration_windows, options.calibration_tokens, options.skip
    )
    return Runner(texts, Bench(checkpoint, parts, learned, options.work, 1), options.part)


def _settings(
    options: argparse.Namespace, checkpoint: "Checkpoint", runner: "Runner"
) -> dict[str, Any]:
    import torch

    from golden.eval.accuracy.bench import digest
    from golden.eval.reports.million.run import wanted_rows

    names = list(runner.texts)
    bench = runner.bench
    return {
        "model": checkpoint.name,
        "fingerprint": bench.fingerprint,
        "texts": [{"name": name, "sha256": digest(runner.texts[name])} for name in names],
        "sweeps": names[0],
        "windows": options.windows,
        "seq": options.seq,
        "seeds": list(options.seeds),
        "calibration": {
            "windows": options.calibration_windows,
            "tokens": options.calibration_tokens,
            "text": f"{names[0]} from token {options.skip:,} on",
        },
        "device": bench.device.type,
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "rows": len(wanted_rows(TABLES, names, options.seeds)),
    }


def _fits(method: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(method, each) for each in patterns)


def _run(options: argparse.Namespace) -> int:
    import torch

    from golden.checkpoint import load
    from golden.eval.accuracy.report import Report, load_report, save_report
    from golden.eval.command import ARCHITECTURES, choose_device, quiet
    from golden.eval.perplexity import check_finite
    from golden.eval.reports.million import channels
    from golden.eval.reports.million.page import sections
    from golden.eval.reports.million.run import earlier_rows, wanted_rows

    quiet()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    checkpoint = load(options.model, ARCHITECTURES, choose_device(options.device))
    check_finite(checkpoint.model)
    runner = _runner(options, checkpoint)
    settings = _settings(options, checkpoint, runner)
    chosen = [each for each in TABLES if not options.table or each.name in options.table]
    rows = wanted_rows(chosen, list(runner.texts), options.seeds)
    if options.row:
        rows = [row for row in rows if _fits(row.method, options.row)]
    folder = options.page.with_suffix("") if options.page else options.work
    if options.goes_on:
        before = load_report(folder / ROWS)
        runner.earlier = earlier_rows(before, settings, runner.texts, options.part)
    end = runner.run(rows, options.seeds, options.minutes)
    every = wanted_rows(TABLES, list(runner.texts), options.seeds)
    report = Report(settings, {row: found for row in every if (found := runner.record(row))})
    save_report(folder / ROWS, report)
    if not (folder / CHANNELS).exists():
        first, windows = next(iter(runner.texts.items()))
        some = windows[:_CHANNEL_WINDOWS]
        own = {
            "model": checkpoint.name, "fingerprint": report.settings["fingerprint"],
            "text": first, "windows": len(some), "seq": options.seq,
        }  # fmt: skip
        layers = channels.measure(checkpoint, some)
        channels.save_channels(folder / CHANNELS, own, layers)
    if options.page:
        write(options.page)
    else:
        content = channels.load_channels(folder / CHANNELS)
        for name, made in sections(report, content).items():
            print(f"{name}\n\n{made}")
    print(f"million: {end}", file=sys.stderr)
    return 130 if end.startswith("interrupted") else 0


def _check(options: argparse.Namespace) -> None:
    """ConfigError: options that make no sense together."""
    from golden.config import ConfigError

    names = [each.name for each in TABLES]
    for name in options.table:
        if name not in names:
            raise ConfigError(f"table must be one of {', '.join(names)}, not {name!r}")
    if options.page_only:
        return
    if not options.text:
        raise ConfigError("text must be given at least once")
    if options.windows * options.seq > options.skip:
        raise ConfigError(
            f"skip must be at least {options.windows * options.seq}, the tokens that are "
            f"evaluated, not {options.skip}"
        )


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, 130 when interrupted, or 2 after one line on stderr."""
    options = _arguments().parse_args(arguments)
    from golden.checkpoint import CheckpointError
    from golden.config import ConfigError

    try:
        _check(options)
        if options.page_only:
            write(options.page or PAGE)
            return 0
        return _run(options)
    except (CheckpointError, ConfigError) as error:
        print(f"million: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    command.run("golden.eval.reports.million", main)
