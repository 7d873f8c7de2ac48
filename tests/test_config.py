"""The rules that every configuration obeys."""

import dataclasses

import pytest

from golden.config import (
    Config,
    ConfigError,
    Range,
    bounded,
    choice,
    declarations,
    declared,
    flag,
    nested,
    power_of_two,
    real,
)
from hdl.registry import all_blocks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example(Config):
    lanes: int = 4
    mode: str = "a"
    wide: bool = False

    def __post_init__(self):
        self._check_range("lanes", 1, 8)
        self._check_choice("mode", ("a", "b"))
        self._check_bool("wide")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lanes": 0}, "Example.lanes must be 1..8, not 0"),
        ({"lanes": True}, "Example.lanes must be 1..8, not True"),
        ({"lanes": 2.5}, "Example.lanes must be 1..8, not 2.5"),
        ({"mode": "c"}, "Example.mode must be a or b, not 'c'"),
        ({"wide": 1}, "Example.wide must be true or false, not 1"),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ConfigError) as error:
        Example(**fields)
    assert str(error.value) == message


def test_parses_assignments():
    assert Config.parse.__func__(Example, Example(), ["lanes=0x7", "mode=b", "wide=true"]) == (
        Example(lanes=7, mode="b", wide=True)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer(Config):
    inner: Example = dataclasses.field(default_factory=Example)


@pytest.mark.parametrize(
    ("config", "texts", "message"),
    [
        (Example(), ["lanes=5", "wide=no", "lanes=6"], "Example.lanes is given twice"),
        (Example(), ["lanes=5", "lanes=5"], "Example.lanes is given twice"),
        (Outer(), ["inner.lanes=5", "inner.lanes=6"], "Example.lanes is given twice"),
    ],
)
def test_a_field_given_twice_is_refused(config, texts, message):
    """Shown to fail: the last one won."""
    with pytest.raises(ConfigError) as error:
        config.parse(config, texts)
    assert str(error.value) == message
    assert Outer.parse(Outer(), ["inner.lanes=5", "inner.mode=b"]).inner.lanes == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lanes", "'lanes' must be field=value"),
        ("lane=3", "Example has no field 'lane'; its fields: lanes, mode, wide"),
        ("lanes=x", "Example.lanes must be an integer, not 'x'"),
        ("lanes=9", "Example.lanes must be 1..8, not 9"),
        ("wide=maybe", "Example.wide must be true or false, not 'maybe'"),
    ],
)
def test_refuses_assignments(text, message):
    with pytest.raises(ConfigError) as error:
        Example.parse(Example(), [text])
    assert str(error.value) == message


def _holders(config: Config) -> dict[type, Config]:
    """``config`` and every configuration inside it, one of each class."""
    found = {type(config): config}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Config):
                found |= _holders(each)
    return found


