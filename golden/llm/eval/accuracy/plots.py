"""SVG plots of the tables: the same rows give the same bytes."""

import itertools
import math
from collections.abc import Callable
from typing import Any

from golden.llm.eval.accuracy.report import Report
from golden.llm.eval.accuracy.tables import TABLES, Table
from golden.llm.eval.svg import MARKS, new_figure, scale, style, svg_bytes


def _mean(report: Report, text: str, method: str, seeds: bool) -> float | None:
    spread = report.spread(text, method, seeds)
    return spread.mean if spread and math.isfinite(spread.mean) else None


def _kv_bits(report: Report, text: str, method: str) -> float | None:
    found = report.of(text, method, False)
    return found[0].bits["kv"] if found else None


def _bars(report: Report, which: Table) -> Any | None:
    """Perplexity by method, lowest and highest of the seeds as a line, FP32 dashed."""
    texts = report.texts(which.whole)
    entries = [
        each
        for each in which.entries
        if any(_mean(report, text, each.method, which.seeds) is not None for text in texts)
    ]
    if not entries:
        return None
    figure = new_figure(0.8 + 0.16 * len(entries) * (1 + len(texts)))
    axes = figure.add_subplot()
    width = 0.8 / len(texts)
    means = []
    for i, text in enumerate(texts):
        named = False
        for place, entry in enumerate(entries):
            spread = report.spread(text, entry.method, which.seeds)
            if spread is None or not math.isfinite(spread.mean):
                continue
            at = place + (i - (len(texts) - 1) / 2) * width
            axes.barh(at, spread.mean, width, color=f"C{i}", label=None if named else text)
            named = True
            if spread.low < spread.high:
                axes.plot((spread.low, spread.high), (at, at), color="black", linewidth=0.8)
            means.append(spread.mean)
        plain = _mean(report, text, "fp32", which.seeds)
        if plain is not None:
            axes.axvline(plain, color=f"C{i}", linestyle="--", linewidth=0.8)
            means.append(plain)
    axes.set_xlim(scale(axes.xaxis, means), None)
    axes.set_xlabel(f"perplexity, {', '.join(texts)}")
    names = [f"{each.precision} {each.label}".strip() for each in entries]
    axes.set_yticks(range(len(entries)), names)
    axes.invert_yaxis()
    if len(texts) > 1:
        axes.legend()
    return figure


def _sweep(report: Report, which: Table) -> Any | None:
    """Perplexity over the share of outliers, a line for each method and precision."""
    (text,) = report.texts(which.whole)
    lines: dict[str, list[tuple[float, float]]] = {}
    for entry in which.entries:
        mean = _mean(report, text, entry.method, which.seeds)
        name, _, share = entry.label.partition(", ")
        if mean is not None:
            line = lines.setdefault(f"{name} {entry.precision}", [])
            line.append((float(share.rstrip(" %")), mean))
    if not lines:
        return None
    figure = new_figure()
    axes = figure.add_subplot()
    for mark, (name, points) in zip(MARKS, lines.items(), strict=False):
        axes.plot(*zip(*points, strict=True), marker=mark, label=name)
    plain = _mean(report, text, "fp32", which.seeds)
    if plain is not None:
        axes.axhline(plain, color="black", linestyle="--", linewidth=0.8, label="FP32")
    scale(axes.yaxis, [mean for points in lines.values() for _, mean in points])
    axes.set_xlabel("outliers, % of the elements")
    axes.set_ylabel(f"perplexity, {text}")
    axes.legend()
    return figure


def _scatter(report: Report, which: Table) -> Any | None:
    """Perplexity over stored bits of K and V: Oaken's ratios, next to the other methods."""
    (text,) = report.texts(which.whole)
    points: dict[str, tuple[float, float]] = {}
    for entry in which.entries:
        mean = _mean(report, text, entry.method, False)
        bits = _kv_bits(report, text, entry.method)
        if mean is not None and bits is not None:
            points.setdefault(entry.method, (bits, mean))
    if not points:
        return None
    figure = new_figure()
    axes = figure.add_subplot()
    ratios = {each.method: each.label for each in which.entries if "/" in each.label}
    mine = [points[method] for method in ratios if method in points]
    if mine:
        axes.plot(*zip(*mine, strict=True), "o", color="C0", label="Oaken, by ratios")
        for method, label in ratios.items():
            if method in points:
                axes.annotate(
                    label, points[method], fontsize=7, xytext=(3, 3), textcoords="offset points"
                )
    marks = iter(MARKS[1:])
    for entry in which.entries:
        if entry.method in points and entry.method not in ratios:
            axes.plot(*points[entry.method], next(marks), label=entry.label)
    plain = _mean(report, text, "fp32", False)
    if plain is not None:
        axes.axhline(plain, color="black", linestyle="--", linewidth=0.8, label="FP32")
    axes.set_xlabel("stored bits per element of K and V")
    axes.set_ylabel(f"perplexity, {text}")
    axes.legend(fontsize=7)
    return figure


_QUANTIZED = 48  # bits of weights, activations, K and V together, up to which a method is drawn
_WORST = 8  # times FP32's perplexity; beyond it a method is of no use


def _by_bits(report: Report, which: Table) -> Any | None:
    """Perplexity over stored bits of weights, activations, K and V together, of every method."""
    text = report.texts(which.whole)[0]
    plain = _mean(report, text, "fp32", False)
    points: dict[str, tuple[float, float]] = {}
    for table in TABLES:
        for entry in table.entries if table.whole else ():
            mean = _mean(report, text, entry.method, False)
            if mean is None or plain is None or mean > _WORST * plain:
                continue
            bits = sum(report.of(text, entry.method, False)[0].bits.values())
            if bits <= _QUANTIZED:
                points[entry.method] = (bits, mean)
    if not points:
        return None
    figure = new_figure(5.0)
    axes = figure.add_subplot()
    for mark, (method, point) in zip(itertools.cycle(MARKS), points.items(), strict=False):
        axes.plot(*point, mark, label=method)
    axes.axhline(plain, color="black", linestyle="--", linewidth=0.8, label="FP32, 96 bits")
    axes.set_xlabel("stored bits of a weight, an activation and an element of K or V together")
    axes.set_ylabel(f"perplexity, {text}")
    axes.legend(fontsize=6)
    return figure


PLOTS: dict[str, Callable[[Report, Table], Any]] = {
    "precisions": _bars,
    "breakdown": _bars,
    "outliers": _sweep,
    "switches": _bars,
    "ratios": _scatter,
    "recipe": _by_bits,
}


def draw(report: Report) -> dict[str, bytes]:
    """SVG by table, of those that have rows. CheckpointError: matplotlib is missing."""
    found = {}
    with style():
        for each in TABLES:
            if each.name in PLOTS:
                figure = PLOTS[each.name](report, each)
                if figure is not None:
                    found[each.name] = svg_bytes(figure, "golden.llm.eval.accuracy")
    return found
