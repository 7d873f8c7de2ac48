"""What every configuration obeys: a frozen dataclass that refuses bad values in one line.

Pure Python: hdl imports this module, and torch is never loaded by it.
"""

import dataclasses
import functools
import inspect
import operator
import sys
import typing
from collections.abc import Hashable, Iterable
from typing import Any

_SHOWN_MAX = 120  # letters of a refused value with fields of its own, and bits of an integer


class ConfigError(ValueError):
    """A field out of range; the message names class, field, range and value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base of every configuration: subclasses are frozen dataclasses that check themselves.

    Subclasses call the ``_check_*`` helpers in ``__post_init__``; each raises ConfigError. A field
    of a field is ``shape.size``: a holder may narrow a shape's range.
    """

    # Properties that give a part which not every configuration has.
    conditional_parts: typing.ClassVar[tuple[str, ...]] = ()

    def _value(self, field: str) -> Any:
        return operator.attrgetter(field)(self)

    def _refuse(self, field: str, allowed: str) -> typing.NoReturn:
        value = self._value(field)
        if isinstance(value, int) and value.bit_length() > _SHOWN_MAX:
            shown = f"a number of {value.bit_length()} bits"
        else:
            shown = repr(value)
        if isinstance(value, Config) and len(shown) > _SHOWN_MAX:
            shown = f"{type(value).__name__}(...)"
        raise ConfigError(f"{type(self).__name__}.{field} must be {allowed}, not {shown}")

    def check_parts(self) -> None:
        """Refuses what the configurations of the parts refuse, at any depth, before elaboration.

        A part is a property whose annotation is a Config. ConfigError: the part's own line.
        """
        _check_parts(self)

    def _check_range(self, field: str, low: int, high: int) -> None:
        value = self._value(field)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._refuse(field, f"{low}..{high}")

    def _check_real(self, field: str, low: float, high: float) -> None:
        value = self._value(field)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            self._refuse(field, f"{low:g}..{high:g}")

    def _check_choice(self, field: str, choices: Iterable[Any]) -> None:
        choices = tuple(choices)
        value = self._value(field)
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            self._refuse(field, " or ".join(map(str, choices)))

    def _check_shape(self, field: str, kind: "type[Config]") -> None:
        if not isinstance(getattr(self, field), kind):
            self._refuse(field, f"a {kind.__name__}")

    def _check_bool(self, field: str) -> None:
        if not isinstance(getattr(self, field), bool):
            self._refuse(field, "true or false")

    def _check_power_of_two(self, field: str, low: int, high: int) -> None:
        value = self._value(field)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not low <= value <= high
            or value & (value - 1)
        ):
            self._refuse(field, f"a power of two in {low}..{high}")

    def describe(self) -> dict[str, Any]:
        """Fields as plain JSON values, nested configurations and formats included."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def parse(cls, base: "Config", assignments: Iterable[str]) -> "Config":
        """``base`` with ``field=value`` or ``field.inner=value`` applied.

        ConfigError: no such field, a value out of range, or a field given twice.
        """
        changes: dict[str, Any] = {}
        nested: dict[str, list[str]] = {}
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for text in assignments:
            name, equals, value = text.partition("=")
            name, dot, inner = name.partition(".")
            if not equals:
                raise ConfigError(f"{text!r} must be field=value")
            if name not in fields:
                known = ", ".join(sorted(fields))
                raise ConfigError(f"{cls.__name__} has no field {name!r}; its fields: {known}")
            if name in changes:
                raise ConfigError(f"{cls.__name__}.{name} is given twice")
            if dot:
                nested.setdefault(name, []).append(f"{inner}={value}")
                continue
            changes[name] = _parse_value(cls, name, getattr(base, name), value)
        for name, texts in nested.items():
            current = getattr(base, name)
            if not isinstance(current, Config):
                raise ConfigError(f"{cls.__name__}.{name} has no fields of its own")
            changes[name] = current.parse(current, texts)
        return dataclasses.replace(base, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape(Config):
    """Base of sizes that configurations hold as a field, each declared once; pages list them."""


@functools.lru_cache(maxsize=4096)
def _check_parts(config: Hashable) -> None:
    for name in _part_names(type(config)):
        part = getattr(config, name)
        if isinstance(part, Config):
            _check_parts(part)


@functools.cache
def _part_names(cls: type) -> tuple[str, ...]:
    """The properties of a class of configurations that give the configuration of a part."""
    found = []
    conditional = cls.conditional_parts if issubclass(cls, Config) else ()
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        getter = member.fget if isinstance(member, property) else getattr(member, "func", None)
        kind = getattr(getter, "__annotations__", {}).get("return")
        if isinstance(kind, str):  # of a class that comes later in its module
            kind = getattr(sys.modules[getter.__module__], kind, None)
        is_part = isinstance(kind, type) and issubclass(kind, Config)
        if is_part and name not in conditional:
            found.append(name)
    return tuple(found)


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.describe()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _parse_value(cls: type, name: str, current: Any, text: str) -> Any:
    if isinstance(current, bool):
        if text.lower() in ("true", "1", "yes"):
            return True
        if text.lower() in ("false", "0", "no"):
            return False
        raise ConfigError(f"{cls.__name__}.{name} must be true or false, not {text!r}")
    if isinstance(current, int):
        try:
            return int(text, 0)
        except ValueError:
            raise ConfigError(f"{cls.__name__}.{name} must be an integer, not {text!r}") from None
    if isinstance(current, float):
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{cls.__name__}.{name} must be a number, not {text!r}") from None
    if isinstance(current, str):
        return text
    raise ConfigError(f"{cls.__name__}.{name} cannot be set from the command line")
