"""``python -m golden.llm.eval --model M --text FILE --method NAME ...``: perplexity of methods.

Perplexity is exp of the mean next-token loss over non-overlapping windows of ``--seq`` tokens from
the beginning of the text. Each window is evaluated on its own, and the remainder of the text after
the last full window is left out. ``--tasks`` adds what lm-evaluation-harness measures.
"""

import argparse
import contextlib
import dataclasses
import fnmatch
import functools
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden.command import INTERRUPTED, check_least
from golden.config import ConfigError
from golden.files import claimed, replacing
from golden.llm import text as own_text
from golden.llm.checkpoint import (
    Checkpoint,
    CheckpointError,
    class_and_reason,
    load,
    longest,
    read_text,
    reason,
    windows,
)
from golden.llm.eval import estimate
from golden.llm.eval.accuracy.bench import code_version
from golden.llm.eval.arguments import arguments
from golden.llm.eval.calibration import CalibrationData, fingerprint
from golden.llm.eval.calibration_text import calibration_size, calibration_text, calibration_windows
from golden.llm.eval.evaluate import Settings, batch_size, evaluate, reset_peak_memory
from golden.llm.eval.kept import Kept, check_kept, finite
from golden.llm.eval.method import Method, Site, State
from golden.llm.eval.perplexity import check_finite
from golden.llm.eval.plot import draw
from golden.llm.eval.rows import COLUMNS, cells, csv_table, latex_table
from golden.llm.eval.state import calibrate, load_header, load_states
from golden.llm.eval.svg import check_matplotlib
from golden.llm.eval.tasks import prepare
from golden.llm.methods import broken, discover, parse_all, use_files
from golden.llm.structure import FAMILIES

ARCHITECTURES = FAMILIES  # model types of transformers that are evaluated
_SEED_MAX = 1 << 40  # a method makes several seeds of torch of it, which are below 2**64


def exact_layers(checkpoint: Checkpoint, patterns: Iterable[str]) -> list[str]:
    """Linear layers and attention modules whose names fit a pattern; ConfigError: none does."""
    with Site(checkpoint.model) as site:
        names = [*site.linears, *(f"{each}.self_attn" for each in site.layer_names)]
    found: list[str] = []
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            raise ConfigError(f"no linear layer or attention is named {pattern!r}")
        found += fitting
    return found


def _print_row(report: dict[str, Any], row: dict[str, Any]) -> None:
    """Prints a row once it is there; above the first one the settings and the head of the table."""
    if row is report["results"][0]:
        head = ("model", "text", "seq", "tokens", "device", "threads", "batch")
        print(", ".join(f"{key} {report[key]}" for key in head) + "\n")
        print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |")
    print(f"| {' | '.join(cells(row))} |", flush=True)


def _task_table(results: list[dict[str, Any]]) -> str:
    head = ("method", "task", "metric", "value", "standard error", "examples", "few-shot")
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for result in results:
        for row in result["tasks"]:
            error = "" if row["stderr"] is None else f"{row['stderr']:.4g}"
            cells = [result["method"], row["task"], row["metric"], f"{row['value']:.4g}", error]
            lines.append(" | ".join([*cells, str(row["examples"]), str(row["fewshot"])]))
    return "\n".join(f"| {line} |" for line in lines)


def check_seed(seed: int) -> None:
    if not 0 <= seed <= _SEED_MAX:
        raise ConfigError(f"seed must be 0..{_SEED_MAX}, not {seed}")


@contextlib.contextmanager
def in_one_line(name: str) -> Iterator[None]:
    """Turns a failure in a method into a CheckpointError of one line that names the method."""
    try:
        yield
    except (CheckpointError, ConfigError, OSError):  # the last names its file
        raise
    except (ArithmeticError, IndexError, KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{name}: {reason(error)}") from None
    except Exception as error:  # a fault in the code of a method: where it is
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename}:{last.lineno}"
        raise CheckpointError(f"{name}: {place}: {class_and_reason(error)}") from None


def choose_device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        if device.type in ("cpu", "cuda"):
            return device
    except (RuntimeError, AssertionError):
        pass
    raise ConfigError(f"device must be a cpu or cuda that torch can use here, not {name!r}")


