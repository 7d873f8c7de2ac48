"""Runs rows of the tables, each once: a finished row is a JSON file named by all that shapes it."""

import ast
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.files import replacing
from golden.llm.checkpoint import Checkpoint, CheckpointError, class_and_reason, reason
from golden.llm.eval.calibration import CalibrationData, Steps, fingerprint
from golden.llm.eval.evaluate import Settings, batch_size, evaluate, reset_peak_memory
from golden.llm.eval.method import Method, State
from golden.llm.methods import parse_all

_KEPT = 4  # calibrated states that are held for the next rows


@dataclasses.dataclass(frozen=True)
class Row:
    """One run: a text by its name, a combination of methods as spelt, the calibration's seed."""

    text: str
    method: str
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Record:
    """The outcome of a row.

    failed: the reason in one line, and then nothing else holds. bits: per element of weights,
    activations, kv. calibration_seconds: steps that earlier rows did are not in it. state: SHA-256
    of the calibrated tensors; same_seed: that gave the same ones, so that the run was not repeated.
    threads: of the CPU, 0 on a GPU. window_losses: mean loss of each window, nats.
    """

    perplexity: float = 0.0
    predictions: int = 0
    bits: dict[str, float] = dataclasses.field(default_factory=dict)
    calibration_seconds: float = 0.0
    install_seconds: float = 0.0
    seconds: float = 0.0
    memory_bytes: int = 0
    state: str = ""
    same_seed: int | None = None
    threads: int = 0
    window_losses: list[float] = dataclasses.field(default_factory=list)
    failed: str = ""


