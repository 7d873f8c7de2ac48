"""The progress that long work shows where stderr is a file. Shown to fail: nothing is written."""

import io
import sys

from golden.llm.eval import progress


def test_a_file_gets_a_line_each_half_minute(monkeypatch, capsys):
    clock = iter(range(0, 1000, 12))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    assert list(progress.track(range(6), "weights")) == list(range(6))
    assert capsys.readouterr().err.splitlines() == [
        "weights: 3 of 6 after 36 s",
        "weights: 6 of 6 after 72 s",
    ]


def test_the_number_of_items_may_be_unknown(monkeypatch, capsys):
    clock = iter(range(0, 1000, 40))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    assert list(progress.track(iter("ab"), "windows")) == ["a", "b"]
    assert "windows: 1 after 40 s" in capsys.readouterr().err


def test_short_work_writes_nothing(capsys):
    assert list(progress.track([1, 2], "layers")) == [1, 2]
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    assert list(progress.track([1, 2], "layers")) == [1, 2]
    assert "layers" in shown.getvalue()
