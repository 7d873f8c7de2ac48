"""Perplexities of rows and their paired differences to the unchanged model."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from golden.llm.eval.accuracy.bench import Row
from golden.llm.eval.accuracy.report import Report
from golden.llm.reports.codebooks import Paired
from golden.llm.reports.million.tables import PLAIN


@dataclasses.dataclass(frozen=True)
class Measured:
    """values: perplexity of each seed; losses: mean over seeds of each window, nats.

    against: the difference to the unchanged model on the same windows. kv: stored bits per value.
    """

    values: tuple[float, ...]
    losses: tuple[float, ...]
    against: Paired
    kv: float

    @property
    def mean(self) -> float:
        """Perplexity of the mean loss."""
        return math.exp(statistics.fmean(self.losses))


def _seeds(
    report: Report, text: str, method: str, seeds: bool, every: bool = False
) -> list[list[float]]:
    """Window losses of the first seed, and of each other one that has as many windows, or any."""
    chosen = report.seeds if seeds else report.seeds[:1]
    found = (report.records.get(Row(text, method, seed)) for seed in chosen)
    losses = [each.window_losses for each in found if each is not None and not each.failed]
    return [each for each in losses if every or len(each) >= len(losses[0])]


def failure(report: Report, text: str, method: str) -> str:
    """Why the first seed failed, or ""."""
    return report.failure(text, method)


def measured(
    report: Report, text: str, methods: Sequence[str], seeds: bool, every_seed: bool = False
) -> list[Measured | None]:
    """Each method on the windows that all of them have run; None: it has run none.

    seeds: those with as many windows as the first, or with ``every_seed`` all of them.
    """
    every = [_seeds(report, text, method, seeds, every_seed) for method in methods]
    plain = _seeds(report, text, PLAIN, False)
    counts = [len(each) for own in every for each in own]
    if not plain or not counts:
        return [None] * len(methods)
    count = min(len(plain[0]), *counts)
    found: list[Measured | None] = []
    for method, own in zip(methods, every, strict=True):
        if not own:
            found.append(None)
            continue
        cut = [each[:count] for each in own]
        losses = tuple(statistics.fmean(each) for each in zip(*cut, strict=True))
        values = tuple(math.exp(statistics.fmean(each)) for each in cut)
        first = report.records[Row(text, method, report.seeds[0])]
        against = Paired.of(plain[0][:count], losses)
        found.append(Measured(values, losses, against, first.bits["kv"]))
    return found


def paired(own: Measured, other: Measured) -> Paired:
    """other - own, nats; both have the same windows."""
    return Paired.of(own.losses, other.losses)


def percent(difference: Paired) -> str:
    """Writes what a difference does to the perplexity, with its standard error."""
    return _with_error(math.expm1(difference.mean), math.exp(difference.mean) * difference.error)


def sensitivity(without: Measured, with_outliers: Measured) -> str:
    """``1 - perplexity with / perplexity without``, with its standard error."""
    found = paired(without, with_outliers)
    return _with_error(-math.expm1(found.mean), math.exp(found.mean) * found.error)


def _with_error(value: float, error: float) -> str:
    if math.isnan(error):
        return f"{value:+.2%}"
    return f"{value:+.2%} ± {error:.2%}"
