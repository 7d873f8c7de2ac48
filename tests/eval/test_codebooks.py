"""golden.llm.reports.codebooks: paired differences, and the sections of docs/accuracy.md.

Shown to fail:

- a standard error of losses that are not paired;
- seeds of one window that count as windows;
- a bit-true table that runs the fast path.
"""

import math

import pytest

from golden.llm.eval.accuracy.arguments import PAGE
from golden.llm.eval.accuracy.bench import Record, Row
from golden.llm.eval.accuracy.report import Report, load_report
from golden.llm.reports import codebooks
from golden.llm.reports.codebooks import TABLES, Paired, Variants, main, section
from golden.markers import fill

SEEDS = Variants("a", {"any": "one", "half": "two"}, is_exact=False, by_seed=True)
METHODS = Variants("b", {"x": "one", "y": "two"}, is_exact=True, by_seed=False)


def report(losses: dict[tuple[str, int], list[float]]) -> Report:
    settings = {
        "model": "m", "fingerprint": "f" * 64, "text": "t", "sha256": "5" * 64, "windows": 2,
        "seq": 9, "seeds": [0, 1], "calibration": {"windows": 1, "tokens": 4, "skip": 18},
    }  # fmt: skip
    rows = {
        Row("t", method, seed): Record(perplexity=1.0, window_losses=each)
        for (method, seed), each in losses.items()
    }
    return Report(settings, rows)


def test_pairs_have_the_error_of_their_differences():
    """Losses that are far apart, with nearly the same difference: a small error."""
    found = Paired.of([1.0, 5.0, 9.0], [1.1, 5.2, 9.3])
    assert found.mean == pytest.approx(0.2)
    assert found.error == pytest.approx(0.1 / math.sqrt(3))
    assert Paired.of([1.0], [2.0]).cells == ["+1.0000", "", "+171.83%"]


def test_a_line_for_each_seed_and_one_over_seeds():
    made = section(SEEDS, report({
        ("one", 0): [1.0, 2.0], ("two", 0): [1.1, 2.3],
        ("one", 1): [1.0, 2.0], ("two", 1): [1.0, 2.2],
    }))  # fmt: skip
    assert "| seed 0 | 4.482 | 5.474 | +0.2000 | 0.1000 | +22.14% |" in made
    assert "| 2 seeds | 4.482 | 5.207 | +0.1500 | 0.0500 | +16.18% |" in made
    assert "| predictions | 16 of each row |" in made


def test_seeds_of_a_window_count_once():
    losses = {
        ("one", 0): [1.0, 2.0], ("two", 0): [1.2, 2.2],
        ("one", 1): [1.0, 2.0], ("two", 1): [1.0, 2.1],
    }  # fmt: skip
    made = section(METHODS, report(losses))
    assert "| x | 0, 1 | 4.482 |  |  |  |" in made
    assert "| y | 0, 1 | 5.078 | +0.1250 | 0.0250 | +13.31% |" in made
    del losses["two", 1]  # compared on the seed of both
    made = section(METHODS, report(losses))
    assert "| x | 0, 1 | 4.482 |  |  |  |" in made
    assert "| y | 0 | 5.474 | +0.2000 | 0.0000 | +22.14% |" in made


@pytest.mark.parametrize("which", TABLES, ids=lambda which: which.name)
def test_command_line(which, tiny, tmp_path, monkeypatch, capsys):
    """Rows of the tiny model, their section, and the same section from the rows alone."""
    monkeypatch.setattr("golden.llm.checkpoint.load", lambda *_: tiny)
    text, page = tmp_path / "text.txt", tmp_path / "page.md"
    text.write_text("the quick brown fox jumps over it. " * 10)
    empty = f"<!-- generated: {which.name} -->\n<!-- end generated -->\n"
    page.write_text(empty)
    line = [
        which.name, "--text", str(text), "--windows", "2", "--seq", "16", "--skip", "32",
        "--calibration-windows", "2", "--calibration-tokens", "16", "--seeds", "0", "--device",
        "cpu", "--work", str(tmp_path / "work"), "--page", str(page),
    ]  # fmt: skip
    assert main(line) == 0, capsys.readouterr().err
    found = page.read_text()
    for label in which.methods:
        assert label in found
    assert f"| arithmetic | {'bit-true' if which.is_exact else 'the fast path'} |" in found
    rows = load_report(tmp_path / "page" / f"{which.name}.json").records.values()
    assert len({each.perplexity for each in rows}) == len(which.methods)  # no two run the same
    page.write_text(empty)
    assert main([which.name, "--page", str(page), "--page-only"]) == 0
    assert page.read_text() == found


def test_what_is_evaluated_is_not_learned_from(capsys):
    assert main(["products", "--windows", "2", "--seq", "16", "--skip", "31"]) == 2
    assert "skip must be at least 32, the tokens that are evaluated, not 31" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("which", TABLES, ids=lambda which: which.name)
def test_the_page_of_the_project_is_of_its_rows(which):
    file = PAGE.with_suffix("") / f"{which.name}.json"
    text = PAGE.read_text()
    assert f"<!-- generated: {which.name} -->" in text
    if file.exists():
        made = {which.name: section(which, load_report(file))}
        assert fill(text, made, is_partial=True) == text, (
            f"run {codebooks.__name__} {which.name} --page-only"
        )
