"""Each declared field of every configuration refuses what its range excludes.

The range is told once, in the declaration (golden/config.py). So one test covers it. Values past
each end and of other types are refused in one line, and the ends themselves are not.

Shown to fail: a wrapper of ``__post_init__`` that checks nothing, or only in classes that call
super. An end that is excluded. ``True`` and ``1.0`` taken for integers. A check of constants.
"""

import ast
import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
import textwrap
from fractions import Fraction

import pytest

import golden
import hdl
import sim
from golden.config import (
    Choice,
    Config,
    ConfigError,
    Kind,
    PowerOfTwo,
    Range,
    RealRange,
    declarations,
)
from golden.kllm.layer.shape import LayerShape
from golden.kllm.model.layout import ModelShape
from golden.llm.decoder import Decoder
from golden.qet.config import QetShape
from golden.qet.rivals import RotatedShape, Variant
from golden.vqllm.config import MatrixShape, Work
from hdl.paging.mmu import PagingMmuNumbers
from hdl.registry import all_blocks
from senbazuru.talk.sampling import Sampling
from sim.constant import Constant
from sim.model import Model
from sim.serving.arrivals import Load
from sim.serving.pages import Page
from sim.work import Part

_LAYER = LayerShape(hidden=64, heads=2, kv_heads=1, head_size=32, intermediate=128)
_MODEL = {
    "name": "a", "architecture": "llama", "hidden": 64, "layers": 2, "heads": 2, "kv_heads": 1,
    "head_size": 32, "intermediate": 128, "vocabulary": 100,
}  # fmt: skip
_MATRIX = MatrixShape(rows=64, columns=64)
# Of the classes that no block holds, those without defaults.
_EXAMPLES = (
    _LAYER,
    ModelShape(layer=_LAYER, layers=2, vocabulary=100, context=64),
    Decoder(**_MODEL),
    Model(**_MODEL),
    QetShape(rows=64, columns=64),
    RotatedShape(rows=64, columns=64),
    Variant(levels=(0,), entry_bits=16, shares=(Fraction(1),)),
    _MATRIX,
    Work(matrix=_MATRIX),
    Sampling(),
    Constant(value=1.0, unit="cycles", kind="paper", source="a table"),
    Load(arrivals="poisson", requests=3, prompt=5, output=5),
    Page(size=4),
    Part(count=1, new=1, context=0),
)
_ABSTRACT = {PagingMmuNumbers}


def _classes() -> list[type[Config]]:
    for package in (golden, hdl, sim):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    ours = ("golden.", "hdl.", "sim.", "senbazuru.")
    found, rest = set(), [Config]
    while rest:
        below = rest.pop().__subclasses__()
        rest += below
        found |= {each for each in below if each.__module__.startswith(ours)}
    return sorted(found - _ABSTRACT, key=_name)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def _held(config: Config) -> dict[type, Config]:
    found = {type(config): config}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Config):
                found |= _held(each)
    return found


_CLASSES = _classes()
_HELD = {type(each): each for each in _EXAMPLES}
for _block in all_blocks().values():
    _HELD |= _held(_block.config)


def _config(cls: type[Config]) -> Config:
    return _HELD[cls] if cls in _HELD else cls()


def _allowed(rule) -> str:
    match rule:
        case PowerOfTwo():
            return f"a power of two in {rule.low}..{rule.high}"
        case Range():
            return f"{rule.low}..{rule.high}"
        case RealRange():
            return f"{rule.low:g}..{rule.high:g}"
        case Choice():
            return " or ".join(str(each) for each in rule.choices)
        case Kind():
            return "true or false" if rule.kind is bool else f"a {rule.kind.__name__}"


def _ends(rule) -> tuple:
    """Values that the rule takes: both ends of a range, or all."""
    match rule:
        case Range() | RealRange():
            return rule.low, rule.high
        case Choice():
            return rule.choices
        case Kind():
            return (True, False) if rule.kind is bool else ()


def _wrong(rule) -> list:
    """Values that the rule refuses: those past the ends, and of other types."""
    match rule:
        case PowerOfTwo():
            odd = [3 * rule.low] if 3 * rule.low <= rule.high else []
            return [rule.low - 1, 2 * rule.high, rule.high + 1, *odd, True, float(rule.low), "x"]
        case Range():
            return [rule.low - 1, rule.high + 1, True, float(rule.low), "x", None]
        case RealRange():
            below, above = math.nextafter(rule.low, -math.inf), math.nextafter(rule.high, math.inf)
            return [below, above, math.nan, True, "x", None]
        case Choice():
            return ["x", None, 2.5, *(float(each) for each in rule.choices if type(each) is int)]
        case Kind():
            return [0, 1, "true", None, *(() if rule.kind is bool else (True, _Other()))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Other(Config):
    """A configuration that no field takes."""


def _refusal(config: Config, field: str, value) -> str:
    try:
        dataclasses.replace(config, **{field: value})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("cls", _CLASSES, ids=_name)
def test_a_declared_field_refuses_what_its_range_excludes(cls):
    config = _config(cls)
    for field, each in declarations(cls).items():
        line = f"{cls.__name__}.{field} must be {_allowed(each.rule)}, not "
        for value in _wrong(each.rule):
            assert _refusal(config, field, value) == f"{line}{value!r}"
        for value in _ends(each.rule):  # another rule may refuse it
            assert not _refusal(config, field, value).startswith(line)


def test_a_meaning_tells_no_range():
    """A declaration has the range already."""
    meanings = [each.meaning for cls in _CLASSES for each in declarations(cls).values()]
    assert len(meanings) > 800
    assert [text for text in meanings if re.search(r"\d\.\.\d|power of two in", text)] == []


_CHECKS = {"_check_range", "_check_real", "_check_bool", "_check_power_of_two", "_check_shape"}


def test_a_range_of_constants_is_declared():
    """A ``__post_init__`` checks only what depends on other fields."""
    found = []
    for cls in _CLASSES:
        if "__post_init__" not in cls.__dict__:
            continue
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(cls.__post_init__)))
        for statement in ast.parse(source).body[0].body:
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in _CHECKS:
                name, *bounds = call.args
                used = {
                    each.id for each in ast.walk(ast.Tuple(bounds)) if isinstance(each, ast.Name)
                }
                is_own = "." not in ast.unparse(name)  # a holder narrows its shape
                if is_own and not used & {"self", "most", "least", "math"}:  # math: inf
                    found.append(f"{_name(cls)}: {ast.unparse(call)}")
    assert found == []
