"""The English of the pages and docstrings: short sentences, and the field's words.

``tests/prose.py`` splits the text and holds the word list. ``python tests/prose.py FILE`` prints
the faults of a file. Seen to fail: LIMIT 26, ``behind`` off the list, fences not skipped, a page on
NOT_YET that passes.
"""

import re

import pytest

from tests.prose import LIMIT, ROOT, docstring, faults, judge, markdown, prose_files

# Files that are not yet rewritten. The list may only shrink: a listed file that passes fails.
NOT_YET = """
""".split()

FILES = prose_files()


def test_not_yet_names_files():
    assert sorted(set(NOT_YET)) == NOT_YET
    missing = sorted(set(NOT_YET) - set(FILES))
    assert not missing, f"moved or deleted, change NOT_YET: {missing}"


@pytest.mark.parametrize("name", FILES)
def test_prose(name):
    found = [f"{name}:{each.line}: {each.reason}: {each.text}" for each in faults(ROOT / name)]
    if name in NOT_YET:
        assert found, f"{name} passes: take it off NOT_YET"
    else:
        assert not found, "\n".join(found)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".md")])
def test_links_name_files(name):
    """Each relative link of a page names a file or folder. Seen to fail with a page renamed."""
    text = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(), flags=re.S | re.M)
    links = re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", re.sub(r"`[^`\n]*`", "", text))
    local = [link for link in links if "://" not in link]
    missing = [link for link in local if not ((ROOT / name).parent / link).exists()]
    assert not missing, missing


PAGES = [name for name in FILES if name.endswith(".md") and name != "CHANGELOG.md"]


@pytest.mark.parametrize("name", PAGES)
def test_named_files_exist(name):
    """Each source file and module that a page names exists. Seen to fail with a folder renamed."""
    text = (ROOT / name).read_text()
    place = r"(?<![\w/.-])((?:golden|hdl|tb|synth|tests|docs)/[\w/.-]+\.(?:py|md|json))\b"
    files = re.findall(place, text)
    modules = re.findall(r"python -m ((?:golden|hdl|tb|synth)\.[\w.]*\w)", text)
    places = {module: ROOT / module.replace(".", "/") for module in modules}
    missing = [file for file in files if not (ROOT / file).exists() and "thing" not in file]
    missing += [
        module
        for module, place in places.items()
        if not place.with_suffix(".py").exists() and not (place / "__main__.py").exists()
    ]
    assert not missing, missing


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


def test_a_fault_names_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\nText.\n\n{sentence(26)}\n")
    assert [fault.line for fault in faults(page)] == [5]
    code = tmp_path / "code.py"
    code.write_text(f'"""A module.\n\n{sentence(26)}\n"""\n\n\ndef f():\n    """Behind."""\n')
    assert [(fault.line, fault.reason) for fault in faults(code)] == [
        (3, "26 words"),
        (8, "'Behind': after"),
    ]
