"""The English of the pages and docstrings: short sentences, and the field's words.

``tests/prose.py`` splits the text and holds the word list. ``python tests/prose.py FILE`` prints
the faults of a file. Seen to fail: LIMIT 26, ``behind`` off the list, fences not skipped, ``What``
off the beginnings.
"""

import re
from pathlib import Path

import pytest

from tests.prose import LIMIT, ROOT, beginning, docstring, faults, judge, markdown, prose_files

FILES = prose_files()
PAGES = [name for name in FILES if name.endswith(".md") and name != "CHANGELOG.md"]


def test_prose():
    """All faults of the tree at once: ``python tests/prose.py`` prints the same lines."""
    assert len(FILES) > 1000
    found = [
        f"{name}:{each.line}: {each.reason}: {each.text}"
        for name in FILES
        for each in faults(ROOT / name)
    ]
    assert not found, "\n".join(found)


def missing_links(text: str, folder: Path) -> list[str]:
    """Relative links of a page that name neither file nor folder."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    links = re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", re.sub(r"`[^`\n]*`", "", text))
    return [link for link in links if "://" not in link and not (folder / link).exists()]


def missing_files(text: str) -> list[str]:
    """Source files and modules that a page names and the tree has not."""
    place = r"(?<![\w/.-])((?:golden|hdl|tb|synth|tests|docs)/[\w/.-]+\.(?:py|md|json))\b"
    files = re.findall(place, text)
    modules = re.findall(r"python -m ((?:golden|hdl|tb|synth)\.[\w.]*\w)", text)
    places = {module: ROOT / module.replace(".", "/") for module in modules}
    missing = [file for file in files if not (ROOT / file).exists() and "thing" not in file]
    return missing + [
        module
        for module, place in places.items()
        if not place.with_suffix(".py").exists() and not (place / "__main__.py").exists()
    ]


def test_pages_link_to_and_name_what_exists():
    assert missing_links("[a](none.md) `[b](no.md)` [c](https://d) [e](tests/)", ROOT) == [
        "none.md"
    ]
    assert missing_files("hdl/none.py, hdl/block.py, `python -m golden.none`") == [
        "hdl/none.py", "golden.none"
    ]  # fmt: skip
    found = []
    for name in FILES:
        if name.endswith(".md"):
            text, page = (ROOT / name).read_text(), ROOT / name
            found += [f"{name}: {link}" for link in missing_links(text, page.parent)]
            found += [f"{name}: {file}" for file in missing_files(text) if name in PAGES]
    assert not found, "\n".join(found)


def reasons(text, split=markdown):
    return [fault.reason for fault in judge(split(text))]


def sentence(words):
    return " ".join(["word"] * words) + "."


@pytest.mark.parametrize("split", [markdown, docstring])
def test_a_sentence_of_26_words_fails(split):
    assert LIMIT == 25
    assert reasons(sentence(25), split) == []
    assert reasons(sentence(26), split) == ["26 words"]
    assert reasons(f"{sentence(25)} {sentence(25)}", split) == []
    assert reasons(f"{sentence(5)}\n{sentence(20)}\n{sentence(26)}", split) == ["26 words"]


def test_a_sentence_goes_on_over_lines_and_ends_with_its_block():
    half = " ".join(["word"] * 13)
    assert reasons(f"{half}\n{half}") == ["26 words"]
    assert reasons(f"{half}\n\n{half}") == []
    assert reasons(f"- {half}\n- {half}") == []
    assert reasons(f"- {half}\n  {half}") == ["26 words"]
    assert reasons(f"1. {half}\n2. {half}\n   {half}") == ["26 words"]
    assert reasons(f"# {half}\n{half}") == []
    assert reasons(f"{half}\n\n- {half}\n\n  {half}\n\n{half}") == []
    assert reasons(f"- {half}\n  - {half}\n    {half}") == ["26 words"]


def test_cells_are_judged_one_by_one():
    half = " ".join(["word"] * 13)
    table = f"| a | b |\n|---|---:|\n| {half} | {half} |\n"
    assert reasons(table) == []
    assert reasons(table.replace(f"{half} | {half}", f"{half} {half} | a")) == ["26 words"]
    assert reasons(table.replace(f"{half} | {half}", f"{half}; {half} | a")) == []
    assert reasons("| `a | b` behind | c |") == ["'behind': after"]


@pytest.mark.parametrize(
    "text",
    [
        "The word lies behind the queue.",
        "Beside the queue there is a word.",
        "The word stands in the queue.",
        "The engine asks for a word.",
        "The bit tells a head from a tail.",
        "The sink drops the rest.",
        "It takes and drops the word.",
        "The word is on its way.",
        "The sink can hold up the source.",
    ],
)
@pytest.mark.parametrize("split", [markdown, docstring])
def test_words_of_the_list_fail(text, split):
    assert len(reasons(text, split)) == 1
    assert len(reasons(f"# {text}\n", split)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "`behind`",
        "We understand it.",
        "besides",
        "a standing rule",
        "rest_of",
        "holds up to 4 words",
    ],
)
def test_code_and_other_words_pass(text):
    assert reasons(text) == []


def test_code_is_skipped():
    long = sentence(30)
    assert reasons(f"```\n{long} behind\n```\n{sentence(3)}") == []
    assert reasons(f"~~~~\n```\n{long}\n~~~~\n") == []
    assert reasons(f"text\n\n    {long}\n\ntext") == []
    assert reasons(f"<!-- generated: x -->\n{long}\n<!-- end generated -->\n{sentence(3)}") == []
    assert reasons(f"<!-- {long}\n{long} -->\n{sentence(3)}") == []
    assert reasons(f"$$\nx\n$$\n{long}") == ["30 words"]
    assert reasons(f"```\ncode\n```\n{long}") == ["30 words"]


def test_inline_code_and_links_count_as_words():
    assert reasons(f"`{sentence(30)}` {sentence(24)}") == []
    assert reasons(f"`{sentence(30)}` {sentence(25)}") == ["26 words"]
    assert reasons(f"[a b](behind/beside.md) {sentence(23)}") == []
    assert reasons(f"a = b + c {sentence(22)}") == []


def test_abbreviations_and_numbers_end_no_sentence():
    half = " ".join(["word"] * 12)
    for middle in ("e.g.", "Fig.", "1.5", "a.b", "vs.", "1, .."):
        assert reasons(f"{half} {middle} {half} word.") == ["26 words"], middle
    assert reasons(f'{half} ("word.") {half} word.') == []


def test_docstrings_skip_formulas_and_names_of_members():
    long = " ".join(["word"] * 26)
    assert reasons(f"Adds words.\n\n        y = {long}\n\n    Ends here.\n    ", docstring) == []
    assert reasons(f"Adds words::\n\n        y = {long}\n    ", docstring) == []
    members = f"Adds words.\n\n    Members\n    -------\n    i : In({long})\n        {{}}\n    "
    assert reasons(members.format("The operands."), docstring) == []
    assert reasons(members.format(long), docstring) == ["26 words"]
    assert reasons(members.format("The word behind it."), docstring) == ["'behind': after"]


def test_definitions_of_a_docstring_are_judged_one_by_one():
    half = " ".join(["word"] * 13)
    text = "Adds.\n\n    {}\n    "
    assert reasons(text.format(f"a: {half}\n    b, c: {half}"), docstring) == []
    assert reasons(text.format(f"a: {half}; {half}"), docstring) == []
    assert reasons(text.format(f"a: {half}\n        {half}\n    b: x"), docstring) == ["27 words"]
    assert reasons(text.format(f"{half}\n    a: {half}"), docstring) == ["27 words"]
    assert reasons(text.format(f"dense  {half}\n    sparse  {half}"), docstring) == []
    assert reasons(text.format("a: x\n    b: behind"), docstring) == ["'behind': after"]
    assert reasons(f"a: {half}; {half}") == ["27 words"]


@pytest.mark.parametrize(
    "text",
    [
        "Of the number of a group.",
        "What the lanes hold.",
        "Where a word lies.",
        "How a request ended.",
        "Which vectors become codes.",
        "Whose words they are.",
        "By marker.",
        "From a word to its first beat.",
        "To the nearest word.",
        "For people: two digits.",
        "With random signs.",
        "Without loading it.",
        "At most two words.",
        "As ``pack`` does.",
        "In the base unit.",
        "Inside a tile.",
        "And the words after it.",
        "Or none.",
        "\n    Of the codes of a beat.\n    ",
    ],
)
def test_a_docstring_without_subject_or_verb_fails(text):
    (fault,) = beginning(text)
    assert fault.reason == f"'{text.split()[0]}' begins it: begin with the subject or a verb"
    assert fault.text == text.strip().replace("``pack``", "CODE")


@pytest.mark.parametrize(
    "text",
    [
        "Counts the groups of a row.",
        "Words of a row.",
        "Whether a word is NaN.",
        "Whatever comes, passes.",
        "Shown to fail: What off the list.",
        "ConfigError: no codebook fits.",
        "In-place moves keep the order.",
        "AND of two words.",
        "``of(row)``: a row's words.",
    ],
)
def test_a_docstring_with_subject_or_verb_passes(text):
    assert beginning(text) == []


def test_a_fault_names_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\nText.\n\n{sentence(26)}\n")
    assert [fault.line for fault in faults(page)] == [5]
    code = tmp_path / "code.py"
    function = '\n\ndef f():\n    """Of words behind."""\n'
    code.write_text(f'"""A module.\n\n{sentence(26)}\n"""\n{function}')
    assert [(fault.line, fault.reason) for fault in faults(code)] == [
        (3, "26 words"),
        (8, "'Of' begins it: begin with the subject or a verb"),
        (8, "'behind': after"),
    ]
