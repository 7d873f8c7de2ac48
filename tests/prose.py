"""Split Markdown pages and docstrings into sentences, and judge each sentence.

``python tests/prose.py FILE...`` prints each fault as ``file:line: reason: sentence``. Without a
file it judges the whole tree. ``tests/test_prose.py`` applies the rule as a test.

A docstring may not begin with a word such as ``Of`` or ``What``: its first sentence would lack a
subject or a verb. ``Whether`` begins the docstring of a predicate.

A sentence ends at ``.``, ``!`` or ``?`` before a space. It also ends with its paragraph, list item,
heading or table cell. A semicolon also ends a fragment in a table cell. The splitter skips fenced
and indented code, generated parts, HTML comments, images and the targets of links. A piece of
inline code counts as one word. In a docstring it also skips formulas: lines indented deeper than
the text.
"""

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 25  # words of one sentence

# Everyday words and the field's words that replace them.
WORDS = [
    (r"behind", "after"),
    (r"beside", "next to, compared with"),
    (r"stands?|stood", "is, is stored"),
    (r"ask(?:s|ed|ing)? for", "requests"),
    (r"tell(?:s|ing)?\s(?:\S+\s){1,6}from|told\s(?:\S+\s){1,6}from", "distinguishes"),
    (r"(?:the|its|their|a) rest(?! of the world)", "remainder"),
    (r"tak(?:es?|en|ing) and drop(?:s|ped|ping)?|took and dropped", "discards"),
    (r"on (?:its|their|the) way", "in flight"),
    (r"h(?:o|e)ld(?:s|ing)? up(?! to\b)", "stall"),
]
# A docstring that begins so has no subject or no verb: "Of the number of a group."
_FRAGMENT = re.compile(
    r"(?:And|As|At|By|For|From|How|In|Inside|Of|Or|To|What|Where|Which|Whose|With|Without)(?![\w-])"
)
_WORDS = [(re.compile(rf"(?<![\w-])(?:{word})(?![\w-])", re.I), better) for word, better in WORDS]

# A full stop after one of these ends no sentence.
_ABBREVIATIONS = re.compile(
    r"(?:^|[\s(])(?:e\.g|i\.e|cf|vs|etc|al|[Ff]igs?|[Ss]ecs?|[Ee]qs?|[Nn]os?|[Tt]ab|[Vv]ol|pp?|approx|resp)\.$"
)
_END = re.compile(r"(?<![.])[.!?][)\]\"'*_”]*(?=\s)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_FENCE = re.compile(r"\s*(```+|~~~+)")
_HEADING = re.compile(r"#{1,6}\s+")
_UNDERLINE = re.compile(r"\s*(?:-{3,}|={3,})\s*$")
# ``name: text``, ``name, name : text`` or ``name  text``: the first line of a definition.
_NAME = r"[`*]*[a-z_]\w*(?:\[[^\]]*\])?[`*]*"
_DEFINITION = re.compile(rf"{_NAME}(?:, {_NAME})*(?:\s?:\s+|\s\s+)\S")
_SECTIONS = {"Parameters", "Members", "Attributes", "Returns", "Raises", "Yields", "Ports"}


@dataclasses.dataclass(frozen=True)
class Sentence:
    """One sentence: the line on which its paragraph starts, and its text with markup removed."""

    line: int
    text: str

    @property
    def words(self) -> int:
        """Pieces between spaces that hold a letter or a digit."""
        return sum(any(map(str.isalnum, piece)) for piece in self.text.split())


@dataclasses.dataclass(frozen=True)
class Fault:
    """A sentence that breaks the rule, and the reason."""

    line: int
    reason: str
    text: str


def _plain(text: str) -> str:
    """``text`` without markup: inline code becomes the word CODE, a link its text."""
    text = re.sub(r"<!--.*?-->", " ", text, flags=re.S)
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)(?:s\b)?", " CODE ", text, flags=re.S)
    text = re.sub(r"\$[^$\n]+\$", " FORMULA ", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<https?:[^>]*>|https?://\S+", " LINK ", text)
    text = re.sub(r"\s([,.;:!?)])", r"\1", re.sub(r"\s+", " ", text))
    return re.sub(r"([(])\s", r"\1", text).strip()


def _sentences(line: int, text: str, fragments: bool = False) -> Iterator[Sentence]:
    text = _plain(text)
    start = 0
    ends = [match.end() for match in _END.finditer(text) if text[match.start()] != "."
            or not _ABBREVIATIONS.search(text[: match.start() + 1])]  # fmt: skip
    for end in [*ends, len(text)]:
        pieces = text[start:end].split("; ") if fragments else [text[start:end]]
        yield from (Sentence(line, piece.strip()) for piece in pieces if piece.strip())
        start = end


def _blocks(lines: list[tuple[int, str]], deep: bool) -> Iterator[tuple[int, str, bool]]:
    """(line, text, has fragments) of each paragraph, item, heading and table cell.

    A semicolon ends a fragment in a table cell and in a definition of a docstring. A paragraph of
    definitions starts with ``name: text``. Each further line of this form starts a new one.
    ``deep``: a line indented more than its paragraph is a formula, even without a blank line before
    it. This is the form of docstrings.
    """
    block: list[str] = []
    first = 0
    indent = 0  # of the present paragraph's text
    blank = True
    item = False  # the present paragraph belongs to a list item
    definition = False  # the present paragraph is one definition of a docstring

    def done():
        nonlocal block
        ready, block = block, []
        return [(first, "\n".join(ready), definition)] if ready else []

    for number, line in lines:
        width = len(line) - len(line.lstrip())
        if not line.strip():
            yield from done()
            blank = True
            continue
        if match := _ITEM.match(line):
            if not (width >= indent + 4 and blank and not item):
                yield from done()
                first, indent, item, blank, definition = number, match.end(), True, False, False
                block = [line[match.end() :]]
                continue
        if line.lstrip().startswith("|"):
            yield from done()
            for cell in re.split(r"(?<!\\)\|(?=(?:[^`]*`[^`]*`)*[^`]*$)", line.strip().strip("|")):
                if not re.fullmatch(r"\s*:?-+:?\s*", cell):
                    yield number, cell, True
            blank = True
            continue
        if match := _HEADING.match(line):
            yield from done()
            yield number, line[match.end() :], False
            blank = True
            continue
        if blank and not block:
            if item and width < indent:
                item, indent = False, 0
            if width >= (indent if item else 0) + 4 or (deep and width > (indent if item else 0)):
                continue  # indented code
            first, definition = number, deep and bool(_DEFINITION.match(line.strip()))
        elif definition and block and width <= indent and _DEFINITION.match(line.strip()):
            yield from done()
            first = number
        elif deep and width > indent and block and not item and not definition:
            yield from done()
            continue  # a formula under its paragraph
        elif not block:
            first = number
        blank = False
        block.append(line.strip().lstrip("> "))
    yield from done()