def evaluation_windows(
    checkpoint: Checkpoint, text: str | None, seq: int | None, tokens: int | None
) -> list[Tensor]:
    """The first ``tokens`` tokens of a text (all if None) as whole windows; CheckpointError."""
    limit = longest(checkpoint)
    if text is None:
        text = own_text.EVALUATION
        known = len(checkpoint.tokenizer(text)["input_ids"])
        if seq is None and tokens is None:
            seq = min(2048, limit, known)
        needed = max(seq or 0, tokens or 0)
        if needed > known and (seq or 2) <= limit:
            raise CheckpointError(
                f"the built-in text has {known} tokens, {needed} are needed: name a longer one "
                "with --text"
            )
    if seq is None:
        seq = min(2048, limit) if tokens is None else min(2048, limit, max(tokens, 2))
    if not 2 <= seq <= limit:
        raise ConfigError(f"seq must be 2..{limit} for this model, not {seq}")
    if tokens is None:
        tokens = len(checkpoint.tokenizer(text)["input_ids"])
        if tokens < seq:
            raise CheckpointError(f"the text has {tokens} tokens, a window needs {seq}")
    if tokens < seq:
        raise ConfigError(f"tokens must be at least seq = {seq}, not {tokens}")
    return windows(checkpoint, text, tokens // seq, seq)


@dataclasses.dataclass(frozen=True)
class _Learned:
    """state: of a calibrated method; origin: how it was made, for the report."""

    state: State
    origin: dict[str, Any]


def _from_files(
    paths: Iterable[Path], checkpoint: Checkpoint, methods: list[Method], content: str, used: int
) -> dict[int, _Learned]:
    """Reads calibration files for methods, by place; ``used`` tokens of content are evaluated.

    CheckpointError or ConfigError: a file has learned from these tokens, or two serve a method.
    """
    found: dict[int, _Learned] = {}
    for path in paths:
        header = load_header(path)
        states = load_states(path, checkpoint, methods)
        if header["text_sha256"] == _sha256(content) and header["skip"] < used:
            raise CheckpointError(
                f"{path} was calibrated on text that is evaluated: make it with "
                f"golden.llm.calibrate --skip {used}"
            )
        fields = ("text", "windows", "tokens", "skip", "seed")
        origin = {"file": path.name, **{each: header[each] for each in fields}}
        for place, state in states.items():
            if place in found:
                other, name = found[place].origin["file"], type(methods[place]).__name__
                raise ConfigError(f"the calibrations {other} and {path.name} both serve {name}")
            found[place] = _Learned(state, origin)
    return found


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _lessons(
    options: argparse.Namespace,
    checkpoint: Checkpoint,
    methods: list[Method],
    content: str,
    used: int,
) -> tuple[list[Tensor], dict[str, Any]]:
    """Gives the windows that methods learn from, and their origin for the report.

    They come after the ``used`` evaluated tokens of content, where the text is the same.
    CheckpointError or ConfigError: the text or the model has not as many tokens.
    """
    text = calibration_text(options.calibration_text, methods)
    count, tokens = calibration_size(
        checkpoint, methods, options.calibration_windows, options.calibration_tokens
    )
    skip = used if text.content == content else 0
    origin = {
        "text": text.name, "windows": count, "tokens": tokens, "skip": skip, "seed": options.seed
    }  # fmt: skip
    return calibration_windows(checkpoint, text.content, count, tokens, skip), origin


def _calibrated_now(
    checkpoint: Checkpoint, methods: list[Method], lessons: tuple[list[Tensor], dict[str, Any]],
    seed: int,
) -> list[_Learned]:
    parts, origin = lessons
    data = CalibrationData(checkpoint.model, parts, seed)
    return [_Learned(state, origin) for state in calibrate(methods, data)]


def _settings(
    options: argparse.Namespace, report: dict[str, Any], model: str, content: str, exact: list[str]
) -> dict[str, Any]:
    """All that rows of one file share; methods, threads and batches may differ."""
    calibration = read_text(options.calibration_text)
    return {
        "model": model,
        "text": _sha256(content),
        "seq": report["seq"],
        "tokens": report["tokens"],
        "device": torch.device(report["device"]).type,
        "torch": torch.__version__,
        "bit_true": exact,
        "tasks": options.tasks,
        "tasks_path": str(options.tasks_path) if options.tasks_path else None,
        "task_limit": options.task_limit,
        "fewshot": options.fewshot,
        "calibration": [
            hashlib.sha256(path.read_bytes()).hexdigest() for path in options.calibration
        ],
        "calibration_text": _sha256(
            own_text.CALIBRATION + own_text.sample() if calibration is None else calibration
        ),
        "calibration_windows": options.calibration_windows or _METHODS_OWN,
        "calibration_tokens": options.calibration_tokens or _METHODS_OWN,
        "seed": options.seed,
    }


def _estimate(
    options: argparse.Namespace,
    checkpoint: Checkpoint,
    window: Tensor,
    used: int,
    waiting: dict[str, list[Method]],
) -> str | None:
    """A line on how long these combinations take; None: too short a run, or it cannot run."""
    count = estimate.piece(len(window), used, len(waiting))
    if not count:
        return None
    device = next(checkpoint.model.parameters()).device
    try:
        ends = estimate.seconds_per_token(checkpoint.model, window.to(device), count)
    except (CheckpointError, IndexError, RuntimeError, ValueError):
        return None  # the first method says why
    passes = used * sum(map(estimate.factor, waiting.values()))
    range_ = estimate.between(passes * ends[0], passes * ends[1])
    line = f"{range_} for {used} tokens with each of {len(waiting)} methods"
    learning = [
        name for name, methods in waiting.items() if any(method.calibrated for method in methods)
    ]
    more = []
    if learning and not options.calibration:
        more.append(f"the calibration of {', '.join(learning)}")
    more += ["the tasks"] if options.tasks else []
    more += ["the exact arithmetic"] if options.bit_true else []
    return f"{line}, without {' and '.join(more)}" if more else line


_METHODS_OWN = "of the method"
_LEAST = {"batch": 1, "task_limit": 1, "fewshot": 0, "calibration_windows": 1}


def run(
    options: argparse.Namespace,
    show: Callable[[dict[str, Any], dict[str, Any]], None] = lambda report, row: None,
) -> dict[str, Any]:
    """Everything as plain values; CheckpointError or ConfigError in one line.

    ``show`` gets the report so far and its last row, after each row.
    """
    if options.plot is not None:
        if options.plot.suffix != ".svg":
            raise ConfigError(f"plot must be a file .svg, not {options.plot}")
        check_matplotlib()
    with claimed(options.output, options.plot, options.csv, options.latex):
        check_kept(options.output, options.resume)
        return _run(options, show)


def _run(
    options: argparse.Namespace, show: Callable[[dict[str, Any], dict[str, Any]], None]
) -> dict[str, Any]:
    """``run`` with its outputs claimed."""
    combinations = {name: parse_all(name) for name in options.method}
    check_least(options, _LEAST)
    check_seed(options.seed)
    device = choose_device(options.device)
    text = read_text(options.text)
    content = own_text.EVALUATION if text is None else text
    read_text(options.calibration_text)  # refused before the model is read
    for path in options.calibration:
        load_header(path)
    checkpoint = load(options.model, ARCHITECTURES, device)
    check_finite(checkpoint.model)
    sequences = evaluation_windows(checkpoint, text, options.seq, options.tokens)
    seq = len(sequences[0])
    used = len(sequences) * seq
    batch = batch_size(checkpoint, seq, options.batch)
    report: dict[str, Any] = {
        "model": checkpoint.name,
        "text": options.text.name if options.text else "golden.llm.text.EVALUATION",
        "seq": seq,
        "tokens": used,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "batch": batch,
        "results": [],
    }
    exact = exact_layers(checkpoint, options.bit_true)
    tasks = None
    if options.tasks:
        tasks = prepare(
            checkpoint, options.tasks, options.tasks_path, options.task_limit, options.fewshot
        )
    everyone = [method for methods in combinations.values() for method in methods]
    found = _from_files(options.calibration, checkpoint, everyone, content, used)
    model = fingerprint(checkpoint.model)
    kept = Kept(options.output, _settings(options, report, model, content, exact), report)
    codes = {
        name: code_version(
            [*(type(each).__module__ for each in methods), "golden.llm.eval.evaluate"]
        )
        for name, methods in combinations.items()
    }
    waiting = {
        name: methods
        for name, methods in combinations.items()
        if kept.find(name, codes[name]) is None
    }
    # Of each combination the methods without a state: what they learn from is refused now.
    missing, lessons, first = {}, {}, 0
    for name, methods in combinations.items():
        places = range(len(methods))
        missing[name] = [i for i in places if methods[i].calibrated and first + i not in found]
        first += len(methods)
        if name in waiting and missing[name]:
            todo = [methods[i] for i in missing[name]]
            lessons[name] = _lessons(options, checkpoint, todo, content, used)
    if line := _estimate(options, checkpoint, sequences[0], used, waiting):
        print(f"eval: {line}", file=sys.stderr, flush=True)
    first = 0  # of this combination among everyone
    for name, methods in combinations.items():
        if (row := kept.find(name, codes[name])) is not None:
            first += len(methods)
            report["results"].append(row)
            show(report, row)
            continue
        reset_peak_memory(device)
        own = {i: found[first + i] for i in range(len(methods)) if first + i in found}
        first += len(methods)
        seconds = 0.0
        with in_one_line(name):
            if missing[name]:
                start = time.monotonic()
                todo = [methods[i] for i in missing[name]]
                learned = _calibrated_now(checkpoint, todo, lessons[name], options.seed)
                own |= dict(zip(missing[name], learned, strict=True))
                seconds = time.monotonic() - start
            states = [own[i].state if i in own else {} for i in range(len(methods))]
            result = evaluate(
                checkpoint, name, methods, sequences, states, Settings(batch, exact, tasks)
            )
        result = dataclasses.replace(result, calibration_seconds=seconds)
        more = {
            "parameters": [each.describe() for each in methods],
            "calibration": [own[i].origin if i in own else None for i in range(len(methods))],
        }
        row = {**dataclasses.asdict(result), **more, "code": codes[name]}
        report["results"].append(row)
        kept.add(row)
        show(report, row)
    title = f"{report['model']}, {report['text']}, {used} tokens in windows of {seq}"
    makers = (
        (options.plot, lambda: draw(report["results"], title)),
        (options.csv, lambda: csv_table(report["results"]).encode()),
        (options.latex, lambda: latex_table(report["results"], title).encode()),
    )
    for file, make in makers:
        if file is not None:
            with replacing(file) as part:
                part.write_bytes(make())
    return report


def quiet() -> None:
    """No bars and notes of the libraries: stderr is for our progress and one line of error."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tqdm import tqdm
        from transformers.utils import logging
    except ImportError:
        return  # told in one line by the loader
    # The bar of reading a GGUF file asks no setting: it stays, on terminals only.
    if "disable" not in getattr(vars(tqdm)["__init__"], "keywords", {}):
        tqdm.__init__ = functools.partialmethod(tqdm.__init__, disable=None)  # type: ignore[method-assign]
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def listing() -> str:
    """Every method: its first line and its parameters with their defaults."""
    lines = []
    for method in discover():
        summary = (method.__doc__ or "").splitlines()[0]
        lines.append(f"{', '.join(method.spellings)}: {summary}")
        lines += [f"    {field.name}={field.default}" for field in dataclasses.fields(method)]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, 1 if a file of methods is broken, or 2 after one line on stderr."""
    options = arguments().parse_args(argv)
    try:
        use_files(options.methods)
        for line in broken():
            print(f"eval: {line}", file=sys.stderr)
        status = 1 if broken() else 0
        if options.list:
            print(listing())
            return status
        quiet()
        report = run(options, (lambda *_: None) if options.json else _print_row)
    except (CheckpointError, ConfigError) as error:
        print(f"eval: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        # Writing to a file that is open names no file: stdout. ``replacing`` names its own.
        print(f"eval: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if options.output is None or not options.output.exists():
            raise
        print(f"eval: interrupted: --resume continues {options.output}", file=sys.stderr)
        return INTERRUPTED
    if options.json:
        json.dump(finite(report), sys.stdout, indent=1, allow_nan=False)
        print()
        return status
    for result in report["results"]:
        if result.get("failed"):
            print(f"eval: {result['method']}: {result['failed']}", file=sys.stderr)
    if options.tasks:
        print("\n" + _task_table(report["results"]))
    for result in report["results"]:
        for layer, each in result["bit_true"].items():
            print(
                f"{result['method']}, {layer}: fast path off by {each['relative']:.2e} "
                f"(Frobenius), {each['largest']:.2e} at most, {each['equal']:.1%} equal"
            )
    return status
