"""Generated sections of the pages, and tables for them. Pure Python.

A page holds ``<!-- generated: NAME -->`` and ``<!-- end generated -->``. ``fill`` replaces the text
between the two.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from golden.files import in_turn, replacing

__all__ = ["fill", "in_turn", "replacing", "rewrite", "table"]

_SECTION = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end generated -->)", re.S)


def fill(
    text: str, made: Mapping[str, str | Callable[[], str]], *, is_partial: bool = False
) -> str:
    """``text`` with the sections of ``made`` replaced, by a text or by what a function returns.

    Other sections keep their text. ValueError if the page lacks a section of ``made``, unless
    ``is_partial``.
    """
    missing = set(made)

    def replace(match: re.Match[str]) -> str:
        begin, name, old, end = match.groups()
        missing.discard(name)
        new = made.get(name, old)
        return begin + (new() if callable(new) else new) + end

    filled = _SECTION.sub(replace, text)
    if missing and not is_partial:
        raise ValueError(f"the page has no section {min(missing)!r}")
    return filled


def rewrite(page: Path, made: Mapping[str, str | Callable[[], str]]) -> None:
    """Replace the sections of ``made`` in the file ``page``: all of them, or none if one fails.

    A section that the page lacks is refused before a function runs. Another process may fill other
    sections meanwhile.
    """
    fill(page.read_text(), dict.fromkeys(made, ""))
    done = {name: each() if callable(each) else each for name, each in made.items()}
    with in_turn(page):
        text = fill(page.read_text(), done)
        with replacing(page) as part:
            part.write_text(text)


def table(
    head: Iterable[object], rows: Iterable[Iterable[object]], *, align_right: bool = True
) -> str:
    """A table in Markdown. The first column aligns left, the others right if ``align_right``."""
    head = list(head)
    others = " ---: |" if align_right else " --- |"
    lines = ["| " + " | ".join(map(str, head)) + " |", "| --- |" + others * (len(head) - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"
