"""Areas and depths against synth/baselines: the small blocks of this tree, and planted changes.

A block whose Verilog, cell table, flow and tool are those of the file is not mapped again.

Shown to fail: a regression printed with exit status 0; a limit of levels that rounds up.
"""

import dataclasses
import json
import unittest.mock

import pytest
from amaranth import Signal

from hdl.stream.register import StreamRegister
from synth import baseline
from synth.area import load_libraries
from synth.baseline import BASELINES, Change, Entry, changes, limit, measure, read

ROOMS = sorted(path.stem for path in BASELINES.glob("*.json"))


def planted(folder, monkeypatch, measured="", **factors):
    """One file with a stream_register; figures of today divided by ``factors``.

    measured None: the hash of today, so that the command takes the figures without mapping.
    """
    monkeypatch.setattr(baseline, "BASELINES", folder)
    entry = Entry("stream_register", ("width=9",), True, {}, {})
    now = measure(entry, load_libraries())
    figures = {name: value / factors.get(name, 1) for name, value in now.figures.items()}
    measured = now.measured if measured is None else measured
    kept = dataclasses.replace(now, figures=figures, measured=measured)
    baseline._write(folder / "stream.json", [kept])
    return now


@pytest.mark.telling("axi", "oaken", "stream")
@pytest.mark.parametrize("room", ROOMS)
def test_small_blocks_have_not_grown(room, capsys):
    status = baseline.main([room])
    assert status == 0, capsys.readouterr().out


def test_files_are_small_and_sorted_as_written(tmp_path):
    assert {"fp16", "stream"} <= set(ROOMS)
    for path in BASELINES.glob("*.json"):
        entries = read(path)
        assert path.stat().st_size < 64 * 1024
        assert len({entry.label for entry in entries}) == len(entries)
        written = tmp_path / path.name
        baseline._write(written, entries)
        old, new = json.loads(path.read_text()), json.loads(written.read_text())
        assert [{"measured": "", **block} for block in old["blocks"]] == new["blocks"]


def test_a_planted_regression_fails(tmp_path, monkeypatch, capsys):
    now = planted(tmp_path, monkeypatch, um2=1.05)
    before = now.figures["um2"] / 1.05
    assert baseline.main([]) == 1
    line, last = capsys.readouterr().out.splitlines()
    assert line == (
        f"stream_register width=9: um2 {before:g} -> {now.figures['um2']:g} (+5.0%), "
        f"above the limit of {before * 1.02:g}"
    )
    assert last == "1 configurations, 1 mapped again, 1 regressions"
    assert baseline.main(["--write"]) == 0
    capsys.readouterr()
    assert baseline.main([]) == 0
    assert capsys.readouterr().out == "1 configurations, 0 mapped again, 0 regressions\n"


def test_a_block_with_one_more_register_fails(tmp_path, monkeypatch, capsys):
    """The defect is in the block, not in the file. The hash of the old block finds it."""
    planted(tmp_path, monkeypatch, measured=None)
    elaborate = StreamRegister.elaborate

    def larger(self, platform):
        m = elaborate(self, platform)
        words = self.i.payload.as_value()
        held = Signal(len(words), name="planted")
        m.d.sync += held.eq(held + words)
        with m.If(held.xor()):
            m.d.comb += self.o.payload.eq(0)
        return m

    monkeypatch.setattr(StreamRegister, "elaborate", larger)
    assert baseline.main([]) == 1
    shown = capsys.readouterr().out
    assert "stream_register width=9: flip_flops 11 -> " in shown
    assert "above the limit of 11" in shown


def test_an_unchanged_block_is_not_mapped_and_a_changed_flow_is(tmp_path, monkeypatch, capsys):
    """Shown to fail: a hash without the cell table."""
    planted(tmp_path, monkeypatch, measured=None)
    refused = unittest.mock.Mock(side_effect=ValueError("mapped"))
    monkeypatch.setattr(baseline, "map_modules", refused)
    assert baseline.main([]) == 0
    assert capsys.readouterr().out == "1 configurations, 0 mapped again, 0 regressions\n"
    libraries = load_libraries()
    other = dataclasses.replace(libraries, texts=(*libraries.texts, "cell"))
    monkeypatch.setattr(baseline, "load_libraries", lambda: other)
    assert baseline.main([]) == 2
    assert "mapped" in capsys.readouterr().err
    monkeypatch.setattr(baseline, "load_libraries", lambda: libraries)
    monkeypatch.setattr(baseline, "_flow", lambda: "another tool")
    assert baseline.main([]) == 2


def test_only_the_statements_of_the_flow_decide():
    """Shown to fail: a hash of the whole source; statements without their numbers."""
    source = '"""What it does."""\n\ndef area(cells):\n    """um2."""\n    return 2 * cells\n'
    other = '"""What it is for."""\ndef area(cells):  # in um2\n    return (2\n    * cells)\n'
    assert baseline._statements(source) == baseline._statements(other)
    assert baseline._statements(source) != baseline._statements(source.replace("2 *", "3 *"))


def test_an_improvement_is_printed_and_passes(tmp_path, monkeypatch, capsys):
    planted(tmp_path, monkeypatch, um2=0.5)
    assert baseline.main([]) == 0
    assert "(-50.0%)\n1 configurations, 1 mapped again, 0 regressions" in capsys.readouterr().out


def test_another_configuration_fails(tmp_path, monkeypatch, capsys):
    now = planted(tmp_path, monkeypatch)
    other = now.configuration | {"width": 8}
    baseline._write(tmp_path / "stream.json", [dataclasses.replace(now, configuration=other)])
    assert baseline.main([]) == 1
    assert "its configuration has changed: use --write" in capsys.readouterr().out


def test_limits():
    assert limit("um2", 100.0) == pytest.approx(102.0)
    assert limit("flip_flops", 49) == 49
    assert limit("flip_flops", 50) == 51
    assert limit("levels", 4) == 5
    assert limit("levels", 29) == 31
    entry = Entry("b", (), True, {}, {"um2": 0, "flip_flops": 10, "levels": 3})
    now = dataclasses.replace(entry, figures={"um2": 5, "flip_flops": 10, "levels": 2})
    assert [str(change) for change in changes(entry, now)] == [
        "b: um2 0 -> 5 (new), above the limit of 0",
        "b: levels 3 -> 2 (-33.3%)",
    ]
    assert not Change(entry, "levels", 4).is_regression


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ('{"version": 2, "blocks": []}', "version must be 1, not 2"),
        ('{"version": 1}', "not a file of baselines: KeyError('blocks')"),
        ('{"version": 1, "blocks": [{"block": "x"}]}', "not a file of baselines: KeyError"),
    ],
)
def test_bad_files_are_refused(text, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(baseline, "BASELINES", tmp_path)
    (tmp_path / "stream.json").write_text(text)
    assert baseline.main([]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert baseline.main(["kitchen"]) == 2
    assert "no baselines of 'kitchen'; there are stream" in capsys.readouterr().err
