"""Measured points on disk. Runs that work at the same time share them, and a stopped run goes on.

A file has the points of one model and of one state of the sources: a line of JSON for each point.
The chips of a grid have a line each too. Lines are only ever added, one process at a time. A line
that a stopped run has not finished counts as none.
"""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from golden.config import ConfigError
from golden.files import in_turn
from sim.explore.figures import Record
from sim.explore.grid import Point, stated
from sim.model import find_model

_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = (".py", ".json", ".csv")
# Of this folder: no other file of it changes a point.
_MINE = ("build.py", "figures.py", "grid.py", "measure.py", "provenance.py")


@functools.cache
def sources() -> str:
    """A hash of all that determines a point besides its chip and its model."""
    found, mine = hashlib.sha256(), str(Path(__file__).parent)
    for package in ("golden", "sim"):
        for folder, folders, files in os.walk(_ROOT / package):
            folders.sort()
            for name in sorted(files):
                if name.endswith(_SOURCES) and (folder != mine or name in _MINE):
                    path = Path(folder, name)
                    found.update(str(path.relative_to(_ROOT)).encode())
                    found.update(path.read_bytes())
    return found.hexdigest()


class Kept:
    """The points of a model in ``folder``. ConfigError: no such model."""

    def __init__(self, folder: Path, model: str):
        self.model = model
        determined = f"{sources()} {find_model(model)}"
        self.file = folder / f"{hashlib.sha256(determined.encode()).hexdigest()[:16]}.jsonl"
        self._read = 0  # bytes
        self._records: dict[str, Record] = {}

    @staticmethod
    def key(what: Point | str) -> str:
        """A text that names a point, or a chip, and what the chip's file states."""
        if isinstance(what, str):
            return json.dumps([what, stated(what)])
        setup = what.setup
        changed = [setup.lanes, setup.ports, setup.bandwidth]
        sizes = [what.batch, what.context, what.out]
        return json.dumps([setup.hw, stated(setup.hw), *changed, *sizes])

    def read(self) -> None:
        """Takes the lines that have been added since the last call, by any process."""
        with contextlib.suppress(FileNotFoundError), self.file.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(end)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError, TypeError):
                    key, record = json.loads(line)
                    self._records[key] = dict(record)

    def get(self, what: Point | str) -> Record | None:
        """The record of a point or a chip that has been read or added; None: there is none."""
        return self._records.get(self.key(what))

    def add(self, some: Iterable[tuple[Point | str, Record]]) -> None:
        """Adds records. What a defect has refused is tried again by the next run, so not written.

        ConfigError: the file cannot be written.
        """
        lines = []
        for what, record in some:
            key = self.key(what)
            self._records[key] = record
            if not record.get("failed"):
                lines.append(json.dumps([key, record]).encode() + b"\n")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with in_turn(self.file), self.file.open("ab+") as file:
                if file.tell():
                    file.seek(-1, 2)
                    if file.read(1) != b"\n":
                        file.write(b"\n")  # a stopped run has left a line without its end
                file.write(b"".join(lines))
        except OSError as error:
            raise ConfigError(f"{self.file}: {error.strerror}") from None
