"""``python -m golden.eval --model M --text FILE --method NAME ...``: perplexity of methods.

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
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden import text as own_text
from golden.checkpoint import Checkpoint, CheckpointError, load, read_text, reason, windows
from golden.config import ConfigError
from golden.eval.arguments import arguments
from golden.eval.calibration import CalibrationData
from golden.eval.evaluate import Settings, batch_size, evaluate, reset_peak_memory
from golden.eval.method import Method, Site, State
from golden.eval.methods import discover, parse_all
from golden.eval.perplexity import check_finite
from golden.eval.state import calibrate, load_header, load_states
from golden.eval.tasks import prepare

__all__ = [
    "ARCHITECTURES",
    "calibration_windows",
    "check_seed",
    "choose_device",
    "in_one_line",
    "longest",
    "main",
]

# Model types of transformers whose modules have the names and the order of LLaMA's.
ARCHITECTURES = frozenset({"llama"})
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


def _table(rows: list[dict[str, Any]]) -> str:
    head = ("method", "perplexity", "bits W / A / KV", "calibrated", "installed", "run", "memory")
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for row in rows:
        bits = " / ".join(f"{row['bits'][kind]:.3g}" for kind in ("weights", "activations", "kv"))
        seconds = (row[f"{each}seconds"] for each in ("calibration_", "install_", ""))
        cells = [row["method"], f"{row['perplexity']:.3f}", bits]
        cells += [f"{each:.1f} s" for each in seconds]
        lines.append(" | ".join([*cells, f"{row['memory_bytes'] / 2**30:.2f} GiB"]))
    return "\n".join(f"| {line} |" for line in lines)


def _task_table(results: list[dict[str, Any]]) -> str:
    head = ("method", "task", "metric", "value", "standard error", "examples", "few-shot")
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for result in results:
        for row in result["tasks"]:
            error = "" if row["stderr"] is None else f"{row['stderr']:.4g}"
            cells = [result["method"], row["task"], row["metric"], f"{row['value']:.4g}", error]
            lines.append(" | ".join([*cells, str(row["examples"]), str(row["fewshot"])]))
    return "\n".join(f"| {line} |" for line in lines)


def longest(checkpoint: Checkpoint) -> int:
    """Positions that the model was made for."""
    return int(checkpoint.model.config.max_position_embeddings)


def check_seed(seed: int) -> None:
    if not 0 <= seed <= _SEED_MAX:
        raise ConfigError(f"seed must be 0..{_SEED_MAX}, not {seed}")


@contextlib.contextmanager
def in_one_line(name: str) -> Iterator[None]:
    """What fails in a method is a CheckpointError of one line that names the method."""
    try:
        yield
    except (CheckpointError, ConfigError):
        raise
    except (ArithmeticError, IndexError, KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{name}: {reason(error)}") from None


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
    text = own_text.EVALUATION if text is None else text
    limit = longest(checkpoint)
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


def calibration_windows(
    checkpoint: Checkpoint, text: str | None, count: int, tokens: int, skip: int = 0
) -> list[Tensor]:
    """``golden.checkpoint.windows`` of a length that the model takes; ConfigError otherwise."""
    limit = longest(checkpoint)
    if not 2 <= tokens <= limit:
        raise ConfigError(f"calibration tokens must be 2..{limit} for this model, not {tokens}")
    return windows(checkpoint, text, count, tokens, skip)


@dataclasses.dataclass(frozen=True)
class _Learned:
    """state: of a calibrated method; origin: how it was made, for the report."""

    state: State
    origin: dict[str, Any]


def _from_files(
    paths: Iterable[Path], checkpoint: Checkpoint, methods: list[Method], content: str, used: int
) -> dict[int, _Learned]:
    """What calibration files hold for methods, by place; ``used`` tokens of content are evaluated.

    CheckpointError or ConfigError: a file has learned from these tokens, or two serve a method.
    """
    found: dict[int, _Learned] = {}
    for path in paths:
        header = load_header(path)
        states = load_states(path, checkpoint, methods)
        if header["text_sha256"] == _sha256(content) and header["skip"] < used:
            raise CheckpointError(
                f"{path} was calibrated on text that is evaluated: make it with "
                f"golden.calibrate --skip {used}"
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


def _calibrated_now(
    options: argparse.Namespace,
    checkpoint: Checkpoint,
    methods: list[Method],
    content: str,
    used: int,
) -> list[_Learned]:
    """Learn after the ``used`` evaluated tokens of content, where the text is the same."""
    path = options.calibration_text
    text = read_text(path)
    origin = {
        "text": path.name if path else "golden.text.CALIBRATION",
        "windows": options.calibration_windows,
        "tokens": options.calibration_tokens,
        "skip": used if text == content else 0,
        "seed": options.seed,
    }
    parts = calibration_windows(
        checkpoint, text, origin["windows"], origin["tokens"], origin["skip"]
    )
    data = CalibrationData(checkpoint.model, parts, options.seed)
    return [_Learned(state, origin) for state in calibrate(methods, data)]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything as plain values; CheckpointError or ConfigError in one line."""
    combinations = {name: parse_all(name) for name in options.method}
    if options.batch is not None and options.batch < 1:
        raise ConfigError(f"batch must be at least 1, not {options.batch}")
    check_seed(options.seed)
    device = choose_device(options.device)
    text = read_text(options.text)
    content = own_text.EVALUATION if text is None else text
    checkpoint = load(options.model, ARCHITECTURES, device)
    check_finite(checkpoint.model)
    sequences = evaluation_windows(checkpoint, text, options.seq, options.tokens)
    seq = len(sequences[0])
    used = len(sequences) * seq
    batch = batch_size(checkpoint, seq, options.batch)
    report: dict[str, Any] = {
        "model": checkpoint.name,
        "text": options.text.name if options.text else "golden.text.EVALUATION",
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
    first = 0  # of this combination among everyone
    for name, methods in combinations.items():
        reset_peak_memory(device)
        own = {i: found[first + i] for i in range(len(methods)) if first + i in found}
        first += len(methods)
        missing = [i for i, each in enumerate(methods) if each.calibrated and i not in own]
        seconds = 0.0
        with in_one_line(name):
            if missing:
                start = time.monotonic()
                todo = [methods[i] for i in missing]
                learned = _calibrated_now(options, checkpoint, todo, content, used)
                own |= dict(zip(missing, learned, strict=True))
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
        report["results"].append({**dataclasses.asdict(result), **more})
    return report


def _finite(value: Any) -> Any:
    """Infinity and NaN, which JSON has not, as None, at any depth."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
    """The command line; 0, or 2 after one line on stderr."""
    options = arguments().parse_args(argv)
    if options.list:
        print(listing())
        return 0
    quiet()
    try:
        report = run(options)
    except (CheckpointError, ConfigError) as error:
        print(f"eval: {error}", file=sys.stderr)
        return 2
    if options.json:
        json.dump(_finite(report), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        head = ("model", "text", "seq", "tokens", "device", "threads", "batch")
        print(", ".join(f"{key} {report[key]}" for key in head) + "\n")
        print(_table(report["results"]))
        if options.tasks:
            print("\n" + _task_table(report["results"]))
        for result in report["results"]:
            for layer, each in result["bit_true"].items():
                print(
                    f"{result['method']}, {layer}: fast path off by {each['relative']:.2e} "
                    f"(Frobenius), {each['largest']:.2e} at most, {each['equal']:.1%} equal"
                )
    return 0
