"""An inventory of the five papers: every number and trend, and what answers it.

An answer is a row of ``sim.claims``, a line of another page of docs, or a reason why there is none.
A row is named by its figure and by a part of its text. ``check`` refuses an entry that names
nothing, and a row that no entry names.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from golden.config import ConfigError
from golden.markers import table
from sim.claims.claim import STATUSES, Claim, Judged

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILE = Path(__file__).with_name("inventory.json")
_FOUR = ("Table I", "Table II", "Table III", "Table IV")


def _numbered(figures: int, *others: str) -> tuple[str, ...]:
    return (*(f"Figure {n}" for n in range(1, figures + 1)), *others)


# Figures and tables of the texts. VQ-LLM's text at hand ends within section VI.
NUMBERED: dict[str, tuple[str, ...]] = {
    "KLLM": _numbered(12, *_FOUR),
    "Oaken": _numbered(14, "Table 1", "Table 2", "Table 3", "Table 4"),
    "MILLION": _numbered(7, *_FOUR),
    "QET": _numbered(5, "Table 1", "Theorem 1", "Theorem 2"),
    "VQ-LLM": _numbered(12, *_FOUR[:3]),
}
_FIELDS = ("where", "claim", "rows", "pages", "reason")


class Entry(NamedTuple):
    """A claim of a paper, and its answer.

    where : figure, table or section; claim : in one line
    rows : figure and part of the text, of the rows that answer it
    pages : page and part of a line, of the lines that answer it
    reason : why nothing answers it, or what the rows leave out
    """

    paper: str
    where: str
    claim: str
    rows: tuple[tuple[str, str], ...] = ()
    pages: tuple[tuple[str, str], ...] = ()
    reason: str = ""


def _pairs(where: str, name: str, found: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(found, list) or not all(
        isinstance(each, list) and len(each) == 2 and all(isinstance(x, str) for x in each)
        for each in found
    ):
        raise ConfigError(f"{where}.{name} must be pairs of texts, not {str(found)[:80]!r}")
    return tuple((first, second) for first, second in found)


def _entry(where: str, paper: str, found: object) -> Entry:
    if not isinstance(found, dict):
        raise ConfigError(f"{where} must be an object, not {str(found)[:80]!r}")
    if unknown := sorted(set(found) - set(_FIELDS)):
        raise ConfigError(f"{where} has unknown fields: {', '.join(unknown)}")
    texts = {name: found.get(name, "") for name in ("where", "claim", "reason")}
    for name, value in texts.items():
        if not isinstance(value, str) or (not value and name != "reason"):
            raise ConfigError(f"{where}.{name} must be a text, not {value!r}")
    rows, pages = (_pairs(where, name, found.get(name, [])) for name in ("rows", "pages"))
    return Entry(paper, texts["where"], texts["claim"], rows, pages, texts["reason"])


def entries_of(path: Path = FILE) -> list[Entry]:
    """The entries of a file, by paper. ConfigError: it is none, or a field is odd."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name}: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(each, list) for each in found.values()):
        raise ConfigError(f"{path.name} must be an object of lists, one of each paper")
    if unknown := sorted(set(found) - set(NUMBERED)):
        raise ConfigError(f"{path.name}: papers must be of {', '.join(NUMBERED)}, not {unknown[0]}")
    return [
        _entry(f"{path.name}: {paper}[{n}]", paper, each)
        for paper, every in found.items()
        for n, each in enumerate(every)
    ]


def named(entry: Entry, claims: Iterable[Claim]) -> list[Claim]:
    """The rows that an entry names. ConfigError: a part of it names none."""
    own = [each for each in claims if each.paper == entry.paper]
    made: list[Claim] = []
    for figure, part in entry.rows:
        found = [each for each in own if each.figure == figure and part in each.what]
        if not found:
            raise ConfigError(f"{entry.paper}, {entry.where}: no row of {figure} has {part!r}")
        made += [each for each in found if each not in made]
    return made


@functools.cache
def _page(docs: Path, name: str) -> str:
    try:
        return (docs / name).read_text()
    except OSError as error:
        raise ConfigError(f"{name}: {error}") from None


def check(entries: Sequence[Entry], claims: Sequence[Claim], docs: Path | None = DOCS) -> None:
    """ConfigError: an entry without an answer, or a row without an entry.

    docs : the pages; None where an installation has none, whose lines are then not looked for
    """
    seen: set[int] = set()
    for entry in entries:
        if not (entry.rows or entry.pages or entry.reason):
            raise ConfigError(f"{entry.paper}, {entry.where}: {entry.claim!r} has no answer")
        seen |= {id(each) for each in named(entry, claims)}
        for name, part in entry.pages if docs else ():
            if part not in _page(docs, name):
                raise ConfigError(f"{entry.paper}, {entry.where}: {name} has no line {part!r}")
    for each in claims:
        if id(each) not in seen:
            raise ConfigError(
                f"{each.paper}, {each.figure}: the inventory has no entry for {each.what!r}"
            )
    for paper, places in NUMBERED.items():
        have = {entry.where for entry in entries if entry.paper == paper}
        if missing := [each for each in places if each not in have]:
            raise ConfigError(f"{paper}: the inventory has no entry of {', '.join(missing)}")


def _answer(entry: Entry, judged: Mapping[int, Judged], claims: Sequence[Claim]) -> str:
    """Names the statuses of the rows, the pages and the reason."""
    statuses = [judged[id(each)].status for each in named(entry, claims)]
    parts = []
    if statuses:
        counts = (f"{statuses.count(each)} {each}" for each in STATUSES if each in statuses)
        parts.append(f"[rows](claims.md#{entry.paper.lower()}): {', '.join(counts)}")
    names = dict.fromkeys(name for name, _ in entry.pages)
    parts += [f"[{Path(name).stem}]({name})" for name in names]
    return "; ".join([*parts, *([entry.reason] if entry.reason else [])])


def sections(entries: Sequence[Entry], judged: Sequence[Judged]) -> dict[str, str]:
    """The page's tables: each entry of a paper with its answer, and how many have each kind."""
    claims = [each.claim for each in judged]
    by_id = {id(each.claim): each for each in judged}
    made, counts = {}, []
    for paper in NUMBERED:
        own = [each for each in entries if each.paper == paper]
        shown = [[each.where, each.claim, _answer(each, by_id, claims)] for each in own]
        name = f"inventory_{paper.lower().replace('-', '')}"
        made[name] = table(("where", "claim", "answer"), shown, align_right=False)
        rows = sum(bool(each.rows) for each in own)
        pages = sum(bool(each.pages) and not each.rows for each in own)
        counts.append([paper, len(own), rows, pages, len(own) - rows - pages])
    head = ("paper", "entries", "rows of claims.md", "another page", "a reason alone")
    made["inventory_summary"] = table(head, counts)
    return made
