"""Whether a bench or a test has changed a generator in this process."""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

_PACKAGES = ("golden", "hdl")
_FOREIGN = ("tb", "senbazuru", "tests", "conftest", "unittest", "__main__")
_CONSTANT = re.compile(r"^(_?[A-Z][A-Z0-9_]*)(?:: [^=\n]+)? = (.+)$", re.M)
_IMPORT = re.compile(r"^from ((?:golden|hdl)[\w.]*) import (\([^)]*\)|.+)$", re.M)
_COMPUTES = (ast.Call, ast.Name, ast.Attribute, ast.comprehension)


def is_patched() -> bool:
    """Whether an imported module of golden or hdl is not what its source says, as far as is cheap.

    Found:

    - a class or function of tb, tests, unittest.mock or the main program, as a name of a module;
    - the same among the attributes of a class that the module defines, in a property too;
    - a function whose text was compiled from no file, such as one of ``tb.faults.plant``;
    - a module's constant whose source is one line of literals, such as ``MAX = 1 << 20``;
    - a name that a module imports from golden or hdl, and that is another object in its origin.

    Not found:

    - another value of a computed constant or of a class attribute;
    - a changed element of a table;
    - a function of golden or hdl in the place of another one, where it is defined.
    """
    return any(
        _is_changed(name, module)
        for name, module in list(sys.modules.items())
        if name.split(".")[0] in _PACKAGES and module is not None
    )


def _is_changed(name: str, module: ModuleType) -> bool:
    values = dict(vars(module))
    if any(_is_foreign(value) for value in values.values()):
        return True
    for value in values.values():
        if isinstance(value, type) and value.__module__ == name:
            if any(_is_foreign(part) for member in vars(value).values() for part in _parts(member)):
                return True
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    return any(
        constant in values and not _is_same(values[constant], expected)
        for constant, expected in _constants(file).items()
    ) or any(
        hasattr(sys.modules.get(origin), there) and values.get(here) is not _of(origin, there)
        for origin, there, here in _imports(file)
    )


def _of(origin: str, name: str):
    return getattr(sys.modules[origin], name)


def _parts(member) -> Iterator[Any]:
    """The functions of a class's member."""
    if isinstance(member, property):
        yield from (member.fget, member.fset)
    else:
        yield inspect.unwrap(getattr(member, "__func__", getattr(member, "func", member)))


def _is_foreign(value) -> bool:
    origin = str(getattr(value, "__module__", ""))
    if origin != "senbazuru" and origin.split(".")[0] in _FOREIGN:  # its ``require`` is no patch
        return True
    if not isinstance(value, FunctionType):
        return False
    file = value.__code__.co_filename
    return file.startswith("<") and file != "<string>"  # dataclasses compile from "<string>"


@functools.cache
def _constants(file: str) -> dict[str, Any]:
    """Name to value of each constant of a source that is one line of literals."""
    found = {}
    for name, text in _CONSTANT.findall(Path(file).read_text()):
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError:  # the first of several lines
            continue
        if not any(isinstance(node, _COMPUTES) for node in ast.walk(tree)):
            found[name] = eval(compile(tree, file, "eval"))
    return found


@functools.cache
def _imports(file: str) -> list[tuple[str, str, str]]:
    """Module, name in it and name here of what a source imports from golden and hdl."""
    found = []
    for origin, names in _IMPORT.findall(Path(file).read_text()):
        for each in re.sub(r"#.*", "", names.strip("()")).split(","):
            there, _, here = each.strip().partition(" as ")
            if there:
                found.append((origin, there, here or there))
    return found


def _is_same(value, expected) -> bool:
    return type(value) is type(expected) and value == expected
