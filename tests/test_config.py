"""What every configuration obeys."""

import dataclasses

import pytest

from golden.config import Config, ConfigError


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
