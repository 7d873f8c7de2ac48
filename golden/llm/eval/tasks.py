"""Tasks of lm-evaluation-harness on a patched model: choices and texts by their likelihoods.

The harness reads the data, words the requests and counts the answers. The checkpoint's model, as it
is patched at that moment, gives every log-likelihood. Requests run one at a time: a batch would be
padded, and a method that groups tokens would see the padding. Needs the ``tasks`` extra.
"""

import contextlib
import io
import logging
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.llm.checkpoint import Checkpoint, CheckpointError, class_and_reason
from golden.llm.eval.perplexity import NotFinite, first_not_finite

Run = Callable[[], list[dict[str, Any]]]

_REQUESTS = frozenset({"loglikelihood", "loglikelihood_rolling"})
_DRAWS = 1000  # of the bootstrap, for metrics whose standard error has no formula


def prepare(
    checkpoint: Checkpoint,
    names: list[str],
    folder: Path | None = None,
    limit: int | None = None,
    fewshot: int = 0,
) -> Run:
    """Reads the tasks; what comes back runs them on the checkpoint's model as it then is.

    It gives a row for every metric of every task and group: task, metric, value, stderr (None
    where the harness has none), examples, fewshot. Call it on the unpatched model. names: of the
    harness's tasks, groups and tags, or of those in ``folder``'s YAML files, which come first.
    limit: the first examples of each task, all if None. fewshot: solved examples before each
    question, save where the task's file says 0. ConfigError or CheckpointError in one line. From
    here on this process asks the network nothing: data are read from here or not at all.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"task limit must be at least 1, not {limit}")
    if fewshot < 0:
        raise ConfigError(f"fewshot must be at least 0, not {fewshot}")
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"there is no folder {folder} of tasks")
    _offline()
    try:
        from lm_eval.evaluator import evaluate
        from lm_eval.models import huggingface  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"tasks need {(error.name or 'lm_eval').partition('.')[0]}: "
            "pip install 'senbazuru[tasks]'"
        ) from None
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    model = _model(checkpoint)
    with _quiet():
        loaded = _load(names, folder)
        for name, task in loaded["tasks"].items():
            _build(name, task, limit, fewshot)

    def run() -> list[dict[str, Any]]:
        _seed(loaded["tasks"].values())
        try:
            with _quiet():
                found = evaluate(
                    lm=model, task_dict=loaded, limit=limit, bootstrap_iters=_DRAWS,
                    log_samples=False,
                )  # fmt: skip
        except (CheckpointError, ConfigError):
            raise
        except Exception as error:  # tasks bring code of their own, run in the midst of it
            raise ConfigError(f"the tasks cannot be run: {class_and_reason(error)}") from error
        return _rows(found)

    return run


def _offline() -> None:
    """The hub is asked nothing, by the libraries that are loaded and by those that will be."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"):
        os.environ[name] = "1"
    # The bootstrap by itself: forked copies of this process would each hold the model.
    os.environ["DISABLE_MULTIPROC"] = "1"
    for module in ("huggingface_hub.constants", "datasets.config"):
        if module in sys.modules:
            sys.modules[module].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of the harness on stdout, its bars on stderr where that is a terminal."""
    sink = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        yield


def _model(checkpoint: Checkpoint) -> Any:
    """The checkpoint as the harness sees a model; CheckpointError: a text has no beginning.

    Made of the unpatched model: the harness ties the head to the embedding again.
    """
    from lm_eval.models.huggingface import HFLM

    tokenizer = checkpoint.tokenizer
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise CheckpointError(
            f"the tokenizer of {checkpoint.name} has no token of a text's beginning or end: "
            "tasks need one"
        )

    class Model(HFLM):
        """The model without a KV cache, and with no mask but the causal one."""

        def _model_call(
            self, inps: Tensor, attn_mask: Tensor | None = None, labels: Tensor | None = None
        ) -> Tensor:
            with torch.no_grad():
                logits: Tensor = self.model(inps, use_cache=False).logits
            if not bool(torch.isfinite(logits).all()):
                where = first_not_finite(self.model, inps)
                raise NotFinite(f"NaN or infinity in {where or 'the logits'}")
            return logits

    return Model(pretrained=checkpoint.model, tokenizer=tokenizer, batch_size=1)


def _load(names: list[str], folder: Path | None) -> dict[str, Any]:
    """{"tasks", "groups"} by name, with their data; ConfigError names a missing one."""
    from datasets import disable_progress_bars
    from lm_eval.tasks import TaskManager

    disable_progress_bars()
    manager = TaskManager(include_path=folder, include_defaults=False)
    # The harness's own files are thousands, many seconds: read only where a name needs them.
    if not set(manager.all_subtasks).issuperset(names):
        manager = TaskManager(include_path=folder)
    found: dict[str, Any] = {"tasks": {}, "groups": {}}
    for name in names:
        if name not in manager.task_index:
            place = f" or in {folder}" if folder else ""
            raise ConfigError(f"there is no task {name!r} in lm-evaluation-harness{place}")
        try:
            loaded = manager.load([name])
        except OSError as error:
            raise ConfigError(
                f"the data of task {name} are not on this machine: {class_and_reason(error)}"
            ) from None
        except Exception as error:  # a task's file and its code can fail in any way
            raise ConfigError(f"task {name} cannot be read: {class_and_reason(error)}") from None
        for kind, each in found.items():
            each.update(loaded.get(kind, {}))
    return found


def _build(name: str, task: Any, limit: int | None, fewshot: int) -> None:
    """Builds a task's requests once, before anything is measured; ConfigError: it has others."""
    try:
        if task.get_config("num_fewshot") != 0:
            task.set_config("num_fewshot", fewshot)
        _seed([task])
        task.build_all_requests(limit=limit)
    except Exception as error:  # as above
        raise ConfigError(f"task {name} cannot be built: {class_and_reason(error)}") from None
    for kind in sorted({each.request_type for each in task.instances} - _REQUESTS):
        raise ConfigError(
            f"task {name} asks for {kind}: only likelihoods are measured, no text is generated"
        )


def _seed(tasks: Iterable[Any]) -> None:
    """The harness's own seeds: every method sees the same examples in the same order."""
    from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED

    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    for task in tasks:
        task.set_fewshot_seed(DEFAULT_OTHER_SEED)


def _rows(found: Any) -> list[dict[str, Any]]:
    """Makes rows of results by task. Keys "acc,none" and "acc_stderr,none": metric and filter."""
    rows = []
    for task, metrics in found["results"].items():
        for key, value in metrics.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            error = metrics.get(f"{metric}_stderr,{filtered}", "N/A")
            rows.append(
                {
                    "task": task,
                    "metric": metric if filtered == "none" else f"{metric} ({filtered})",
                    "value": float(value),
                    "stderr": None if error == "N/A" else float(error),
                    "examples": int(metrics["sample_len"]),
                    "fewshot": int(found["n-shot"].get(task, 0)),
                }
            )
    return rows
