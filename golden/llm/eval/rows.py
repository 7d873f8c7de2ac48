"""Rows of golden.llm.eval as lines of the terminal's table, as CSV and as a tabular of LaTeX."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from golden.llm.eval.method import KINDS

Row = Mapping[str, Any]

COLUMNS = (
    "method", "perplexity", "standard error", "bits W / A / KV", "calibrated", "installed", "run",
    "memory",
)  # fmt: skip
_CSV = (
    "method", "perplexity", "standard_error", "bits_weights", "bits_activations", "bits_kv",
    "tokens", "calibration_seconds", "install_seconds", "seconds", "memory_bytes", "failed",
)  # fmt: skip
_SPECIAL = {
    "\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def _perplexity(row: Row) -> str:
    """Its figure, ``inf`` beyond float64, ``not finite`` where the model gave no number."""
    if row.get("failed") and not row["window_losses"]:
        return "not finite"
    return "inf" if row["perplexity"] is None else f"{row['perplexity']:.3f}"


def _standard_error(row: Row) -> str:
    error = row.get("standard_error")
    return "" if error is None else f"{error:.3f}"


def _bits(row: Row) -> list[str]:
    return [f"{row['bits'][kind]:.3g}" for kind in KINDS]


def cells(row: Row) -> list[str]:
    """Returns the cells that the terminal shows under ``COLUMNS``."""
    seconds = [f"{row[f'{each}seconds']:.1f} s" for each in ("calibration_", "install_", "")]
    memory = f"{row['memory_bytes'] / 2**30:.2f} GiB"
    figures = [_perplexity(row), _standard_error(row), " / ".join(_bits(row))]
    return [row["method"], *figures, *seconds, memory]


def csv_table(rows: Iterable[Row]) -> str:
    """A head and a line per row, with all digits. What is not known or not finite is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        bits = {f"bits_{kind}": row["bits"][kind] for kind in KINDS}
        known = "" if _perplexity(row) in ("inf", "not finite") else row["perplexity"]
        writer.writerow({**row, **bits, "perplexity": known})
    return text.getvalue()


def latex_table(rows: Iterable[Row], title: str) -> str:
    """A tabular of method, perplexity with its standard error, and stored bits."""
    lines = [
        f"% {' '.join(title.split())}",
        r"\begin{tabular}{lrrrr}",
        r"method & perplexity & bits W & bits A & bits KV \\",
        r"\hline",
    ]
    for row in rows:
        error = _standard_error(row)
        figure = f"${_perplexity(row)} \\pm {error}$" if error else _perplexity(row)
        lines.append(" & ".join([_escaped(row["method"]), figure, *_bits(row)]) + r" \\")
    return "\n".join([*lines, r"\end{tabular}", ""])


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
