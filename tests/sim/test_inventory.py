"""The inventory of the papers' claims: each entry has an answer, and each row an entry.

Shown to fail:

- a page's line that is gone, and one that nobody looks for;
- a row that no entry names;
- a figure without an entry, an entry without an answer;
- rows of another paper;
- lines that are looked for where an installation has no pages.
"""

import dataclasses
import json

import pytest

from golden.config import ConfigError
from sim.claims import __main__ as command
from sim.claims import inventory
from sim.claims.__main__ import CLAIMS
from sim.claims.claim import Claim, judge
from sim.claims.inventory import DOCS, NUMBERED, Entry, check, entries_of, named, sections

# Numbers of the abstracts and of the introductions' summaries.
_STATED = {
    "KLLM": ("9.67", "7.03", "229.50", "150.21", "7.93", "63 %", "34", "5.90", "0.43", "127"),
    "Oaken": ("1.58", "0.54", "70.0", "0.87", "8.21"),
    "MILLION": ("2.09", "4 bits", "32K", "3 TB"),
    "QET": ("5.05", "13.33", "11.89"),
    "VQ-LLM": ("64.36", "99.1", "95", "AWQ", "QoQ", "12.45", "30"),
}  # fmt: skip


def test_every_entry_has_its_answer_and_every_row_its_entry():
    check(entries_of(), CLAIMS)


def test_every_number_of_the_abstracts_is_in_an_entry():
    entries = entries_of()
    for paper, numbers in _STATED.items():
        texts = [each.claim for each in entries if each.paper == paper]
        for number in numbers:
            assert any(number in text for text in texts), f"{paper}: {number}"


def test_no_entry_is_twice():
    found = [(each.paper, each.where, each.claim) for each in entries_of()]
    assert len(found) == len(set(found))


def made(claims, monkeypatch, *entries):
    """Checks entries of a paper that has one figure."""
    monkeypatch.setattr(inventory, "NUMBERED", {"p": ("Figure 1",)})
    check(list(entries), claims)


ROW = Claim(paper="p", figure="1", what="speed of a chip", claimed=1, reason="r")


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (Entry("p", "Figure 1", "c", rows=(("1", "energy"),)), "no row of 1 has 'energy'"),
        (Entry("p", "Figure 1", "c", rows=(("2", "speed"),)), "no row of 2 has 'speed'"),
        (Entry("p", "Figure 1", "c"), "'c' has no answer"),
        (
            Entry("p", "Figure 1", "c", (("1", "speed"),), (("claims.md", "no such line at all"),)),
            "claims.md has no line 'no such line at all'",
        ),
        (Entry("p", "Figure 1", "c", (("1", "speed"),), (("none.md", "x"),)), "none.md: "),
        (Entry("p", "Figure 1", "c", reason="r"), "no entry for 'speed of a chip'"),
        (Entry("p", "Figure 2", "c", (("1", "speed"),)), "no entry of Figure 1"),
        (Entry("q", "Figure 1", "c", (("1", "speed"),)), "no row of 1 has 'speed'"),
    ],
)
def test_what_is_missing_is_one_line(monkeypatch, entry, error):
    with pytest.raises(ConfigError) as found:
        made([ROW], monkeypatch, entry)
    assert error in str(found.value)
    assert "\n" not in str(found.value)


def test_an_entry_names_rows_by_a_part_of_their_text(monkeypatch):
    other = dataclasses.replace(ROW, what="speed of another one")
    elsewhere = dataclasses.replace(ROW, paper="q")
    entry = Entry("p", "Figure 1", "c", (("1", "speed"), ("1", "another")), (), "r")
    assert named(entry, [ROW, other, elsewhere]) == [ROW, other]
    made([ROW, other], monkeypatch, entry)


def test_an_installation_has_no_pages(monkeypatch):
    """The rows are checked all the same."""
    monkeypatch.setattr(inventory, "NUMBERED", {"p": ("Figure 1",)})
    entry = Entry("p", "Figure 1", "c", (("1", "speed"),), (("none.md", "x"),))
    check([entry], [ROW], None)
    with pytest.raises(ConfigError, match="no entry for 'another'"):
        check([entry], [ROW, dataclasses.replace(ROW, what="another")], None)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[]", "must be an object of lists"),
        ("{", "inventory.json: Expecting"),
        ('{"other": []}', "papers must be of KLLM, Oaken"),
        ('{"KLLM": [1]}', r"KLLM\[0\] must be an object, not '1'"),
        ('{"KLLM": [{"where": "Figure 1"}]}', r"KLLM\[0\].claim must be a text, not ''"),
        ('{"KLLM": [{"where": 1, "claim": "c"}]}', r"KLLM\[0\].where must be a text, not 1"),
        ('{"KLLM": [{"where": "a", "claim": "c", "row": []}]}', r"\[0\] has unknown fields: row"),
        (
            '{"KLLM": [{"where": "a", "claim": "c", "rows": ["8"]}]}',
            r"KLLM\[0\].rows must be pairs of texts",
        ),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, monkeypatch, capsys, content, error):
    path = tmp_path / "inventory.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=error):
        entries_of(path)
    monkeypatch.setattr(inventory.entries_of, "__defaults__", (path,))
    assert command.main([]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_page_has_the_statuses_of_the_rows(monkeypatch):
    monkeypatch.setattr(inventory, "NUMBERED", {"p-q": ("Figure 1",)})
    claims = [
        Claim(
            paper="p-q", figure="1", what=f"speed {value}", claimed=1, variants=["a"],
            measure=lambda _, value=value: value,
        )
        for value in (1.0, 1.01, 9.0)
    ]  # fmt: skip
    entries = [
        Entry("p-q", "Figure 1", "all", (("1", "speed"),)),
        Entry("p-q", "Figure 1", "page", (), (("blocks/a.md", "x"), ("blocks/a.md", "y")), "why"),
    ]
    found = sections(entries, [judge(each) for each in claims])
    lines = found["inventory_pq"].splitlines()
    assert lines[2] == (
        "| Figure 1 | all | [rows](claims.md#p-q): 2 reproduced, 1 not reproduced |"
    )
    assert lines[3] == "| Figure 1 | page | [a](blocks/a.md); why |"
    assert found["inventory_summary"].splitlines()[2] == "| p-q | 2 | 1 | 1 | 0 |"


def test_the_committed_page_is_of_this_inventory():
    """Statuses are the command's; where and claim of every entry are compared."""
    page = (DOCS / "claims-inventory.md").read_text()
    for each in entries_of():
        assert f"| {each.where} | {each.claim} | " in page
    # The table of answers, the summary, and a head for each paper.
    heads = 4 + 2 + len(NUMBERED) + 2 * len(NUMBERED)
    assert page.count("\n| ") == len(entries_of()) + heads
    assert json.loads(inventory.FILE.read_text()).keys() == NUMBERED.keys()
