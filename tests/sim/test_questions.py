"""The tables of docs/sim.md: what a comparison must say besides its steps of decoding.

Shown to fail: a cell of KLLM without parentheses; a comparison that ends with its last step.
"""

import re

import pytest

from sim import questions
from sim.engine import NOT_SCALED
from sim.validate import PAGE

_WHOLE = ("first token, s", "request, s", "request, J")
_CHIP = ("stored bits of an element of K / V", "area, mm2", "memory on the chip, MB")


def section(name: str) -> list[list[str]]:
    """Cells of a table of the page, the head first."""
    found = re.search(rf"<!-- generated: {name} -->\n(.*?)<!-- end", PAGE.read_text(), re.S)
    assert found
    lines = found[1].splitlines()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in (lines[0], *lines[2:])]


@pytest.mark.parametrize("name", ["sim_batch", "sim_context", "sim_memory", "sim_pair"])
def test_comparisons_of_the_page(name):
    head, *rows = section(name)
    labels = [row[0] for row in rows]
    for label in (*_WHOLE, *_CHIP):
        assert any(each.startswith(label) for each in labels), label
    for row in rows:
        if row[0].startswith(_CHIP):
            assert all(row), row[0]
            continue
        for chip, cell in zip(head[1:], row[1:], strict=True):
            if cell in ("", NOT_SCALED):
                continue
            is_marked = cell.strip("*").startswith("(")
            assert is_marked == chip.startswith(("kllm", "million")), (row[0], chip)


@pytest.mark.parametrize("name", ["sim_lanes", "sim_queues", "sim_functions", "sim_attention"])
def test_tables_of_kllm_alone(name):
    """All figures of a 7B model are extrapolated. The first cells of a row are what was varied."""
    varied = 2 if name in ("sim_queues", "sim_attention") else 1
    for row in section(name)[1:]:
        assert all(re.fullmatch(r"\(\d+(\.\d)?\)", cell) for cell in row[varied:] if cell), row


def test_the_page_has_what_the_command_prints():
    """The page has the comparison that takes no programs of KLLM."""
    made = questions.QUESTIONS["sim_context"]()
    assert made in PAGE.read_text()


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(248.4, 0, "248"), (1.24, 0, "1.2"), (4.4355, 1, "4.44"), (0.0561, 1, "0.056"),
     (1535.1, 1, "1535.1")],
)  # fmt: skip
def test_figures(value, digits, text):
    assert questions._shown(questions._Figure(value, False), digits) == text
    assert questions._shown(questions._Figure(value, True), digits) == f"({text})"
    assert questions._shown(None, digits) == ""
