"""Liberty's Boolean functions as text that both Python and Verilog read.

``~``, ``&``, ``^`` and ``|`` mean the same in both. In Python the operands are integers whose bits
are cycles, so that one evaluation covers every cycle.
"""

import functools
from collections.abc import Callable, Mapping

from synth.liberty import LibraryError, symbols


def formula(function: str, names: Mapping[str, str] | None = None) -> str:
    """``function`` with ``names`` replaced, fully parenthesised; empty for an empty function.

    Binding as in ``synth.liberty.evaluate``. A name that ``names`` lacks is kept.
    LibraryError: the text is no Boolean function.
    """
    words = [*symbols(function), ""]
    if words == [""]:
        return ""
    renamed = names or {}
    at = 0

    def primary() -> str:
        nonlocal at
        word = words[at]
        at += 1
        if word == "!":
            return f"(~{primary()})"
        if word == "(":
            text = disjunction()
            if words[at] != ")":
                raise LibraryError(f"function {function!r} lacks a parenthesis")
            at += 1
        elif word in ("0", "1"):
            text = "(~0)" if word == "1" else "0"
        elif not word.isidentifier():
            raise LibraryError(f"function {function!r} cannot be read")
        else:
            text = renamed.get(word, word)
        while words[at] == "'":
            at += 1
            text = f"(~{text})"
        return text

    def chain(part: Callable[[], str], operator: str, marks: tuple[str, ...]) -> str:
        nonlocal at
        texts = [part()]
        while words[at] in marks or (operator == "&" and words[at] not in ("|", "+", ")", "", "^")):
            at += words[at] in marks
            texts.append(part())
        return texts[0] if len(texts) == 1 else f"({f' {operator} '.join(texts)})"

    def exclusive() -> str:
        return chain(primary, "^", ("^",))

    def conjunction() -> str:
        return chain(exclusive, "&", ("&", "*"))

    def disjunction() -> str:
        return chain(conjunction, "|", ("|", "+"))

    text = disjunction()
    if words[at]:
        raise LibraryError(f"function {function!r} cannot be read")
    return text


@functools.cache
def compiled(text: str, names: tuple[str, ...]) -> Callable[..., int]:
    """``formula``'s text as a function of ``names``; bits beyond the last cycle are any."""
    return eval(f"lambda {', '.join(names)}: {text}", {"__builtins__": {}})
