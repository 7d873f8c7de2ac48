"""``golden.markers``: only text between markers changes. Seen to fail: ``old`` always kept."""

import pytest

from golden.markers import fill, table

PAGE = """a
<!-- generated: one -->
old
<!-- end generated -->
b
<!-- generated: two -->
<!-- end generated -->
"""


def test_fills_named_sections():
    filled = fill(PAGE, {"one": "new\n"})
    assert filled == PAGE.replace("old", "new")
    assert fill(filled, {"two": lambda: "made\n"}) == filled.replace("two -->\n", "two -->\nmade\n")
    assert fill(PAGE, {}) == PAGE


def test_missing_section():
    with pytest.raises(ValueError, match="the page has no section 'three'"):
        fill(PAGE, {"three": "", "one": ""})
    assert fill(PAGE, {"three": "", "one": "x\n"}, is_partial=True) == PAGE.replace("old", "x")


def test_table():
    assert table(("a", "b"), [(1, 2)]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |\n"
    assert table(("a",), [], align_right=False) == "| a |\n| --- |\n"
