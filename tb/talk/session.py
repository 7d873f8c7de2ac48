"""A run on disk: its tokens, and K and V of every pass, whole after each token.

A folder holds ``session.json``, replaced in one step, and ``cache.bin``, which grows. What
``cache.bin`` has after the bytes that ``session.json`` states is of a killed run, and is cut off.
"""

import dataclasses
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from golden.config import ConfigError
from golden.files import kept_json, replacing
from golden.kllm.layer.layout import Job

__all__ = ["Session", "SessionError"]

_FORMAT = 1
_STATE, _CACHE = "session.json", "cache.bin"
_HEAD = struct.Struct("<III")  # tokens, layers, words of a layer


class SessionError(ConfigError):
    """A run that cannot go on; one line says why, and nothing of it is changed."""


@dataclasses.dataclass
class Session:
    """made_for: what the tokens depend on: image, prompt, sampling, batch

    tokens : prompt and what was chosen; cached : of them, in the caches of all layers
    passes : figures of each pass
    """

    folder: Path
    made_for: dict[str, Any]
    tokens: list[int]
    cached: int = 0
    size: int = 0  # bytes of the cache file
    passes: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, made_for: dict[str, Any], prompt: list[int]) -> "Session":
        """The run of ``folder`` if it was made for the same, or a new one.

        SessionError: its files are damaged.
        """
        made_for = json.loads(json.dumps(made_for))
        file = folder / _STATE
        if not file.exists():
            return cls(folder, made_for, list(prompt))
        kept = kept_json(file)
        fields = {"format": int, "made_for": dict, "tokens": list, "cached": int, "size": int,
                  "passes": list}  # fmt: skip
        is_whole = isinstance(kept, dict) and all(
            isinstance(kept.get(name), kind) for name, kind in fields.items()
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
        found = cls(folder, made_for, kept["tokens"], kept["cached"], kept["size"], kept["passes"])
        found._check(prompt)
        return found

    def _check(self, prompt: list[int]) -> None:
        cache = self.folder / _CACHE
        have = cache.stat().st_size if cache.exists() else 0
        if have < self.size or self.tokens[: len(prompt)] != prompt:
            raise SessionError(
                f"{cache} must have {self.size} bytes, not {have}: remove {self.folder}"
            )
        if sum(job.tokens for job, _ in self.slots()) != self.cached:
            raise SessionError(f"{cache} is damaged: remove {self.folder}")

    def slots(self) -> Iterator[tuple[Job, np.ndarray]]:
        """Of each pass its job, and the slots (layers, words) that its parts read back."""
        if not self.size:
            return
        data = (self.folder / _CACHE).read_bytes()[: self.size]
        at = context = 0
        while at < self.size:
            if at + _HEAD.size > self.size:
                raise SessionError(f"{self.folder / _CACHE} is damaged: remove {self.folder}")
            tokens, layers, words = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            if not tokens or at + 4 * layers * words > self.size:
                raise SessionError(f"{self.folder / _CACHE} is damaged: remove {self.folder}")
            found = np.frombuffer(data, "<u4", layers * words, at).reshape(layers, words)
            yield Job(tokens, context), found
            at += 4 * layers * words
            context += tokens

    def add(
        self, job: Job, slots: list[np.ndarray], token: int | None, figures: dict[str, Any]
    ) -> None:
        """A pass has ended: first its slots are on disk, then what says that they are."""
        self.folder.mkdir(parents=True, exist_ok=True)
        words = np.stack([np.asarray(each, dtype="<u4") for each in slots])
        made = _HEAD.pack(job.tokens, *words.shape) + words.tobytes()
        with (self.folder / _CACHE).open("r+b" if self.size else "wb") as file:
            file.seek(self.size)
            file.truncate()
            file.write(made)
            file.flush()
            os.fsync(file.fileno())
        self.size += len(made)
        self.cached += job.tokens
        if token is not None and self.cached == len(self.tokens):
            self.tokens.append(token)
        self.passes.append(figures)
        self._save()

    def _save(self) -> None:
        state = {
            "format": _FORMAT,
            "made_for": self.made_for,
            "tokens": self.tokens,
            "cached": self.cached,
            "size": self.size,
            "passes": self.passes,
        }
        with replacing(self.folder / _STATE) as part:
            part.write_text(json.dumps(state))
