"""The base of every configuration: a frozen dataclass that refuses bad values in one line.

Pure Python: hdl imports this module, and torch is never loaded by it.
"""

import dataclasses
import functools
import inspect
import operator
import sys
import typing
from collections.abc import Callable, Hashable, Iterable
from typing import Any

DECLARATION = "declaration"  # key of a field's metadata
_SHOWN_MAX = 120  # letters of a refused value with fields of its own, and bits of an integer


class ConfigError(ValueError):
    """A field out of range; the message names class, field, range and value."""


class Rule(typing.Protocol):
    """States which values a field takes, in the words of the refusal."""

    @property
    def allowed(self) -> str: ...

    def takes(self, value: Any) -> bool: ...


@dataclasses.dataclass(frozen=True)
class Range:
    """Takes the integers from ``low`` to ``high``."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        return f"{self.low}..{self.high}"

    def takes(self, value: Any) -> bool:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return is_integer and self.low <= value <= self.high


@dataclasses.dataclass(frozen=True)
class PowerOfTwo(Range):
    """Takes the powers of two from ``low`` to ``high``."""

    @property
    def allowed(self) -> str:
        return f"a power of two in {super().allowed}"

    def takes(self, value: Any) -> bool:
        return super().takes(value) and not value & (value - 1)


@dataclasses.dataclass(frozen=True)
class RealRange:
    """Takes the numbers from ``low`` to ``high``."""

    low: float
    high: float

    @property
    def allowed(self) -> str:
        return f"{self.low:g}..{self.high:g}"

    def takes(self, value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high


@dataclasses.dataclass(frozen=True)
class Choice:
    """Takes one of ``choices``, of the same type."""

    choices: tuple[Any, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(map(str, self.choices))

    def takes(self, value: Any) -> bool:
        return any(type(value) is type(choice) and value == choice for choice in self.choices)


@dataclasses.dataclass(frozen=True)
class Kind:
    """Takes the instances of ``kind``."""

    kind: type

    @property
    def allowed(self) -> str:
        return "true or false" if self.kind is bool else f"a {self.kind.__name__}"

    def takes(self, value: Any) -> bool:
        return isinstance(value, self.kind)


@dataclasses.dataclass(frozen=True)
class Declaration:
    """A field's statement of itself: the rule of its values, and its unit and use for its page."""

    rule: Rule
    meaning: str


def declared(rule: Rule, meaning: str = "") -> dict[str, Declaration]:
    """Metadata of a field, for one without a default: ``field(metadata=declared(...))``."""
    return {DECLARATION: Declaration(rule, meaning)}


def bounded(default: int, low: int, high: int, meaning: str = "") -> Any:
    """A field of an integer in ``low``..``high``."""
    return dataclasses.field(default=default, metadata=declared(Range(low, high), meaning))


def power_of_two(default: int, low: int, high: int, meaning: str = "") -> Any:
    """A field of a power of two in ``low``..``high``."""
    return dataclasses.field(default=default, metadata=declared(PowerOfTwo(low, high), meaning))


def real(default: float, low: float, high: float, meaning: str = "") -> Any:
    """A field of a number in ``low``..``high``."""
    return dataclasses.field(default=default, metadata=declared(RealRange(low, high), meaning))


def choice(default: Any, choices: Iterable[Any], meaning: str = "") -> Any:
    """A field of one of ``choices``."""
    return dataclasses.field(default=default, metadata=declared(Choice(tuple(choices)), meaning))


def flag(default: bool, meaning: str = "") -> Any:
    """A field of true or false."""
    return dataclasses.field(default=default, metadata=declared(Kind(bool), meaning))


def nested(
    make: "Callable[[], Config]", meaning: str = "", kind: "type[Config] | None" = None
) -> Any:
    """A field of another configuration, ``make()`` by default; ``make`` may be its class."""
    rule = Kind(kind or typing.cast(type, make))
    return dataclasses.field(default_factory=make, metadata=declared(rule, meaning))


def _declared_first(own: Callable[[Any], None]) -> Callable[[Any], None]:
    """``__post_init__`` ``own``, with the declarations of all fields checked before it."""

    @functools.wraps(own)
    def check(self: Any) -> None:
        if type(self).__post_init__ is check:  # once, not in each super().__post_init__()
            for name, each in declarations(type(self)).items():
                if not each.rule.takes(getattr(self, name)):
                    self._refuse(name, each.rule.allowed)
        own(self)

    return check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base of every configuration: subclasses are frozen dataclasses that check themselves.

    ``lanes: int = bounded(16, 1, 64, "elements per cycle")`` declares a field once: its check, its
    row of a page and the test of its refusal follow. ``__post_init__`` holds the rules between
    fields, by the ``_check_*`` helpers, and runs after the declarations have been checked. Each
    raises ConfigError. A field of a field is ``shape.size``: a holder may narrow a shape's range.
    """

    # Properties that give a part which not every configuration has.
    conditional_parts: typing.ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        # A dataclass calls one __post_init__, and a subclass that forgets super() hides ours. So
        # each __post_init__ is wrapped: the check cannot be left out, and comes before any use.
        super().__init_subclass__(**keywords)
        if "__post_init__" in cls.__dict__:
            cls.__post_init__ = _declared_first(cls.__post_init__)  # type: ignore[method-assign]

    @_declared_first
    def __post_init__(self) -> None:
        pass

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

    def _check(self, field: str, rule: Rule) -> None:
        if not rule.takes(self._value(field)):
            self._refuse(field, rule.allowed)

    def _check_range(self, field: str, low: int, high: int) -> None:
        self._check(field, Range(low, high))

    def _check_real(self, field: str, low: float, high: float) -> None:
        self._check(field, RealRange(low, high))

    def _check_choice(self, field: str, choices: Iterable[Any]) -> None:
        self._check(field, Choice(tuple(choices)))

    def _check_shape(self, field: str, kind: "type[Config]") -> None:
        self._check(field, Kind(kind))

    def _check_bool(self, field: str) -> None:
        self._check(field, Kind(bool))

    def _check_power_of_two(self, field: str, low: int, high: int) -> None:
        self._check(field, PowerOfTwo(low, high))

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


def declarations(cls: type) -> dict[str, Declaration]:
    """The declarations of a configuration's fields; a new default alone keeps that of the base."""
    return _declarations(cls)  # type: ignore[arg-type]


@functools.cache
def _declarations(cls: type) -> dict[str, Declaration]:
    found = {}
    for field in dataclasses.fields(cls):
        for base in cls.__mro__:
            known = base.__dict__.get("__dataclass_fields__", {}).get(field.name)
            if known is not None and DECLARATION in known.metadata:
                found[field.name] = known.metadata[DECLARATION]
                break
    return found


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
