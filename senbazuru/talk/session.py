"""A run on disk: its tokens and the figures of its passes, whole after each token.

A folder holds ``session.json``, replaced in one step. K and V are in the accelerator's pages: a run
that goes on computes them again. A run holds the folder's lock.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from golden.config import ConfigError
from golden.files import kept_json, replacing
from golden.kllm.isa import Unit
from golden.kllm.layer.layout import Job

_FORMAT = 4
_STATE = "session.json"


class SessionError(ConfigError):
    """A run that cannot go on; one line says why, and nothing of it is changed."""


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Within it no other run uses ``folder``. SessionError: one does at this moment."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise SessionError(f"another run uses {folder}: wait until it ends") from None
    try:
        yield
    finally:
        lock.release()


@dataclasses.dataclass
class Session:
    """made_for: what the tokens depend on: image, prompt, sampling, batch

    tokens : prompt and what was chosen, each below ``vocabulary``
    passes : figures of each pass
    """

    folder: Path
    made_for: dict[str, Any]
    tokens: list[int]
    vocabulary: int
    passes: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @classmethod
    def open(
        cls, folder: Path, made_for: dict[str, Any], prompt: list[int], vocabulary: int
    ) -> "Session":
        """The run of ``folder`` if it was made for the same, or a new one.

        SessionError: its file is damaged.
        """
        made_for = json.loads(json.dumps(made_for))
        file = folder / _STATE
        if not file.exists():
            return cls(folder, made_for, list(prompt), vocabulary)
        kept = kept_json(file)
        fields = {"format": int, "made_for": dict, "tokens": list, "passes": list}
        is_whole = isinstance(kept, dict) and all(
            type(kept.get(name)) is kind for name, kind in fields.items()
        )
        if not is_whole or kept["format"] != _FORMAT:
            raise SessionError(f"{file} is damaged or of another version: remove {folder}")
        if kept["made_for"] != made_for:
            names = sorted(
                name
                for name in made_for.keys() | kept["made_for"].keys()
                if made_for.get(name) != kept["made_for"].get(name)
            )
            raise SessionError(f"{file} is of another {', '.join(names)}: remove {folder}")
        found = cls(folder, made_for, kept["tokens"], vocabulary, kept["passes"])
        found._check_state(prompt)
        return found

    @property
    def cached(self) -> int:
        """Tokens whose K and V the passes have made."""
        return sum(each["tokens"] for each in self.passes)

    def jobs(self) -> list[Job]:
        """The job of each pass."""
        return [Job(each["tokens"], each["context"]) for each in self.passes]

    def _check_state(self, prompt: list[int]) -> None:
        """SessionError: numbers of ``session.json`` that no run writes."""
        most = self.vocabulary - 1
        is_known = _are_passes(self.passes)
        faults = {
            f"tokens must be 0..{most}": not all(_is_whole(each, most) for each in self.tokens),
            "tokens must begin with the prompt": self.tokens[: len(prompt)] != prompt,
            "passes must have figures": not is_known,
            "tokens must be as many as cached": is_known
            and len(self.tokens) != max(len(prompt), self.cached + 1),
        }
        for fault, is_so in faults.items():
            if is_so:
                file = self.folder / _STATE
                raise SessionError(f"{file} is damaged, {fault}: remove {self.folder}")

    def add(self, token: int | None, figures: dict[str, Any]) -> None:
        """A pass has ended; the file is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.passes.append(figures)
        if token is not None and self.cached == len(self.tokens):
            self.tokens.append(token)
        state = {
            "format": _FORMAT,
            "made_for": self.made_for,
            "tokens": self.tokens,
            "passes": self.passes,
        }
        with replacing(self.folder / _STATE) as part:
            part.write_text(json.dumps(state))


def _are_passes(values: list[Any]) -> bool:
    """Whether each has the figures of a pass, and follows the one before."""
    context = 0
    for each in values:
        if not _is_pass(each) or each["context"] != context:
            return False
        context += each["tokens"]
    return True


def _is_whole(value: object, most: int | None = None, least: int = 0) -> bool:
    """Whether it is a whole number in ``least..most``."""
    return type(value) is int and value >= least and (most is None or value <= most)


def _is_pass(value: object) -> bool:
    """Whether it has the figures of a pass that tables are made of."""
    if not isinstance(value, dict):
        return False
    counts = all(_is_whole(value.get(name)) for name in ("context", "logits", "compared"))
    more = all(_is_whole(value.get(name), least=1) for name in ("tokens", "cycles", "ahead"))
    seconds, units = value.get("seconds"), value.get("units")
    return (
        counts
        and more
        and type(seconds) in (int, float)
        and 0 <= seconds < float("inf")
        and isinstance(units, dict)
        and all(_is_whole(units.get(unit.name)) for unit in Unit)
    )
