"""Hardware as JSON: an engine, its settings, its constants and its memory. Pure Python.

``sim/hardware`` holds the chips that come with the simulator, ``sim/memories`` kinds of memory.
``python -m sim.run --template ENGINE`` writes a file in which each field is explained.

A file is an object:

| field | content |
|---|---|
| engine | how the chip works: a file of ``sim/engines`` |
| about | one line |
| base | name of another chip whose fields this one takes where it has none of its own |
| settings | the engine's choices: whole numbers, texts, true or false |
| constants | the engine's numbers, each with value, unit, kind and source |
| constants.NAME.at | settings that it is stated for, where they are not the file's |
| memory | ``kind``, a file of ``sim/memories``; ``channels``; constants that replace the kind's |
"""

import dataclasses
import difflib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from golden.config import ConfigError
from sim.constant import Constant, Interval, constant_of, dimension

FOLDER = Path(__file__).parent / "hardware"
MEMORIES = Path(__file__).parent / "memories"
_FIELDS = ("engine", "about", "base", "settings", "constants", "memory")
# Of a memory, each with its base unit: what it is.
MEMORY_FIELDS = {
    "bandwidth": ("B/s", "of one channel, peak"),
    "capacity": ("B", "of one channel"),
    "efficiency": ("", "share of the peak that long bursts reach"),
    "latency": ("s", "from a request to its first byte, no queue"),
    "energy": ("pJ/bit", "of a byte read or written, the interface included"),
    "static": ("W", "of one channel, refresh and standby"),
}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of a chip. constants: those of MEMORY_FIELDS, all of one channel."""

    kind: str
    channels: int
    constants: Mapping[str, Constant]

    @property
    def peak(self) -> float:
        """Bytes per second."""
        return self.channels * self.constants["bandwidth"].base

    @property
    def bandwidth(self) -> float:
        """Bytes per second of long bursts."""
        return self.peak * self.constants["efficiency"].base

    @property
    def capacity(self) -> float:
        """Bytes."""
        return self.channels * self.constants["capacity"].base

    @property
    def latency(self) -> float:
        """Seconds."""
        return self.constants["latency"].base

    def seconds(self, amount: float) -> float:
        """The seconds of ``amount`` bytes in long bursts, all channels at once."""
        return amount / self.bandwidth

    def joules(self, amount: float) -> Interval:
        """The joules of ``amount`` bytes."""
        return self.constants["energy"].interval * amount

    @property
    def watts(self) -> Interval:
        """The watts without traffic."""
        return self.constants["static"].interval * self.channels


@dataclasses.dataclass(frozen=True)
class Hardware:
    """A chip as its file states it.

    stated : by constant, engine, settings and constants of the file that states it
    filed : settings and constants before any change
    """

    name: str
    engine: str
    about: str
    settings: Mapping[str, Any]
    constants: Mapping[str, Constant]
    memory: Memory
    stated: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    filed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def known() -> dict[str, Path]:
    """Names of the chips that come with the simulator."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.json"))}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path.name}: must be an object")
    return found


def nearest(what: str, text: str, names: Mapping[str, Path]) -> ConfigError:
    """The error of a name that is none of ``names``, with the one that is most like it."""
    near = difflib.get_close_matches(text[:100], names, 1, 0.0)
    return ConfigError(
        f"{what} must be a known name or a file, not {text[:100]!r}; nearest: {near[0]}"
    )


