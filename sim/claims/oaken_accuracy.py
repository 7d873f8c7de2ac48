"""Oaken's Table 2: the means of the text, from the table's cells; bits of an element and an entry.

The text states mean losses of accuracy, and not whether in points or in per cent of the accuracy.
Both readings are variants. The cells themselves are of models of 6
billion parameters and more: docs/accuracy.md has orderings on a model that is at hand.
"""

from fractions import Fraction

from golden.config import ConfigError
from golden.oaken.format import BLOCK_MAX, effective_bits, entry
from sim.claims.claim import Claim
from sim.engine import engine_of
from sim.model import find_model

_PAPER = "Oaken"
# Accuracies of Table 2 in per cent: PIQA, Winogrande, Hellaswag; Llama2-7B, 13B and 70B in each.
ACCURACY: dict[str, tuple[float, ...]] = {
    "Original": (79.05, 80.52, 82.70, 69.13, 72.80, 80.20, 75.98, 79.38, 83.82),
    "KVQuant": (78.35, 79.33, 82.21, 67.80, 71.74, 77.98, 75.82, 79.25, 83.70),
    "KIVI": (78.07, 79.05, 78.07, 67.84, 70.96, 76.81, 75.57, 78.97, 83.47),
    "QServe": (77.37, 77.48, 81.77, 65.29, 66.80, 76.09, 74.41, 76.69, 83.24),
    "Oaken": (78.29, 79.71, 82.59, 67.64, 70.56, 76.64, 73.72, 78.24, 83.50),
}
_READINGS = ("points", "per cent of the accuracy")
_NO_TASKS = (
    "needs the three tasks and models of 7 billion parameters, which are not available offline; "
    "golden.llm.eval --tasks runs them where they are"
)


def loss(variant: str) -> float:
    """The mean by which the second method is worse than the first one. ConfigError: no reading."""
    pair, reading = variant.split(", ")
    better, worse = pair.split(" - ")
    if reading not in _READINGS:
        raise ConfigError(f"reading must be one of {'; '.join(_READINGS)}, not {reading!r}")
    cells = list(zip(ACCURACY[better], ACCURACY[worse], strict=True))
    if reading == _READINGS[0]:
        return sum(a - b for a, b in cells) / len(cells)
    return 100 * sum(1 - b / a for a, b in cells) / len(cells)


def _losses() -> list[Claim]:
    losses = (
        (
            "accuracy lost against FP16", 0.87, "Original - Oaken",
            "its nine cells lose 1.41 points; the eight perplexities of Table 2 rise by 0.86 %",
        ),
        ("accuracy below KVQuant", 0.54, "KVQuant - Oaken", "its nine cells give 0.59 points"),
        (
            "accuracy below KIVI", 0.32, "KIVI - Oaken",
            "in its nine cells Oaken is 0.23 points above KIVI",
        ),
        ("accuracy above QServe", 1.38, "Oaken - QServe", "its nine cells give 1.31 points"),
    )  # fmt: skip
    return [
        Claim(
            paper=_PAPER, figure="Table 2", what=what, claimed=claimed, unit="%",
            variants=[f"{pair}, {reading}" for reading in _READINGS], measure=loss, near=1.05,
            reason=f"the paper's own arithmetic: {reason}",
        )
        for what, claimed, pair, reason in losses
    ]  # fmt: skip


def _bits_saved(variant: str) -> float:
    """Per cent of 16 bits that K and V do not take."""
    if variant in ("4.8 bits of Table 3", "4.82 bits of Table 2"):
        return 100 * (1 - float(variant.split()[0]) / 16)
    chip, model = variant.split(" with ")
    return 100 * (1 - sum(engine_of(chip).kv_bits(find_model(model), 2048)) / 32)


def _bits(variant: str) -> float:
    """Stored bits of an element with a tenth of outliers: without scales, or as our records are."""
    if variant == "4 + 8 / 10":
        return 4 + 8 / 10
    elements = int(variant.split()[0])
    return effective_bits(Fraction(1, 10), elements)


CLAIMS: list[Claim] = [
    *_losses(),
    Claim(
        paper=_PAPER, figure="Table 2", what="accuracy of Oaken on three tasks", claimed=78.29,
        unit="%", reason=_NO_TASKS,
    ),
    Claim(
        paper=_PAPER, figure="Table 2", what="bits of an element, Llama2-7B", claimed=4.82,
        unit="", variants=["4 + 8 / 10", "4096 elements of a token"], measure=_bits,
        reason="ours have scales of each token and a count of each 64 elements",
    ),
    Claim(
        paper=_PAPER, figure="text", what="bits of K and V saved, up to", claimed=70.0, unit="%",
        variants=[
            "4.8 bits of Table 3", "4.82 bits of Table 2", "oaken-hbm with llama-2-7b",
            "oaken-hbm with llama-2-13b",
        ],
        measure=_bits_saved, near=1.01,
    ),
    Claim(
        paper=_PAPER, figure="text", what="bits of an outlier's entry", claimed=8, unit="",
        variants=["golden.oaken.format"],
        measure=lambda _: float(entry(BLOCK_MAX - 1, 1, 1).bit_length()), near=1.001,
        reason="6 of the index, 1 of the group, 1 of the code; 23 with an FP16 value",
    ),
]  # fmt: skip
