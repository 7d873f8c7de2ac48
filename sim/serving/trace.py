"""Requests, and files of them: traces of Azure and of Mooncake. Pure Python.

Azure's of 2023 and 2024 are tables:

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44
    2024-05-10 00:00:00.009930+00:00,2162,5

A time is a date with a time of day, such a date with a zone, or a number of seconds. One file has
one of the three. Other columns are ignored. A file ``.jsonl`` has Mooncake's objects, with a time
in milliseconds. ``hash_ids`` names the blocks of the prompt, and may be missing:

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}

ConfigError names the file, the line and the column.
"""

import csv
import dataclasses
import datetime
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from golden.config import ConfigError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
FIELDS = ("timestamp", "input_length", "output_length")
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
        found = re.fullmatch(r"(.+?)(\.\d*)?(Z|[+-]\d\d:?\d\d)?", text.strip())
        if found is None:
            raise ValueError("no date") from None
        whole, fraction, zone = found.groups()
        date = datetime.datetime.fromisoformat(whole + (zone or ""))
        kind = "date without a zone" if date.tzinfo is None else "date with a zone"
        since = date.replace(tzinfo=None) - datetime.datetime(1970, 1, 1)
        since -= date.utcoffset() or datetime.timedelta()
        return kind, since.days * 86400 + since.seconds + float(f"0{fraction or ''}0")
    if not math.isfinite(number):
        raise ValueError("not finite")
    return "number", number


class _Row(NamedTuple):
    """place : for a refusal; names : of its fields; hashes: of its blocks"""

    place: str
    names: tuple[str, str, str]
    time: str
    prompt: str
    output: str
    hashes: tuple[int, ...] = ()


def _tokens(where: str, column: str, text: str, least: int) -> int:
    try:
        count = int(text)
    except ValueError:
        raise ConfigError(f"{where}: {column} must be a whole number, not {text!r}") from None
    if not least <= count <= MOST_TOKENS:
        hint = "; --skip leaves such rows out" if not count else ""
        raise ConfigError(f"{where}: {column} must be 1..{MOST_TOKENS}, not {count}{hint}")
    return count


def _table_rows(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
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
        yield _Row(where, COLUMNS, time, prompt, output)


def _object_rows(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, 1):
        where = f"{path}: line {number}"
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigError(f"{where} must be a JSON object") from None
        if not isinstance(found, dict):
            raise ConfigError(f"{where} must be a JSON object")
        if missing := [name for name in FIELDS if name not in found]:
            raise ConfigError(f"{where} lacks {', '.join(missing)}")
        time, prompt, output = (found[name] for name in FIELDS)
        if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time):
            raise ConfigError(f"{where}: timestamp must be milliseconds, not {time!r}")
        hashes = found.get("hash_ids") or []
        if not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
            raise ConfigError(f"{where}: hash_ids must be a list of whole numbers")
        yield _Row(where, FIELDS, repr(time / 1000), str(prompt), str(output), tuple(hashes))


def _parsed(rows: Iterable[_Row], most: int | None, skipped: list[str] | None) -> list[Request]:
    made: list[Request] = []
    first = last = 0.0
    first_kind = ""
    same: dict[int, int] = {}  # one object for all lengths that are equal: requests are many
    least = 1 if skipped is None else 0
    for row in rows:
        if most is not None and len(made) >= most:
            break
        where, (column, *lengths) = row.place, row.names
        try:
            kind, at = _seconds(row.time)
        except ValueError:
            text = "a date, or seconds"
            raise ConfigError(f"{where}: {column} must be {text}, not {row.time!r}") from None
        prompt, output = (
            _tokens(where, name, text, least)
            for name, text in zip(lengths, (row.prompt, row.output), strict=True)
        )
        if skipped is not None and not (prompt and output):
            skipped.append(where)
            continue
        if not made:
            first = last = at
            first_kind = kind
        if kind != first_kind:
            raise ConfigError(f"{where}: {column} must be a {first_kind}, not {row.time!r}")
        if at < last:
            raise ConfigError(f"{where}: {column} {row.time!r} is before that of the row above")
        last = at
        prompt, output = same.setdefault(prompt, prompt), same.setdefault(output, output)
        made.append(Request(len(made) + 1, at - first, prompt, output, row.hashes))
    return made


def read_trace(
    path: Path, most: int | None = None, skipped: list[str] | None = None
) -> list[Request]:
    """The first ``most`` requests of a file, all if None. ConfigError: the file is not a trace.

    skipped : gets the places of rows without a prompt or an output; None: these are refused
    """
    read = _object_rows if path.suffix == ".jsonl" else _table_rows
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            made = _parsed(read(path, lines), most, skipped)
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