def _accepted(config: Config) -> list[str]:
    """Fields of ``config`` that hold a configuration, and do not refuse another value by name."""
    accepted = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        parts = value if isinstance(value, tuple) else (value,)
        if not any(isinstance(part, Config) for part in parts):
            continue
        for wrong in (3, None, Example(), (3,)):
            line = f"{type(config).__name__}.{field.name} must be "
            try:
                dataclasses.replace(config, **{field.name: wrong})
                message = ""
            except ConfigError as error:
                message = str(error)
            except (AttributeError, TypeError) as error:
                message = repr(error)
            if not message.startswith(line) or not message.endswith(f", not {wrong!r}"):
                accepted.append(f"{line}... for {wrong!r}: {message or 'accepted'}")
    return accepted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder(Config):
    example: Example = dataclasses.field(default_factory=Example)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole(Config):
    """Has a part that may refuse what the whole accepts."""

    lanes: int = 4
    has_extra: bool = False
    conditional_parts = ("extra",)

    @property
    def part(self) -> Holder:
        return Holder(example=Example(lanes=self.lanes))

    @property
    def extra(self) -> Example:
        return Example(lanes=self.lanes, mode="c")

    @property
    def later(self) -> "Later":
        return Later(words=self.lanes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Later(Config):
    words: int = 4

    def __post_init__(self) -> None:
        self._check_range("words", 3, 9)


def test_what_a_part_refuses_the_whole_refuses():
    Whole().check_parts()
    with pytest.raises(ConfigError, match=r"Example.lanes must be 1\.\.8, not 9"):
        Whole(lanes=9).check_parts()
    with pytest.raises(ConfigError, match=r"Later.words must be 3\.\.9, not 2"):
        Whole(lanes=2).check_parts()


@pytest.mark.parametrize("name", all_blocks())
def test_a_block_refuses_before_elaboration(name):
    """Each named configuration has parts that accept it, at any depth."""
    block = all_blocks()[name]
    for config in (block.config, *block.configs.values()):
        config.check_parts()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Large(Config):
    holders: tuple = tuple(range(40))


def test_a_refused_integer_is_not_printed_whole():
    """Shown to fail: ``ValueError`` of Python, which prints no integer of so many digits."""
    line = r"Example.lanes must be 1\.\.8, not a number of 20001 bits"
    with pytest.raises(ConfigError, match=line):
        Example(lanes=1 << 20000)


def test_a_refused_configuration_is_not_printed_whole():
    with pytest.raises(ConfigError, match=r"must be smaller, not Large\(\.\.\.\)$"):
        Holder(example=Large())._refuse("example", "smaller")


def test_accepted_finds_a_field_without_a_check():
    assert len(_accepted(Holder())) == 4


@pytest.mark.parametrize("name", all_blocks())
def test_a_field_for_a_configuration_refuses_everything_else(name):
    block = all_blocks()[name]
    for base in (block.config, *block.configs.values()):
        for config in _holders(base).values():
            assert _accepted(config) == []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner(Config):
    size: int = bounded(4, 1, 8, "elements")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declared(Config):
    ports: int = dataclasses.field(metadata=declared(Range(1, 4), "ports of the memory"))
    lanes: int = bounded(16, 2, 64, "elements per cycle, a divisor of 64")
    width: int = power_of_two(8, 4, 16)
    share: float = real(0.5, 0.0, 1.0)
    mode: str = choice("a", ("a", "b"))
    wide: bool = flag(False)
    inner: Inner = nested(Inner, "what is inside")

    def __post_init__(self) -> None:
        if 64 % self.lanes:  # a use of the value, which 0 and text would end
            self._refuse("lanes", "a divisor of 64")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Narrower(Declared):
    lanes: int = 32
    width: int = bounded(3, 1, 9)

    def __post_init__(self) -> None:
        """Leaves ``super`` out."""


@pytest.mark.parametrize("kind", [Declared, Narrower])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ports": 5}, "ports must be 1..4, not 5"),
        ({"lanes": 0}, "lanes must be 2..64, not 0"),
        ({"lanes": "x"}, "lanes must be 2..64, not 'x'"),
        ({"share": 2}, "share must be 0..1, not 2"),
        ({"mode": "c"}, "mode must be a or b, not 'c'"),
        ({"wide": 1}, "wide must be true or false, not 1"),
        ({"inner": 3}, "inner must be a Inner, not 3"),
    ],
)
def test_a_declaration_is_checked_first(kind, fields, message):
    """Shown to fail: a check by ``Config.__post_init__`` alone, which a subclass leaves out."""
    with pytest.raises(ConfigError) as error:
        kind(**{"ports": 1} | fields)
    assert str(error.value) == f"{kind.__name__}.{message}"


def test_a_new_default_keeps_the_declaration_of_the_base():
    assert declarations(Narrower)["lanes"] == declarations(Declared)["lanes"]
    assert declarations(Narrower)["width"].rule == Range(1, 9)
    assert Narrower(ports=1).width == 3


def test_a_declared_field_is_as_any_other():
    config = Declared(ports=1)
    assert Declared.parse(config, ["lanes=8", "inner.size=2"]) == dataclasses.replace(
        config, lanes=8, inner=Inner(size=2)
    )
    assert len({config, Declared(ports=1), Declared(ports=2)}) == 2
    assert Declared.lanes == 16
    assert config.describe() == {
        "ports": 1,
        "lanes": 16,
        "width": 8,
        "share": 0.5,
        "mode": "a",
        "wide": False,
        "inner": {"size": 4},
    }
    with pytest.raises(TypeError, match="ports"):
        Declared()


def test_declarations_are_checked_once(monkeypatch):
    """A class whose ``__post_init__`` calls super, too, checks each declaration once."""
    seen = []
    monkeypatch.setattr(Range, "takes", lambda rule, value: seen.append(value) or True)
    Deep(ports=1, size=2)
    assert seen == [4, 1, 16, 8, 2]  # of the inner one first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deep(Declared):
    width: int = power_of_two(8, 4, 16)
    size: int = bounded(1, 1, 2)

    def __post_init__(self) -> None:
        super().__post_init__()