def _fields(path: Path, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a file and of its bases, ``settings``, ``constants``, ``memory`` merged."""
    found = _read(path)
    if unknown := sorted(set(found) - set(_FIELDS)):
        raise ConfigError(f"{path.name}: unknown fields {', '.join(unknown)}")
    for name in ("settings", "constants", "memory"):
        if not isinstance(found.get(name, {}), dict):
            raise ConfigError(f"{path.name}: {name} must be an object")
    base = found.pop("base", None)
    own = [name for name in found.get("constants", {}) if isinstance(name, str)]
    if base is None:
        return _with_stated(path, found, {}, own)
    if base in seen:
        raise ConfigError(f"{path.name}: base {base!r} is its own base")
    if not isinstance(base, str) or base not in known():
        raise nearest(f"{path.name}: base", str(base), known())
    made = _fields(known()[base], (*seen, base))
    for name in ("settings", "constants", "memory"):
        found[name] = {**made.get(name, {}), **found.get(name, {})}
    return _with_stated(path, {**made, **found}, made["stated"], own)


def _chip(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Engine, settings, and values of constants: what a figure of the whole chip is stated for."""
    constants = {
        name: {key: each.get(key) for key in ("value", "unit")}
        for name, each in fields.get("constants", {}).items()
        if isinstance(each, dict)
    }
    settings = dict(fields.get("settings", {}))
    return {"engine": fields.get("engine"), "settings": settings, "constants": constants}


def _with_stated(
    path: Path, found: dict[str, Any], stated: Mapping[str, Any], own: Collection[str]
) -> dict[str, Any]:
    """``found`` with the chip for which each of its constants is stated; those of ``own`` here."""
    made, chip = dict(stated), _chip(found)
    for name in own:
        constant, at = found["constants"][name], {}
        if isinstance(constant, dict) and "at" in constant:
            found["constants"][name] = {k: v for k, v in constant.items() if k != "at"}
            at = constant["at"]
            if not isinstance(at, dict):
                raise ConfigError(f"{path.name}: constants.{name}.at must be an object of settings")
        made[name] = {**chip, "settings": {**chip["settings"], **at}}
    return {**found, "stated": made}


def _with_kind(where: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a memory, with those of its kind where it has none of its own."""
    kinds = {path.stem: path for path in sorted(MEMORIES.glob("*.json"))}
    if not isinstance(found.get("kind"), str) or found["kind"] not in kinds:
        raise nearest(f"{where}: memory.kind", str(found.get("kind")), kinds)
    fields = _read(kinds[found["kind"]])
    fields.pop("about", None)
    return {**fields, **found}


def _memory(where: str, found: Mapping[str, Any]) -> Memory:
    fields = dict(found)
    kind, channels = fields.pop("kind"), fields.pop("channels", 1)
    if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
        raise ConfigError(f"{where}: memory.channels must be 1 or more, not {channels!r}")
    units = {name: unit for name, (unit, _) in MEMORY_FIELDS.items()}
    constants = constants_of(f"{where}: memory", fields, units)
    check_ranges(f"{where}: memory", constants, ("efficiency",), ("efficiency",))
    return Memory(kind, channels, constants)


def constants_of(
    where: str, found: Mapping[str, Any], wanted: Mapping[str, str]
) -> dict[str, Constant]:
    """wanted: names and their units. ConfigError: others, or one is missing or of another unit."""
    if unknown := sorted(set(found) - set(wanted)):
        raise ConfigError(f"{where} has unknown constants: {', '.join(unknown)}")
    made = {}
    for name, unit in wanted.items():
        if name not in found:
            raise ConfigError(f"{where} lacks {name}, in {unit or 'no unit'}")
        constant = constant_of(f"{where}.{name}", found[name])
        made[name] = constant
        if dimension(constant.unit) != dimension(unit):
            raise ConfigError(f"{where}.{name} must be in {unit or 'no unit'}, not {constant.unit}")
    return made


_RATES = ("bandwidth", "frequency", "rate")  # dimensions of what a time is divided by
_MOST = 1e30  # of a constant, in its unit


def check_ranges(
    where: str,
    constants: Mapping[str, Constant],
    divisors: Collection[str] = (),
    shares: Collection[str] = (),
) -> None:
    """ConfigError: a constant is negative, too large, 0 where it divides, or a share above 1.

    Rates and frequencies divide always.
    """
    for name, constant in constants.items():
        value, allowed = constant.value, "0 or more"
        if name in shares:
            allowed = "0..1"
        divides = name in divisors or dimension(constant.unit) in _RATES
        if divides and value <= 0:
            allowed = "above 0"
        if value < 0 or (divides and not value) or (name in shares and constant.base > 1):
            raise ConfigError(f"{where}.{name} must be {allowed}, not {value!r}")
        if value > _MOST:
            raise ConfigError(f"{where}.{name} must be at most {_MOST:g}, not {value:g}")


def fields_of(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the fields of a known chip or of a file. ConfigError: neither."""
    names = known()
    path = names.get(text, Path(text))
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        is_file = False
    if not is_file:
        raise nearest("--hw", text, names)
    found = _fields(path)
    if missing := sorted({"engine", "about", "memory"} - set(found)):
        raise ConfigError(f"{path.stem}: lacks {', '.join(missing)}")
    found["memory"] = _with_kind(path.stem, found["memory"])
    found["filed"] = _chip(found)
    return path.stem, found


def changed(name: str, fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``fields`` with values replaced: ``constants.clock.value`` is a place in the JSON.

    A constant that is replaced is stated for the chip as it is then.
    ConfigError: no such place, or a place that holds an object.
    """
    made: dict[str, Any] = json.loads(json.dumps(fields))
    for place, value in changes.items():
        *path, last = place.split(".")
        at: Any = made
        for step in path:
            at = at.get(step) if isinstance(at, dict) else None
        if not isinstance(at, dict) or (path[:1] != ["settings"] and last not in at):
            raise ConfigError(f"{name}: has no field {place}")
        if isinstance(at.get(last), dict):
            raise ConfigError(f"{name}: {place} must be a value of the file, not an object")
        at[last] = value
    chip = _chip(made)
    for place in changes:
        if place.startswith("constants."):
            made["stated"][place.split(".")[1]] = chip
    return made


def hardware_of(name: str, fields: Mapping[str, Any], units: Mapping[str, str]) -> Hardware:
    """``fields`` as a Hardware. units: of each constant that the engine needs.

    ConfigError: a constant or a field of the memory is missing, odd, or of another unit.
    """
    return Hardware(
        name=name,
        engine=fields["engine"],
        about=fields["about"],
        settings=fields.get("settings", {}),
        constants=constants_of(name, fields.get("constants", {}), units),
        memory=_memory(name, fields["memory"]),
        stated=fields.get("stated", {}),
        filed=fields.get("filed", {}),
    )