def _without_code(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines outside fences, generated parts and comments; a skipped line reads as blank."""
    kept = []
    fence = ""
    generated = comment = False
    for number, line in lines:
        match = _FENCE.match(line)
        skip = True
        if fence:
            if match and match[1].startswith(fence):
                fence = ""
        elif generated:
            generated = "<!-- end generated -->" not in line
        elif comment:
            comment = "-->" not in line
        elif match:
            fence = match[1]
        elif "<!-- generated:" in line:
            generated = True
        elif "<!--" in line and "-->" not in line:
            comment = True
        elif line.strip() != "$$":
            skip = False
        kept.append((number, "" if skip else line))
    return kept


def markdown(text: str) -> list[Sentence]:
    """The sentences of a Markdown page."""
    lines = _without_code(list(enumerate(text.splitlines(), 1)))
    return [
        sentence
        for line, block, cell in _blocks(lines, deep=False)
        for sentence in _sentences(line, block, cell)
    ]


def docstring(text: str, line: int = 1) -> list[Sentence]:
    """The sentences of a docstring whose first line is ``line`` of its file.

    In a section such as ``Members`` the names are skipped and each description is a paragraph.
    """
    rows = text.expandtabs().splitlines()
    margins = [len(row) - len(row.lstrip()) for row in rows[1:] if row.strip()]
    if len(rows) > 1 and not rows[-1].strip():
        margins.append(len(rows[-1]))  # the line of the closing quotes
    margin = min(margins, default=0)
    rows = [rows[0].strip(), *(row[margin:] for row in rows[1:])] if rows else []
    lines = _without_code(list(enumerate(rows, line)))
    out = []
    section = False
    for at, (_number, row) in enumerate(lines):
        after = lines[at + 1][1] if at + 1 < len(lines) else ""
        if row.strip() in _SECTIONS and _UNDERLINE.match(after):
            section = True
            out.append((_number, ""))
        elif _UNDERLINE.match(row):
            out.append((_number, ""))
        elif _UNDERLINE.match(after) and row.strip():
            section = False
            out.append((_number, ""))
        elif section:
            out.append((_number, row.strip() if row.startswith(" ") else ""))
        else:
            out.append((_number, row[:-1] if row.rstrip().endswith("::") else row))
    return [
        sentence
        for first, block, cell in _blocks(out, deep=True)
        for sentence in _sentences(first, block, cell)
    ]


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False):
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            assert isinstance(first.value, ast.Constant)
            yield first.lineno, str(first.value.value)


def judge(sentences: list[Sentence]) -> list[Fault]:
    """The faults of ``sentences``: more than LIMIT words, or a word of the list."""
    found = []
    for sentence in sentences:
        if sentence.words > LIMIT:
            found.append(Fault(sentence.line, f"{sentence.words} words", sentence.text))
        for word, better in _WORDS:
            if match := word.search(sentence.text):
                found.append(Fault(sentence.line, f"'{match[0]}': {better}", sentence.text))
    return found


def beginning(text: str, line: int = 1) -> list[Fault]:
    """The fault of a docstring whose first words leave it without a subject or a verb."""
    if not (match := _FRAGMENT.match(text.lstrip())):
        return []
    first = _plain(text.strip().partition("\n\n")[0])
    return [Fault(line, f"'{match[0]}' begins it: begin with the subject or a verb", first)]


def faults(path: Path) -> list[Fault]:
    """The faults of a Markdown page, or of the docstrings of a Python file."""
    text = path.read_text()
    if path.suffix == ".md":
        return judge(markdown(text))
    return [
        fault
        for line, each in _docstrings(text)
        for fault in (*beginning(each, line), *judge(docstring(each, line)))
    ]


def prose_files() -> list[str]:
    """Each file under the rule, as a path from the root."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += (ROOT / "docs").rglob("*.md")
    pages.append(ROOT / "conftest.py")
    for folder in ("docs", "golden", "hdl", "tb", "senbazuru", "synth", "sim", "tests"):
        pages += (ROOT / folder).rglob("*.py")
    return sorted(path.relative_to(ROOT).as_posix() for path in pages if path.exists())


def main() -> int:
    """Print the faults of the named files. The exit status is 1 if there are some."""
    count = 0
    for name in sys.argv[1:] or prose_files():
        for fault in faults(ROOT / name):
            count += 1
            print(f"{name}:{fault.line}: {fault.reason}: {fault.text}")
    print(f"{count} faults", file=sys.stderr)
    return int(bool(count))


if __name__ == "__main__":
    sys.exit(main())
