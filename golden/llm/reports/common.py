"""The functions that commands of golden.llm.reports which run in parts have in common."""

import argparse
import fnmatch
import importlib.metadata
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golden.markers import rewrite

if TYPE_CHECKING:
    from torch import Tensor

    from golden.llm.checkpoint import Checkpoint
    from golden.llm.eval.accuracy.bench import Bench
    from golden.llm.reports.million.tables import Table


def add_page(parser: argparse.ArgumentParser, page: Path, rows: bool = False) -> None:
    """``--page``, for a page of docs; rows: the command keeps rows next to it."""
    what = "the rows and the sections" if rows else "the sections"
    parser.add_argument(
        "--page", type=Path, nargs="?", const=page,
        help=f"write {what} of FILE, or of docs/{page.name} without one",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, help="of the CPU; torch's choice if none")


def add_row_options(
    parser: argparse.ArgumentParser, page: Path, work: Path, windows: int, seeds: Sequence[int]
) -> None:
    """Texts, windows, seeds and parts of a command whose rows run in parts."""
    parser.add_argument("--model", help="as for golden.llm.eval; SmolLM2-135M if none")
    parser.add_argument(
        "--text", action="append", default=[], metavar="NAME=FILE",
        help="a text to evaluate, plain or .jsonl; may be repeated; the first calibrates",
    )  # fmt: skip
    parser.add_argument("--windows", type=int, default=windows, help="of each text, whole parts")
    parser.add_argument("--part", type=int, default=windows, help="windows that run at a time")
    parser.add_argument("--seq", type=int, default=512, help="tokens of a window")
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds, help="of calibrations")
    parser.add_argument("--skip", type=int, default=20480, help="tokens before the calibration's")
    parser.add_argument("--calibration-tokens", type=int, default=256, help="of a window")
    parser.add_argument("--row", nargs="+", metavar="METHOD", help="only these, as spelt; * is any")
    parser.add_argument("--minutes", type=float, help="begin no part after these")
    add_page(parser, page, rows=True)
    parser.add_argument(
        "--page-only", action="store_true", help="run no row: write the sections from the rows"
    )
    parser.add_argument("--work", type=Path, default=work)
    parser.add_argument("--device", help="cuda if there is one, else cpu")


def check_rows(options: argparse.Namespace) -> None:
    """ConfigError: options of ``add_row_options`` that make no sense together."""
    from golden.config import ConfigError

    if not options.text:
        raise ConfigError("text must be given at least once")
    used = options.windows * options.seq
    if used > options.skip:
        raise ConfigError(
            f"skip must be at least {used}, the tokens that are evaluated, not {options.skip}"
        )


def prepare(options: argparse.Namespace) -> None:
    """Make the libraries quiet and give torch the threads of the options."""
    import torch

    from golden.llm.eval.command import quiet

    quiet()
    if options.threads is not None:
        torch.set_num_threads(options.threads)


def loaded(options: argparse.Namespace) -> "Checkpoint":
    """The model of ``add_row_options`` on its device. CheckpointError: there is none."""
    from golden.llm.checkpoint import load
    from golden.llm.eval.command import ARCHITECTURES, choose_device
    from golden.llm.eval.perplexity import check_finite

    prepare(options)
    checkpoint = load(options.model, ARCHITECTURES, choose_device(options.device))
    check_finite(checkpoint.model)
    return checkpoint


def texts_of(
    options: argparse.Namespace, checkpoint: "Checkpoint"
) -> tuple[str | None, dict[str, list["Tensor"]]]:
    """The first text, which calibrates, and the windows of all by name."""
    from golden.llm.checkpoint import read_text, windows
    from golden.llm.eval.accuracy.command import named_texts

    contents = {name: read_text(path) for name, path in named_texts(options.text).items()}
    texts = {
        name: windows(checkpoint, content, options.windows, options.seq)
        for name, content in contents.items()
    }
    return next(iter(contents.values())), texts


def settings(
    options: argparse.Namespace,
    bench: "Bench",
    texts: Mapping[str, list["Tensor"]],
    calibration: Mapping[str, int],
    tables: Sequence["Table"],
) -> dict[str, Any]:
    """Collects settings of all rows of ``tables``; calibration: windows by what they calibrate."""
    import torch

    from golden.llm.eval.accuracy.bench import digest
    from golden.llm.reports.million.run import wanted_rows

    names = list(texts)
    return {
        "model": bench.checkpoint.name,
        "fingerprint": bench.fingerprint,
        "texts": [{"name": name, "sha256": digest(texts[name])} for name in names],
        "sweeps": names[0],
        "windows": options.windows,
        "seq": options.seq,
        "seeds": list(options.seeds),
        "calibration": {
            **calibration,
            "tokens": options.calibration_tokens,
            "text": f"{names[0]} from token {options.skip:,} on",
        },
        "device": bench.device.type,
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "rows": len(wanted_rows(tables, names, options.seeds)),
    }


def fits(method: str, patterns: Sequence[str] | None) -> bool:
    """Whether ``method`` is one of ``patterns``; None: any."""
    return not patterns or any(fnmatch.fnmatchcase(method, each) for each in patterns)


def give(page: Path | None, made: Mapping[str, str]) -> None:
    """The sections of ``made`` to the page, or to the terminal."""
    if page:
        rewrite(page, made)
        print(page)
        return
    for name, text in made.items():
        print(f"{name}\n\n{text}")


def status(name: str, run: Callable[[], int]) -> int:
    """Returns what ``run`` returns, or 2 after one line on stderr."""
    from golden.config import ConfigError
    from golden.llm.checkpoint import CheckpointError

    try:
        return run()
    except (CheckpointError, ConfigError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