def digest(value: Any) -> str:
    """SHA-256, 64 hex digits: of a state's tensors by name, of id windows, or of a JSON value."""
    found = hashlib.sha256()
    named: dict[str, Tensor] = {}
    if isinstance(value, dict) and value and all(isinstance(v, Tensor) for v in value.values()):
        named = value
    elif isinstance(value, list) and value and all(isinstance(v, Tensor) for v in value):
        named = {str(i): each for i, each in enumerate(value)}
    else:
        found.update(json.dumps(value, sort_keys=True).encode())
    for name in sorted(named):
        each = named[name].detach().cpu().contiguous()
        found.update(f"{name} {tuple(each.shape)} {each.dtype}\n".encode())
        found.update(each.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _source(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec and spec.origin else None


@functools.cache
def _code(path: Path) -> tuple[str, frozenset[str]]:
    """(SHA-256 of a source without comments and docstrings, modules of golden it may import).

    Read once: a source that is edited while rows run is not the code that runs.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                body[0].value.value = ""
    own = frozenset(name for name in imported if name.split(".")[0] == "golden")
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), own


def code_version(modules: Iterable[str]) -> str:
    """SHA-256 over the code of modules and of all of golden that they import, at any depth.

    Comments, docstrings and layout do not count.
    """
    seen: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        try:
            path = _source(module)
        except ModuleNotFoundError:  # a name in a module, not a module
            path = None
        if path is None:
            seen[module] = ""
            continue
        seen[module], imported = _code(path)
        waiting += imported
    return digest(sorted((name, code) for name, code in seen.items() if code))


class Bench:
    """One checkpoint, its texts, and the folder of finished rows.

    texts: windows (T,) of token ids by name
    calibration: windows that all methods learn from
    folder: a file per row, and in ``calibration`` the steps of unfinished calibrations
    exact: linear layers and attention modules that run the exact arithmetic of the hardware
    many: windows of methods that had better have thousands of tokens; ``calibration`` if none

    The model stays loaded. Rows in the order of their methods calibrate once for all texts.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        texts: dict[str, list[Tensor]],
        calibration: list[Tensor],
        folder: Path,
        batch: int | None = None,
        exact: Iterable[str] = (),
        many: list[Tensor] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.texts = texts
        self.calibration = calibration
        self.folder = folder
        self.exact = sorted(exact)
        self.fingerprint = fingerprint(checkpoint.model)
        self.device = next(checkpoint.model.parameters()).device
        self._batch = batch
        self._texts = {name: digest(windows) for name, windows in texts.items()}
        self.many = calibration if many is None else many
        self._digests = {id(each): digest(each) for each in (calibration, self.many)}
        self._states: dict[str, tuple[list[State], str]] = {}

    # ---- what a row depends on

    def key(self, row: Row) -> dict[str, Any]:
        """All that shapes a row; an unknown method is represented by its spelling."""
        found = {
            "model": self.fingerprint,
            "text": self._texts[row.text],
            "seq": len(self.texts[row.text][0]),
            "tokens": sum(map(len, self.texts[row.text])),
            "seed": row.seed,
            "device": self.device.type,
            "torch": torch.__version__,
            "transformers": importlib.metadata.version("transformers"),
        }
        try:
            methods = parse_all(row.method)
        except ConfigError:
            return {**found, "methods": row.method}
        found["methods"] = [[type(each).__name__, each.describe()] for each in methods]
        found["code"] = self._code_version(methods)
        if any(each.calibrated for each in methods):
            found["calibration"] = self._digests[id(self._windows(methods))]
        if self.exact:
            found["exact"] = self.exact
        return found

    def _windows(self, methods: list[Method]) -> list[Tensor]:
        """Returns the windows that these methods learn from."""
        return self.many if any(each.calibration_tokens for each in methods) else self.calibration

    @staticmethod
    def _code_version(methods: list[Method]) -> str:
        return code_version(
            [*(type(each).__module__ for each in methods), "golden.llm.eval.evaluate"]
        )

    def file(self, row: Row) -> Path:
        return self.folder / f"{digest(self.key(row))[:32]}.json"

    def stored(self, row: Row) -> Record | None:
        """Reads what an earlier run wrote, failures included; None: nothing that can be read."""
        try:
            content = json.loads(self.file(row).read_text())
            return Record(**content["record"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def done(self, row: Row) -> bool:
        record = self.stored(row)
        return record is not None and not record.failed

    # ---- running

    def run(self, row: Row, seeds: Iterable[int] = ()) -> Record:
        """The record of a row: stored, or made now and stored. A failure is a record, too.

        seeds: where a calibration has the tensors of one of these seeds, so has the row.
        """
        stored = self.stored(row)
        if stored is not None and not stored.failed:
            return stored
        try:
            record = self._run(row, seeds)
        except Exception as error:  # whatever a method does, the other rows go on
            known = isinstance(error, ConfigError | RuntimeError)
            record = Record(failed=reason(error) if known else class_and_reason(error))
        self.store(row, record)
        return record

    def store(self, row: Row, record: Record) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {
            "row": dataclasses.asdict(row),
            "key": self.key(row),
            "record": dataclasses.asdict(record),
        }
        with replacing(self.file(row)) as part:
            part.write_text(json.dumps(content, indent=1) + "\n")

    def _run(self, row: Row, seeds: Iterable[int]) -> Record:
        methods = parse_all(row.method)
        windows = self.texts[row.text]
        reset_peak_memory(self.device)
        start = time.monotonic()
        states, state = self._calibrated(methods, row.seed)
        seconds = time.monotonic() - start if state else 0.0
        for seed in seeds:
            other = self.stored(dataclasses.replace(row, seed=seed)) if seed != row.seed else None
            if state and other is not None and not other.failed and other.state == state:
                same = seed if other.same_seed is None else other.same_seed
                return dataclasses.replace(other, calibration_seconds=seconds, same_seed=same)
        batch = batch_size(self.checkpoint, len(windows[0]), self._batch)
        result = evaluate(
            self.checkpoint, row.method, methods, windows, states, Settings(batch, self.exact)
        )
        if result.failed:
            raise CheckpointError(result.failed)
        return Record(
            perplexity=result.perplexity,
            predictions=result.tokens,
            bits=result.bits,
            calibration_seconds=seconds,
            install_seconds=result.install_seconds,
            seconds=result.seconds,
            memory_bytes=result.memory_bytes,
            state=state,
            threads=torch.get_num_threads() if self.device.type == "cpu" else 0,
            window_losses=result.window_losses,
        )

    def _calibrated(self, methods: list[Method], seed: int) -> tuple[list[State], str]:
        """States and their digest, "" where no method is calibrated."""
        if not any(each.calibrated for each in methods):
            return [{} for _ in methods], ""
        key = digest([seed, [[type(each).__name__, each.calibration_fields()] for each in methods]])
        if key not in self._states:
            data = CalibrationData(
                self.checkpoint.model, self._windows(methods), seed, self._steps(methods, seed)
            )
            states = [each.calibrate(data) if each.calibrated else {} for each in methods]
            named = {
                f"{i}.{name}": v for i, state in enumerate(states) for name, v in state.items()
            }
            while len(self._states) >= _KEPT:
                del self._states[next(iter(self._states))]
            self._states[key] = states, digest(named)
        return self._states[key]

    def _steps(self, methods: list[Method], seed: int) -> Steps:
        """Steps that methods of the same code share, on the same windows with the same seed."""
        header = {
            "model": self.fingerprint,
            "calibration": self._digests[id(self._windows(methods))],
            "seed": seed,
            "code": self._code_version(methods),
            "torch": torch.__version__,
            "device": self.device.type,
        }
        steps = Steps(self.folder / "calibration" / digest(header)[:32])
        steps.check(header)
        return steps
