"""The report of times: tables of small matrices, and of figures by hand.

Shown to fail: bytes of FP16; errors of unlike numbers of entries next to each other; seconds by
row.
"""

import pytest

from golden.llm.reports import qet_speed as report

MARKERS = {"qet_speed_settings", "qet_times", "qet_growth", "qet_decoding", "qet_oracles"}


def cells(text):
    """Rows of a Markdown table, its head first."""
    lines = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_tables_of_figures():
    found = {
        (1000, 64, "QET"): report.Timed((90, 30), 0.64, 0.0128, 2.0),
        (1000, 64, "PQ"): report.Timed((57,), 0.32, 0.0064, 3.0),
        (1000, 64, "PQ of faiss"): report.Timed((57,), 0.16, 0.0032, 4.0),
    }
    made = report.sections(found, [["PQ, ours", "1.00", "2.00"]], [("a", "b")])
    assert made.keys() == MARKERS
    assert cells(made["qet_times"])[1:] == [
        ["1000 x 64", "QET", "90, 30", "0.64", "4.00", ""],
        ["1000 x 64", "PQ", "57", "0.32", "2.00", "-25.00"],
        ["1000 x 64", "PQ of faiss", "57", "0.16", "1.00", "+0.00"],
    ]
    assert cells(made["qet_growth"])[1] == ["1000 x 64", "10.00", "5.00", "2.50"]
    assert cells(made["qet_decoding"])[1] == ["1000 x 64", "0.020", "0.040", "0.080"]
    del found[1000, 64, "PQ of faiss"]
    made = report.sections(found, [], [])
    assert cells(made["qet_times"])[0] == ["matrix", "method", "entries", "seconds"]


def test_small_matrices_are_timed(monkeypatch, capsys):
    monkeypatch.setattr(report, "_is_there", lambda module: False)
    monkeypatch.setattr(report, "_ORACLE", (200, 16, 4))
    assert report.main(["--sizes", "256x64", "128x64", "--iterations", "2"]) == 0
    shown = capsys.readouterr()
    assert "256 x 64, QET: " in shown.err
    assert all(marker in shown.out for marker in MARKERS)
    rows = cells(shown.out.split("qet_times")[1].split("qet_growth")[0])
    assert [row[:3] for row in rows[1:4]] == [
        ["256 x 64", "QET", "93, 32"],
        ["256 x 64", "Vanilla", "45"],
        ["256 x 64", "PQ", "57"],
    ]
    oracles = cells(shown.out.split("qet_oracles")[1])
    assert [row[0] for row in oracles[1:]] == ["PQ, ours", "OPQ, ours"]
    assert float(oracles[2][1]) < float(oracles[1][1]) < 100


def test_bad_sizes_are_one_line(capsys):
    assert report.main(["--sizes", "64x20"]) == 2
    line = "qet_speed: columns must be a multiple of 8, not 64x20\n"
    assert capsys.readouterr().err == line
    with pytest.raises(SystemExit) as status:
        report.main(["--sizes", "64"])
    assert status.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
