"""The methods by name: one file per family, and every Method of a file is found by its presence.

``NAME[:field=value,...]`` as golden.llm.eval.method describes it; ``A+B`` installs A first. A file
that cannot be imported stops only its own methods: ``broken`` says why. ``use_files`` adds files
from outside the package.
"""

import functools
import importlib
import importlib.util
import itertools
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from golden.config import ConfigError
from golden.llm.checkpoint import class_and_reason
from golden.llm.eval.method import Method

__all__ = ["broken", "built_in", "discover", "parse", "parse_all", "use_files"]

_added: list[type[Method]] = []  # of files outside the package


def _methods_of(module: ModuleType) -> list[type[Method]]:
    """Lists the methods of a file, in its order."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Method)
        and each.__module__ == module.__name__
        and each.pattern
    ]


def _fault(file: Path, error: BaseException) -> str:
    """``file:line: error``, with the last line of the file that the error came through."""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__)
             if Path(each.filename) == file]  # fmt: skip
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines, error = [error.lineno], SyntaxError(error.msg)
    return f"{file}:{lines[-1] if lines else 1}: {class_and_reason(error)}"


@functools.cache
def built_in() -> tuple[tuple[type[Method], ...], tuple[str, ...]]:
    """(methods in order of file and line, one line for each file that cannot be imported)."""
    found: list[type[Method]] = []
    faults: list[str] = []
    for each in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        try:
            found += _methods_of(importlib.import_module(f"{__name__}.{each.name}"))
        except Exception as error:  # whatever a file does, the others are read
            folder = Path(getattr(each.module_finder, "path", ""))
            faults.append(_fault(folder / f"{each.name}.py", error))
    return tuple(found), tuple(faults)


def discover() -> tuple[type[Method], ...]:
    """All methods in the files of golden/llm/eval/methods, then those of ``use_files``."""
    return (*built_in()[0], *_added)


def broken() -> tuple[str, ...]:
    """One line for each file of golden/llm/eval/methods that cannot be imported."""
    return built_in()[1]


def use_files(paths: Iterable[Path]) -> None:
    """Add the methods of files outside the package, in place of an earlier call's.

    ConfigError in one line:

    - there is no such file, or it cannot be imported;
    - it defines no Method with a pattern;
    - one of its spellings is that of another method already.
    """
    _added.clear()
    for number, path in enumerate(paths):
        _added.extend(_read(path, f"method_file_{number}"))


def _read(path: Path, name: str) -> list[type[Method]]:
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"there is no Python file {path}")
    path = path.resolve()
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a file of the user can fail in any way
        del sys.modules[name]
        raise ConfigError(f"methods: {_fault(path, error)}") from None
    found = _methods_of(module)
    if not found:
        raise ConfigError(f"{path} defines no Method with a pattern")
    for method in found:
        try:
            re.compile(method.pattern)
        except re.error as error:
            raise ConfigError(f"{path}: {method.__name__}.pattern: {error}") from None
        for spelling in method.spellings:
            if any(re.fullmatch(other.pattern, spelling) for other in discover()):
                raise ConfigError(f"{path}: there is a method {spelling} already")
    return found


def parse(text: str) -> Method:
    """One method; ConfigError names a parameter that is unknown or out of range."""
    name, _, parameters = text.strip().partition(":")
    for method in discover():
        match = re.fullmatch(method.pattern, name)
        if match is None:
            continue
        fields = {key: int(value) for key, value in match.groupdict().items() if value is not None}
        given = list(filter(None, parameters.split(",")))
        for key in (each.partition("=")[0].strip() for each in given):
            if key in fields:
                raise ConfigError(f"{text}: {key} is in the name already")
        try:
            found = method.parse(method(**fields), given)
        except ConfigError as error:
            raise ConfigError(f"{text}: {error}") from None
        assert isinstance(found, Method)
        return found
    known = ", ".join(spelling for method in discover() for spelling in method.spellings)
    unread = f" (cannot be read: {'; '.join(broken())})" if broken() else ""
    form = "; parameters are NAME:KEY=VALUE,KEY=VALUE" if re.search("[=,]", name) else ""
    raise ConfigError(f"there is no method {name!r}{form}; methods: {known}{unread}")


def parse_all(text: str) -> list[Method]:
    """The methods of a combination, ``A+B``, each as ``Method.beside`` makes it for the others.

    ConfigError: two that exclude each other in this order.
    """
    parts = text.split("+")
    found = [parse(part) for part in parts]
    for (before, first), (behind, then) in itertools.combinations(
        zip(parts, found, strict=True), 2
    ):
        if then.replaces_weights and (first.folds or first.reorders):
            reason = "its weights are those of the unchanged model"
        elif then.folds and first.reorders:
            reason = "the channels are in another order by then"
        else:
            continue
        raise ConfigError(f"{behind} cannot stand behind {before}: {reason}")
    return [each.beside(found[:i] + found[i + 1 :]) for i, each in enumerate(found)]
