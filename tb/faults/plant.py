"""Faults planted in the text of a generator, to show that a bench or a proof finds them."""

import inspect
import sys
import textwrap


def plant(component: type, method: str, old: str, new: str) -> type:
    """A subclass of ``component`` in whose ``method`` the text ``old`` is ``new``.

    The method must contain ``old`` exactly once, spaces and line ends aside. So a generator that
    has changed does not pass for one with a fault.
    """
    source = textwrap.dedent(inspect.getsource(getattr(component, method)))
    words = old.split()
    lines = source.split("\n")
    found = [
        (first, last)
        for first in range(len(lines))
        for last in range(first, min(first + 8, len(lines)))
        if lines[first].strip()
        and lines[last].strip()
        and " ".join(words) == " ".join(" ".join(lines[first : last + 1]).split())
    ]
    if not found:  # within one line
        if source.count(old) != 1:
            raise ValueError(f"{component.__name__}.{method}: {source.count(old)} times {old!r}")
        source = source.replace(old, new)
    elif len(found) == 1:
        first, last = found[0]
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        body = textwrap.indent(textwrap.dedent(new).strip("\n"), indent)
        source = "\n".join([*lines[:first], body, *lines[last + 1 :]])
    else:
        raise ValueError(f"{component.__name__}.{method}: {len(found)} times {old!r}")
    names, namespace = vars(sys.modules[component.__module__]), {}
    exec(compile(source, f"<{component.__name__} with a fault>", "exec"), names, namespace)
    name = f"Faulty{component.__name__}"
    return type(name, (component,), {method: namespace[method], "__module__": __name__})
