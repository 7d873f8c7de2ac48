"""Requests, and files of them: the columns of the traces that Azure published. Pure Python.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

A time is a date with a time of day, or a number of seconds. One file has one of the two. Other
columns are ignored. ConfigError names the file, the line and the column.
"""

import csv
import dataclasses
import datetime
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from golden.config import ConfigError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_TOKENS = 1 << 24  # of a prompt or of an output


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """number: place in the trace, from 1; arrival: seconds after the first; sizes in tokens.

    hashes : of the blocks of the prompt, each for the block and all before it; empty: none is given
    """

    number: int
    arrival: float
    prompt: int
    output: int
    hashes: tuple[int, ...] = ()


def _seconds(text: str) -> tuple[str, float]:
    """The kind of a time and its seconds. ValueError: neither a date nor a number."""
    try:
        number = float(text)
    except ValueError:
        # A microsecond is the finest part that datetime keeps, so the fraction is read apart.
        whole, _, fraction = text.strip().partition(".")
        date = datetime.datetime.fromisoformat(whole)
        if date.tzinfo is not None or (fraction and not fraction.isdecimal()):
            raise ValueError("a zone") from None
        since = date - datetime.datetime(1970, 1, 1)
        return "date", since.days * 86400 + since.seconds + float(f"0.{fraction or 0}")
    if not math.isfinite(number):
        raise ValueError("not finite")
    return "number", number


def _tokens(where: str, column: str, text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        raise ConfigError(f"{where}: {column} must be a whole number, not {text!r}") from None
    if not 1 <= count <= MOST_TOKENS:
        raise ConfigError(f"{where}: {column} must be 1..{MOST_TOKENS}, not {count}")
    return count


def _rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yields each row's place and its three columns."""
    reader = csv.reader(lines)
    head = [name.strip() for name in next(reader, [])]
    if missing := [name for name in COLUMNS if name not in head]:
        raise ConfigError(f"{path}: line 1 lacks the column {', '.join(missing)}")
    places = [head.index(name) for name in COLUMNS]
    for row in reader:
        where = f"{path}: line {reader.line_num}"
        if not row:
            continue
        if len(row) != len(head):
            raise ConfigError(f"{where} must have {len(head)} columns, not {len(row)}")
        time, prompt, output = (row[place].strip() for place in places)
        yield where, time, prompt, output


def _parsed(path: Path, lines: Iterable[str], most: int | None) -> list[Request]:
    made: list[Request] = []
    first = last = 0.0
    first_kind = ""
    for where, time, prompt, output in _rows(path, lines):
        if most is not None and len(made) >= most:
            break
        try:
            kind, at = _seconds(time)
        except ValueError:
            text = "a date without a zone, or seconds"
            raise ConfigError(f"{where}: TIMESTAMP must be {text}, not {time!r}") from None
        if not made:
            first = last = at
            first_kind = kind
        if kind != first_kind:
            raise ConfigError(f"{where}: TIMESTAMP must be a {first_kind}, not {time!r}")
        if at < last:
            raise ConfigError(f"{where}: TIMESTAMP {time!r} is before that of the row above")
        last = at
        sizes = _tokens(where, "ContextTokens", prompt), _tokens(where, "GeneratedTokens", output)
        made.append(Request(len(made) + 1, at - first, *sizes))
    return made


def read_trace(path: Path, most: int | None = None) -> list[Request]:
    """The first ``most`` requests of a file, all if None. ConfigError: the file is not a trace."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            made = _parsed(path, lines, most)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: {reason}") from None
    if not made:
        raise ConfigError(f"{path} has no requests")
    return made


def scaled(requests: list[Request], speed: float) -> list[Request]:
    """The same requests, ``speed`` times as many per second; the list itself at speed 1."""
    if speed == 1:
        return requests
    return [dataclasses.replace(each, arrival=each.arrival / speed) for each in requests]
