"""Numbers with a unit, a source and a kind, and intervals of numbers. Pure Python.

A file of hardware states each number as an object:

    {"value": 2039, "unit": "GB/s", "kind": "paper", "source": "A100 data sheet", "low": 1900}

| kind | where the number comes from |
|---|---|
| measured | our own RTL, synthesis or run |
| paper | a publication or a data sheet |
| fitted | found so that predictions meet the rows that ``source`` names |
| assumed | nobody states it; ``source`` says why it is plausible |
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from golden.config import Choice, Config, ConfigError, declared

KINDS = ("measured", "paper", "fitted", "assumed")

# Units of each dimension, and how many of the base unit each is.
_SCALES: dict[str, dict[str, float]] = {
    "number": {"": 1.0, "%": 0.01},
    "bytes": {
        "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "GB": 1e9, "TB": 1e12,
        "bits": 0.125,
    },
    "bandwidth": {"B/s": 1.0, "GB/s": 1e9, "TB/s": 1e12},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "frequency": {"Hz": 1.0, "MHz": 1e6, "GHz": 1e9},
    "power": {"W": 1.0, "mW": 1e-3},
    "energy of a byte": {"pJ/bit": 8e-12},
    "energy": {"pJ": 1e-12, "J": 1.0},
    "rate": {"TFLOPS": 1e12, "TOPS": 1e12},
    "area": {"mm2": 1e-6, "um2": 1e-12},
    "cycles": {"cycles": 1.0},
    "lanes": {"lanes": 1.0},
}  # fmt: skip
UNITS = {unit: scale for units in _SCALES.values() for unit, scale in units.items()}


def dimension(unit: str) -> str:
    """Returns what a unit of UNITS measures."""
    return next(name for name, units in _SCALES.items() if unit in units)


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number that lies in ``low..high``; ``value`` is the one that is used where one is asked."""

    low: float
    value: float
    high: float

    @classmethod
    def of(cls, value: float) -> "Interval":
        return cls(value, value, value)

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.low + other.low, self.value + other.value, self.high + other.high)

    def __mul__(self, factor: float) -> "Interval":
        """Multiplies by a factor of 0 or more."""
        return Interval(self.low * factor, self.value * factor, self.high * factor)

    __rmul__ = __mul__


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A number as a paper states it, with its unit: an area is never taken for a power.

    ConfigError: an unknown unit, or units of different dimensions that meet.
    """

    value: float
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ConfigError(f"unit must be one of {', '.join(UNITS)}, not {self.unit!r}")

    def to(self, unit: str) -> float:
        """The number in another unit of the same dimension."""
        if unit not in UNITS or dimension(unit) != dimension(self.unit):
            raise ConfigError(f"{self.value:g} {self.unit} cannot be in {unit or 'no unit'}")
        return self.value if unit == self.unit else self.value * UNITS[self.unit] / UNITS[unit]

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.value + other.to(self.unit), self.unit)

    def __mul__(self, factor: float) -> "Quantity":
        return Quantity(self.value * factor, self.unit)

    __rmul__ = __mul__

    def __truediv__(self, other: "Quantity") -> float:
        """Says how many times ``other`` this is."""
        return self.value / other.to(self.unit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant(Config):
    """A number as a file states it; pJ/bit becomes joules per byte, bits become bytes.

    value : in ``unit``
    low, high : where it may lie, in ``unit``; ``value`` where they are not given
    """

    value: float
    unit: str = dataclasses.field(metadata=declared(Choice(tuple(UNITS))))
    kind: str = dataclasses.field(metadata=declared(Choice(KINDS)))
    source: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        self._check_real("value", -math.inf, math.inf)
        if not math.isfinite(self.value):
            self._refuse("value", "a finite number")
        if not isinstance(self.source, str) or not self.source.strip():
            self._refuse("source", "a text that is not empty")
        if self.low is not None:
            self._check_real("low", -math.inf, self.value)
        if self.high is not None:
            self._check_real("high", self.value, math.inf)

    @property
    def base(self) -> float:
        """The value in the base unit."""
        return self.value * UNITS[self.unit]

    @property
    def interval(self) -> Interval:
        """The interval in the base unit."""
        scale = UNITS[self.unit]
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return Interval(low * scale, self.value * scale, high * scale)


def constant_of(where: str, found: Any) -> Constant:
    """The Constant that JSON gives as ``found``. ConfigError names ``where`` and the field."""
    names = {field.name for field in dataclasses.fields(Constant)}
    needed = {"value", "unit", "kind", "source"}
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where} must be an object of value, unit, kind and source")
    if missing := sorted(needed - set(found)):
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    if unknown := sorted(set(found) - names):
        raise ConfigError(f"{where} has unknown fields: {', '.join(unknown)}")
    try:
        return Constant(**found)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
