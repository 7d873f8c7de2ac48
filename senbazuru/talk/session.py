"""A run on disk: its tokens, and K and V of every pass, whole after each token.

A folder holds ``session.json``, replaced in one step, and ``cache.bin``, which grows. What
``cache.bin`` has after the bytes that ``session.json`` states is of a killed run, and is cut off.
``session.json`` has the SHA-256 of the bytes before. A run holds the folder's lock.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from golden.config import ConfigError
from golden.files import kept_json, replacing
from golden.kllm.isa import Unit, row_count
from golden.kllm.layer.layout import Job
from golden.kllm.model.layout import ModelLayout

_FORMAT = 2
_STATE, _CACHE = "session.json", "cache.bin"
_HEAD = struct.Struct("<III")  # tokens, layers, words of a layer


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


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a session's files: tokens of the tokenizer, layers, words of a layer's slots.

    words: of the slots of one token in one layer
    """

    vocabulary: int
    layers: int
    words: int

    @classmethod
    def of(cls, layout: ModelLayout) -> "Sizes":
        shape, layer = layout.shape, layout.shape.layer
        slot = 4 + 5 * row_count(layer.head_size)  # READ_SLOT: no outliers in K and V
        return cls(shape.vocabulary, shape.layers, 2 * layer.kv_heads * slot)


@dataclasses.dataclass
class Session:
    """made_for: what the tokens depend on: image, prompt, sampling, batch

    tokens : prompt and what was chosen; cached : of them, in the caches of all layers
    passes : figures of each pass
    """

    folder: Path
    made_for: dict[str, Any]
    tokens: list[int]
    sizes: Sizes
    cached: int = 0
    size: int = 0  # bytes of the cache file
    passes: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()  # of the cache file's bytes

    @classmethod
    def open(
        cls, folder: Path, made_for: dict[str, Any], prompt: list[int], sizes: Sizes
    ) -> "Session":
        """The run of ``folder`` if it was made for the same, or a new one.

        SessionError: its files are damaged.
        """
        made_for = json.loads(json.dumps(made_for))
        file = folder / _STATE
        if not file.exists():
            return cls(folder, made_for, list(prompt), sizes)
        kept = kept_json(file)
        fields = {"format": int, "made_for": dict, "tokens": list, "cached": int, "size": int,
                  "sha256": str, "passes": list}  # fmt: skip
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
        found = cls(folder, made_for, kept["tokens"], sizes)
        found.cached, found.size, found.passes = kept["cached"], kept["size"], kept["passes"]
        found._check_state(prompt)
        found._check_cache(kept["sha256"])
        return found

    def _check_state(self, prompt: list[int]) -> None:
        """SessionError: numbers of ``session.json`` that no run writes."""
        most = self.sizes.vocabulary - 1
        jobs = self._jobs()
        faults = {
            f"tokens must be 0..{most}": not all(_is_whole(each, most) for each in self.tokens),
            "tokens must begin with the prompt": self.tokens[: len(prompt)] != prompt,
            "passes must have figures": jobs is None,
            "passes must be as long as cached": sum(job.tokens for job in jobs or ())
            != self.cached,
            "tokens must be as many as cached": len(self.tokens)
            != max(len(prompt), self.cached + 1),
            "size must be that of all passes": self.size
            != sum(self._bytes(job) for job in jobs or ()),
        }
        for fault, is_so in faults.items():
            if is_so:
                file = self.folder / _STATE
                raise SessionError(f"{file} is damaged, {fault}: remove {self.folder}")

    def _check_cache(self, digest: str) -> None:
        """SessionError: the cache file is not what was written."""
        cache = self.folder / _CACHE
        data = self._cache()
        if len(data) < self.size:
            raise SessionError(
                f"{cache} must have {self.size} bytes, not {len(data)}: remove {self.folder}"
            )
        self._digest.update(data)
        jobs = [job for job, _ in self.slots()] if self._digest.hexdigest() == digest else None
        if jobs is None or jobs != self._jobs():
            raise SessionError(f"{cache} is damaged: remove {self.folder}")

    def _jobs(self) -> list[Job] | None:
        """The job of each pass; None: a pass has not the figures of one."""
        made: list[Job] = []
        context = 0
        for each in self.passes:
            if not _is_pass(each) or each["context"] != context:
                return None
            made.append(Job(each["tokens"], context))
            context += each["tokens"]
        return made

    def _bytes(self, job: Job) -> int:
        return _HEAD.size + 4 * self.sizes.layers * self.sizes.words * job.tokens

    def _cache(self) -> bytes:
        """The bytes that count."""
        if not self.size:
            return b""
        try:
            with (self.folder / _CACHE).open("rb") as file:
                return file.read(self.size)
        except FileNotFoundError:
            return b""

    def slots(self) -> Iterator[tuple[Job, np.ndarray]]:
        """Yields of each pass its job, and the slots (layers, words) that its parts read back.

        SessionError: a header of the file is not of these sizes.
        """
        data, at, context = self._cache(), 0, 0
        while at < self.size:
            head = data[at : at + _HEAD.size]
            tokens, layers, words = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0)
            wanted = self.sizes.layers, self.sizes.words * tokens
            at += _HEAD.size
            if not tokens or (layers, words) != wanted or at + 4 * layers * words > len(data):
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
        self._digest.update(made)
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
            "sha256": self._digest.hexdigest(),
            "passes": self.passes,
        }
        with replacing(self.folder / _STATE) as part:
            part.write_text(json.dumps(state))


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
