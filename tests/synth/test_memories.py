"""RAM figures: the table's own points, interpolation between them, RAMs of several macros.

Shown to fail: energy counted for the macros below each other too; a width of 129 bits as one macro.
"""

import itertools

import pytest

from golden.sram import CACTI, ram
from synth import report
from synth.memories import MACROS
from synth.tables.memories import memory_tables


@pytest.mark.parametrize("point", CACTI)
def test_a_point_of_the_table_is_itself(point):
    found = ram(*point)
    assert found.macros == 1
    assert (found.um2, found.read_pj, found.write_pj) == pytest.approx(CACTI[point])


def test_area_grows_with_words_and_bits():
    for ports in ("1r1w", "1rw"):
        for first, second in itertools.pairwise((64, 100, 256, 300, 1024, 4096, 5000, 9000)):
            assert ram(ports, first, 40).um2 < ram(ports, second, 40).um2
        for first, second in itertools.pairwise((8, 12, 32, 100, 128, 129, 256, 2048)):
            assert ram(ports, 512, first).um2 < ram(ports, 512, second).um2
    assert ram("1r1w", 512, 40).um2 > ram("1rw", 512, 40).um2


def test_large_rams_are_equal_macros():
    one = ram("1r1w", 256, 128)
    wide = ram("1r1w", 256, 2048)
    assert wide.macros == 16
    assert (wide.um2, wide.read_pj) == pytest.approx((16 * one.um2, 16 * one.read_pj))
    deep = ram("1r1w", 8192, 128)
    half = ram("1r1w", 4096, 128)
    assert deep.macros == 2
    assert (deep.um2, deep.read_pj) == pytest.approx((2 * half.um2, half.read_pj))
    assert ram("1rw", 64, 129).macros == 2


def test_small_rams_cost_as_much_as_the_smallest():
    assert ram("1rw", 1, 1) == ram("1rw", 64, 8)


def test_unknown_ports_are_refused():
    with pytest.raises(ValueError, match="ports must be 1r1w or 1rw, not '2rw'"):
        ram("2rw", 64, 8)


def test_macros_have_their_source():
    """um2 per bit by hand: 493.38 x 400.22 um2 / 8,192 bits, and 2.65 / 20.0192 of it."""
    first = MACROS[0]
    assert first.per_bit == pytest.approx(24.104, abs=1e-3)
    assert first.per_bit_28nm == pytest.approx(3.191, abs=1e-3)
    assert all(macro.source for macro in MACROS)


def test_reports_and_tables_show_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert report.main(["memory_shared"]) == 0
    shown = capsys.readouterr().out
    assert "CACTI 7 at 28 nm" in shown
    assert report.main(["memory_shared", "--json"]) == 0
    assert '"cacti_28nm"' in capsys.readouterr().out
    made = memory_tables()
    assert "| kllm_weight_buffer | 256 x 2048 | 1r1w | 64.00 | 16 | 0.2129 |" in made["memories"]
