"""SVG plots of the tables: the same rows give the same bytes."""

import io
import math
from collections.abc import Callable
from typing import Any

from golden.checkpoint import CheckpointError
from golden.eval.accuracy.report import Report
from golden.eval.accuracy.tables import TABLES, Table

__all__ = ["PLOTS", "draw"]

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "senbazuru",  # names of clip paths: random without it
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "axes.axisbelow": True,
}
_MARKS = "osv^Dx*P"


def _figure() -> Any:
    """Without pyplot: no state, no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(7.2, 3.6), layout="constrained")


def _bytes(figure: Any) -> bytes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = io.BytesIO()
    metadata = {"Date": None, "Creator": "golden.eval.accuracy"}
    FigureCanvasSVG(figure).print_svg(stream, metadata=metadata)
    lines = stream.getvalue().decode().splitlines()
    return "".join(line.rstrip() + "\n" for line in lines).encode()


def _mean(report: Report, text: str, method: str, whole: bool) -> float | None:
    spread = report.spread(text, method, whole)
    return spread.mean if spread and math.isfinite(spread.mean) else None


def _kv_bits(report: Report, text: str, method: str) -> float | None:
    found = report.of(text, method, False)
    return found[0].bits["kv"] if found else None


def _bars(report: Report, which: Table) -> Any | None:
    """Perplexity by method on a logarithmic axis, ranges of the seeds as lines, FP32 dashed."""
    texts = report.texts if which.whole else report.texts[:1]
    entries = [
        each
        for each in which.entries
        if any(_mean(report, text, each.method, which.whole) is not None for text in texts)
    ]
    if not entries:
        return None
    figure = _figure()
    axes = figure.add_subplot()
    width = 0.8 / len(texts)
    for i, text in enumerate(texts):
        color = f"C{i}"
        places, heights, errors = [], [], []
        for place, entry in enumerate(entries):
            spread = report.spread(text, entry.method, which.whole)
            if spread is None or not math.isfinite(spread.mean):
                continue
            places.append(place + (i - (len(texts) - 1) / 2) * width)
            heights.append(spread.mean)
            errors.append((spread.mean - spread.low, spread.high - spread.mean))
        both = [list(side) for side in zip(*errors, strict=True)] if errors else None
        axes.bar(places, heights, width, color=color, label=text, yerr=both, capsize=2)
        plain = _mean(report, text, "fp32", which.whole)
        if plain is not None:
            axes.axhline(plain, color=color, linestyle="--", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylabel("perplexity")
    names = [f"{each.precision} {each.label}".strip() for each in entries]
    axes.set_xticks(range(len(entries)), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.legend()
    return figure


def _sweep(report: Report, which: Table) -> Any | None:
    """Perplexity over the share of outliers, a line for each method and precision."""
    text = report.texts[0]
    lines: dict[str, list[tuple[float, float]]] = {}
    for entry in which.entries:
        mean = _mean(report, text, entry.method, which.whole)
        name, _, share = entry.label.partition(", ")
        if mean is not None:
            line = lines.setdefault(f"{name} {entry.precision}", [])
            line.append((float(share.rstrip(" %")), mean))
    if not lines:
        return None
    figure = _figure()
    axes = figure.add_subplot()
    for mark, (name, points) in zip(_MARKS, lines.items(), strict=False):
        axes.plot(*zip(*points, strict=True), marker=mark, label=name)
    plain = _mean(report, text, "fp32", which.whole)
    if plain is not None:
        axes.axhline(plain, color="black", linestyle="--", linewidth=0.8, label="FP32")
    axes.set_yscale("log")
    axes.set_xlabel("outliers, % of the elements")
    axes.set_ylabel(f"perplexity, {text}")
    axes.legend()
    return figure


def _scatter(report: Report, which: Table) -> Any | None:
    """Perplexity over stored bits of K and V: Oaken's ratios, and the other methods beside them."""
    text = report.texts[0]
    caches = next(each for each in TABLES if each.name == "caches")
    others = [each for each in caches.entries if each.method not in ("fp32", "fp16")]
    points: dict[str, tuple[float, float]] = {}
    for entry in (*which.entries, *others):
        mean = _mean(report, text, entry.method, False)
        bits = _kv_bits(report, text, entry.method)
        if mean is not None and bits is not None:
            points.setdefault(entry.method, (bits, mean))
    if not points:
        return None
    figure = _figure()
    axes = figure.add_subplot()
    ratios = {each.method: each.label for each in which.entries}
    mine = [points[method] for method in ratios if method in points]
    if mine:
        axes.plot(*zip(*mine, strict=True), "o", color="C0", label="Oaken, by ratios")
        for method, label in ratios.items():
            if method in points:
                axes.annotate(
                    label, points[method], fontsize=7, xytext=(3, 3), textcoords="offset points"
                )
    marks = iter(_MARKS[1:])
    for entry in others:
        if entry.method in points and entry.method not in ratios:
            axes.plot(*points[entry.method], next(marks), label=entry.label)
    plain = _mean(report, text, "fp32", False)
    if plain is not None:
        axes.axhline(plain, color="black", linestyle="--", linewidth=0.8, label="FP32")
    axes.set_xlabel("stored bits per element of K and V")
    axes.set_ylabel(f"perplexity, {text}")
    axes.legend(fontsize=7)
    return figure


PLOTS: dict[str, Callable[[Report, Table], Any]] = {
    "precisions": _bars,
    "breakdown": _bars,
    "outliers": _sweep,
    "switches": _bars,
    "ratios": _scatter,
}


def draw(report: Report) -> dict[str, bytes]:
    """SVG by table, of those that have rows. CheckpointError: matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        raise CheckpointError("plots need matplotlib: pip install 'senbazuru[dev]'") from None
    found = {}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        for each in TABLES:
            if each.name in PLOTS:
                figure = PLOTS[each.name](report, each)
                if figure is not None:
                    found[each.name] = _bytes(figure)
    return found
