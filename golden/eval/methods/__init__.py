"""The methods by name: one file per family, and every Method of a file is found by its presence.

``NAME[:field=value,...]`` as golden.eval.method describes it; ``A+B`` installs A first.
"""

import functools
import importlib
import itertools
import pkgutil
import re

from golden.config import ConfigError
from golden.eval.method import Method

__all__ = ["discover", "parse", "parse_all"]


@functools.cache
def discover() -> tuple[type[Method], ...]:
    """All methods in the files of golden/eval/methods, in order of file and line."""
    found: list[type[Method]] = []
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
        loaded = importlib.import_module(f"{__name__}.{module}")
        found += [
            each
            for each in vars(loaded).values()
            if isinstance(each, type)
            and issubclass(each, Method)
            and each.__module__ == loaded.__name__
            and each.pattern
        ]
    return tuple(found)


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
    raise ConfigError(f"there is no method {name!r}; methods: {known}")


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
