"""Points of a sweep: combinations of chips, models, sizes and fields, and the row of each."""

import contextlib
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from golden.config import ConfigError
from sim.engine import Engine, engine_of, shown_error
from sim.hardware import fields_of
from sim.model import find_model
from sim.run import Run

_LISTS = ("hw", "model", "batch", "prompt", "out")
_SIZES = {"batch": [1], "prompt": [128], "out": [128]}
Point = dict[str, Any]


def points(file: Path) -> list[Point]:
    """All combinations; the last field of ``set`` changes fastest. ConfigError: a bad file."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: must be an object of lists")
    if unknown := sorted(set(found) - {*_LISTS, "set"}):
        raise ConfigError(f"{file}: unknown fields {', '.join(unknown)}")
    lists: dict[str, Any] = {name: found.get(name, _SIZES.get(name)) for name in _LISTS}
    changes = found.get("set", {})
    if not isinstance(changes, dict):
        raise ConfigError(f"{file}: set must be an object of lists")
    for name, values in {**lists, **changes}.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{file}: {name} must be a list that is not empty, not {values!r}")
    for name in ("hw", "model"):
        for value in lists[name]:
            if not isinstance(value, str):
                raise ConfigError(f"{file}: {name} must be texts, not {value!r}")
    for name in ("batch", "prompt", "out"):
        for value in lists[name]:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{file}: {name} must be 1 or more, not {value!r}")
    made = []
    for values in itertools.product(*lists.values(), *changes.values()):
        point: Point = dict(zip(lists, values, strict=False))
        point["set"] = dict(zip(changes, values[len(lists) :], strict=True))
        made.append(point)
    return made


_model = functools.lru_cache(64)(find_model)


def _files(hardware: str, depth: int = 2) -> Iterator[str]:
    """A file of hardware gives what it states; so do those of its parts, which are chips too."""
    with contextlib.suppress(ConfigError):
        fields = fields_of(hardware)[1]
        yield json.dumps(fields, sort_keys=True)
        if fields["engine"] == "pair" and depth:
            for part in fields["settings"].values():
                if isinstance(part, str):
                    yield from _files(part, depth - 1)


@functools.lru_cache(64)
def _stated(hardware: str, model: str) -> str:
    """A hash of what the files of both state; what cannot be read states nothing."""
    found = [*_files(hardware)]
    with contextlib.suppress(ConfigError):
        found.append(str(_model(model)))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def chip(point: Point) -> str:
    """A hash of the point's files of hardware and model: rows of a changed file are refused."""
    return _stated(point["hw"], point["model"])


@functools.lru_cache(64)
def _engine(hardware: str, changes: str) -> Engine:
    """Points that follow each other share a chip, and what it has computed."""
    return engine_of(hardware, json.loads(changes))


def point_row(point: Point) -> dict[str, Any]:
    """The point's fields, and ``Run.summary`` or ``refused``."""
    sizes = {name: point[name] for name in ("batch", "prompt", "out")}
    row: dict[str, Any] = {"hw": point["hw"], "model": point["model"], **sizes, **point["set"]}
    try:
        engine = _engine(point["hw"], json.dumps(point["set"], sort_keys=True))
        made = Run(engine, _model(point["model"]), **sizes).compute()
    except (ConfigError, ArithmeticError) as error:
        return row | {"refused": shown_error(error)}
    except Exception as error:  # one point never costs the others their rows
        return row | {"refused": f"{type(error).__name__}: {error}", "failed": True}
    summary = made.summary()
    for name in ("not_scaled", "extrapolated"):
        summary[name] = "; ".join(summary[name])
    return row | {name: value for name, value in summary.items() if name not in row}


def point_rows(some: Sequence[Point]) -> list[dict[str, Any]]:
    """Makes the row of each point, in order."""
    return [point_row(each) for each in some]
