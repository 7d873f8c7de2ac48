"""Two sets of tokens whose differences are known: KLLM, Figure 2.

Shown to fail:

- outliers of one side alone left out;
- thresholds that are not sorted;
- values without outliers over the largest magnitude with them.
"""

import pytest
import torch

from golden.llm.reports import outlier_shift
from golden.llm.reports.outlier_shift import Shift, sections, shift


def sixteen(tokens, low, high):
    """Tokens of 16 levels -1..1, and one outlier on each side of them."""
    levels = torch.linspace(-1, 1, 16).repeat(tokens, 1)
    return torch.cat([levels, torch.full((tokens, 1), low), torch.full((tokens, 1), high)], 1)


def test_outliers_move_the_centroids_and_not_what_is_left():
    """The inner values of both sets are the same 16 levels, so their centroids are too."""
    found = shift(sixteen(4, -40.0, 2.0), sixteen(4, -2.0, 10.0), 0)
    assert found.inner == pytest.approx(0, abs=1e-6)
    assert found.whole > 0.05
    assert found.thresholds == pytest.approx(0.8)


def test_the_order_of_tokens_does_not_count():
    tokens = sixteen(3, -2.0, 2.0) * torch.tensor([[1.0], [2.0], [3.0]])
    found = shift(tokens, tokens.flip(0), 0)
    assert found == pytest.approx((0, 0, 0), abs=1e-6)


def test_the_table_has_a_row_for_each_layer_and_the_papers():
    made = sections({0: [Shift(0.1, 0.02, 0.3), Shift(0.3, 0.02, 0.3)]})["outlier_shift"]
    assert "| 0 | 0.2000 (0.1000..0.3000) | 0.0200 | 0.3000 |" in made
    assert made.splitlines()[-1].endswith("| 0.14 | 0.01 | 0.29 |")


def test_a_missing_text_is_one_line(tmp_path, capsys):
    missing = str(tmp_path / "none.txt")
    arguments = ["--online", missing, "--offline", missing]
    assert outlier_shift.main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert "none.txt" in error
