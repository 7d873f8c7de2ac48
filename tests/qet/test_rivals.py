"""golden.qet.rivals and the report of the claims: all bits, errors by hand, tables of few runs.

Shown to fail: ranges that are not counted; a range of the whole matrix for rows. The errors of the
last seed were once those of all seeds.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.eval.reports import qet_claims as report
from golden.qet.rivals import SPANS, VARIANTS, round_to_nearest


def normal(rows, columns, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(0.5, 0.16, (rows, columns)))


@pytest.mark.parametrize(("span", "bits"), [("matrix", 7), ("row", 7), ("group", 6)])
def test_rounding_takes_the_most_bits_that_fit(span, bits):
    """At ratio 4 of FP32 there are 8 bits; the ranges take some of them."""
    matrix = normal(40, 100)
    found = round_to_nearest(matrix, Fraction(4), span, 32)
    ranges = {"matrix": 1, "row": 40, "group": 40 * 2}[span]
    assert found.bits == bits
    assert found.stored_bits == 40 * 100 * bits + ranges * 64
    assert found.stored_bits <= 40 * 100 * 8 < found.stored_bits + 40 * 100


def test_rounding_by_hand():
    matrix = normal(3, 70, 1)
    for span, parts in (("row", [(0, 70)]), ("group", [(0, 64), (64, 70)])):
        found = round_to_nearest(matrix, Fraction(3), span, 32)
        for row in range(3):
            for first, last in parts:
                values = matrix[row, first:last].tolist()
                low, high = min(values), max(values)
                step = (high - low) / (2**found.bits - 1)
                expected = [low + step * round((value - low) / step) for value in values]
                assert found.matrix[row, first:last].tolist() == pytest.approx(expected, abs=1e-12)


def test_a_constant_matrix_is_exact_and_no_bit_is_refused():
    for span in SPANS:
        found = round_to_nearest(torch.full((9, 65), 2.5), Fraction(2), span, 32)
        assert bool((found.matrix == 2.5).all())
        with pytest.raises(ConfigError, match="ratio must leave one bit per element beside"):
            round_to_nearest(normal(4, 70), Fraction(40), span, 32)


def test_variants_are_those_of_the_paper():
    shapes = {name: variant.shape(1024, 512, 32, Fraction(4)) for name, variant in VARIANTS.items()}
    entries = {name: [stage.entries for stage in shape.stages] for name, shape in shapes.items()}
    assert entries == {
        "PQ": [223], "Vanilla": [175], "RQO": [117, 38], "CQO": [537], "QET": [350, 110]
    }  # fmt: skip
    assert all(shape.ratio >= 4 for shape in shapes.values())


def test_the_synthetic_sets():
    plain, far = (report.synthetic(1024, 512, outliers, 3) for outliers in (False, True))
    assert plain.dtype == torch.float32
    assert 0 <= float(plain.min()) < 0.02
    assert float(plain.mean()) == pytest.approx(0.5, abs=1e-3)
    assert float(plain.std()) == pytest.approx(0.1586, abs=1e-3)  # 0.16 before the ends are cut
    hit = far != plain
    assert 20 < int(hit.sum()) < 90  # 52 of 524,288
    assert float(far[hit].abs().max()) > 50
    assert float(far.abs().max()) <= 100


def test_tables_from_small_sets(monkeypatch, capsys):
    monkeypatch.setattr(report, "_SETS", {"synthetic 1": (128, 64), "synthetic 2": (64, 64)})
    data = ["--data", "synthetic 1", "synthetic 1, outliers"]
    assert report.main([*data, "--ratios", "2", "4", "16", "--seeds", "0", "1"]) == 0
    shown = capsys.readouterr()
    assert "synthetic 1, outliers, seed 1" in shown.err
    tables = dict(part.split("\n", 1) for part in shown.out.split("qet_")[1:])
    assert set(tables) == {
        "settings", "headline", "ratios", "ablation", "rtn", "levels", "table1"
    }  # fmt: skip
    row = next(line for line in tables["headline"].splitlines() if "| synthetic 1 |" in line)
    assert [cell.strip() for cell in row.split("|")][3] == "36.53"
    assert "| synthetic 1 | 128 x 64, FP32 |" in tables["settings"]
    assert "ratio 16" in tables["ratios"]


def test_a_mean_over_seeds_is_of_their_ratios():
    found = {}
    for seed, (over, under) in enumerate([(1.0, 2.0), (9.0, 10.0)]):
        for method, mse in (("QET", over), ("PQ", under)):
            found["V", 4, method, seed] = {"mse": mse, "books": 0.5, "range": 0.25}
    tables = report.sections(found, [])
    assert "| V | - | 45.83 | 70.00 (50.00..90.00) | 11.89 |" in tables["qet_headline"]
    assert "| 4 | V | 25.00 | 50.00 | 25.00 | 50.00 | 1.6 | 87.5 |" in tables["qet_table1"]


def test_bad_options_are_one_line(capsys):
    with pytest.raises(SystemExit) as status:
        report.main(["--data", "gist"])
    assert status.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
