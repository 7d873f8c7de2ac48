"""The points of an exploration: all combinations of lists, as far as a chip has what they vary."""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden.config import ConfigError
from sim.constant import UNITS
from sim.hardware import fields_of, known

OWN = "own"  # in a list: what the chip's file states
_MOST = {"batch": 1 << 20, "context": 1 << 20, "out": 1 << 20, "lanes": 64, "ports": 64}
_BANDWIDTH_MOST = 100_000.0  # GB/s


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """A chip and what is changed of it; None is what its file states.

    lanes, ports : of KLLM's machine, and of no other chip
    bandwidth : GB/s of all channels together, at peak; a GPU keeps its own
    """

    hw: str
    lanes: int | None = None
    ports: int | None = None
    bandwidth: float | None = None

    def changes(self) -> dict[str, Any]:
        """The places of the chip's file with other values. ConfigError: no such chip."""
        fields, made = _fields(self.hw), {}
        texts = {"lane.lanes": self.lanes, "ports.ports": self.ports}
        given = {name: value for name, value in texts.items() if value is not None}
        if given:
            before = fields.get("settings", {}).get("set", [])
            kept = [each for each in before if each.partition("=")[0] not in given]
            made["settings.set"] = [*kept, *(f"{name}={value}" for name, value in given.items())]
        if self.bandwidth is not None:
            memory = fields["memory"]
            scale = UNITS[memory["bandwidth"]["unit"]] * memory.get("channels", 1)
            value = self.bandwidth * 1e9 / scale
            made["memory.bandwidth.value"] = value
            for end in {"low", "high"} & memory["bandwidth"].keys():
                made[f"memory.bandwidth.{end}"] = value
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A setup, and ``batch`` sequences that bring ``context`` tokens and get ``out`` more."""

    setup: Setup
    batch: int
    context: int
    out: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """Lists whose combinations are the points; None is ``own``. ConfigError: a bad list."""

    hw: tuple[str, ...] = ()
    batch: tuple[int, ...] = (1, 16)
    context: tuple[int, ...] = (1024, 8192, 32000)
    out: tuple[int, ...] = (128,)
    lanes: tuple[int | None, ...] = (None, 4, 64)
    ports: tuple[int | None, ...] = (None, 8)
    bandwidth: tuple[float | None, ...] = (None, 2.0, 64.0)

    def __post_init__(self) -> None:
        if not self.hw:
            object.__setattr__(self, "hw", tuple(known()))
        for field in dataclasses.fields(self):
            values = getattr(self, field.name)
            if len(set(values)) < len(values):
                twice = next(each for each in values if values.count(each) > 1)
                raise ConfigError(f"{field.name} must name each value once, not {twice!r} twice")
        if len(self.out) > 1:
            raise ConfigError(f"out must be one number, not {list(self.out)}")
        for name in self.hw:
            if not isinstance(_fields(name)["engine"], str):
                raise ConfigError(f"{name}: engine must be a text")

    def setups(self) -> list[Setup]:
        """Each chip with all that can be changed of it, chip by chip."""
        made: dict[Setup, None] = {}
        for name in self.hw:
            engine = _fields(name)["engine"]
            for lanes, ports, bandwidth in itertools.product(
                self.lanes, self.ports, self.bandwidth
            ):
                has_lanes = engine == "kllm"
                setup = Setup(
                    hw=name,
                    lanes=lanes if has_lanes else None,
                    ports=ports if has_lanes else None,
                    bandwidth=None if engine == "gpu" else bandwidth,
                )
                made[setup] = None
        return list(made)

    def points(self) -> list[Point]:
        """All points; those of a setup follow each other."""
        return [
            Point(setup=setup, batch=batch, context=context, out=self.out[0])
            for setup in self.setups()
            for batch, context in itertools.product(self.batch, self.context)
        ]


@functools.lru_cache(256)
def stated(name: str) -> str:
    """A hash of what the file of a chip states; of a pair, also what those of its parts state."""
    fields = _fields(name)
    found = json.dumps(fields, sort_keys=True)
    if fields["engine"] == "pair":
        parts = [each for each in fields["settings"].values() if isinstance(each, str)]
        found += "".join(stated(each) for each in parts if each != name)
    return hashlib.sha256(found.encode()).hexdigest()[:16]


@functools.lru_cache(256)
def _fields(name: str) -> dict[str, Any]:
    return fields_of(name)[1]


def _number(name: str, value: Any) -> int | float | None:
    """A value of a list. ConfigError: it is none."""
    if name == "bandwidth":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value == OWN:
            return None
        if is_number and 0 < value <= _BANDWIDTH_MOST:
            return float(value)
        allowed = f"{OWN}, or GB/s above 0 and at most {_BANDWIDTH_MOST:g}"
    else:
        has_own = name in ("lanes", "ports")
        if has_own and value == OWN:
            return None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if is_whole and 1 <= value <= _MOST[name]:
            return int(value)
        allowed = f"{OWN}, or 1..{_MOST[name]}" if has_own else f"1..{_MOST[name]}"
    raise ConfigError(f"{name} must be {allowed}, not {value!r}")


def _values(name: str, found: Any) -> tuple[Any, ...]:
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{name} must be a list that is not empty, not {found!r}")
    if name != "hw":
        return tuple(_number(name, each) for each in found)
    for each in found:
        if not isinstance(each, str):
            raise ConfigError(f"hw must be texts, not {each!r}")
    return tuple(found)


def grid_of(found: dict[str, Any], base: Grid | None = None) -> Grid:
    """``base`` with the lists of ``found``. ConfigError: an unknown field, or a bad list."""
    names = [field.name for field in dataclasses.fields(Grid)]
    if unknown := sorted(set(found) - set(names)):
        raise ConfigError(f"unknown fields {', '.join(unknown)}; fields: {', '.join(names)}")
    given = {name: _values(name, values) for name, values in found.items()}
    return dataclasses.replace(base or Grid(), **given)


def read_grid(file: Path) -> Grid:
    """The grid of a file: an object of lists, such as ``{"lanes": ["own", 8], "batch": [1]}``.

    A list that the file does not have is the default one. ConfigError in one line.
    """
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: must be an object of lists")
    try:
        return grid_of(found)
    except ConfigError as error:
        raise ConfigError(f"{file}: {str(error).removeprefix('--')}") from None


def parsed(texts: Sequence[str]) -> list[Any]:
    """Words of a command line as numbers where they are some."""
    made: list[Any] = []
    for text in texts:
        try:
            made.append(json.loads(text))
        except ValueError:
            made.append(text)
    return made
