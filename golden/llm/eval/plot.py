"""``golden.llm.eval --plot``: perplexity against stored bits of weights, activations, K and V."""

import math
from typing import Any

from golden.llm.eval.svg import MARKS, new_figure, scale, style, svg_bytes

_PANELS = (
    ("weights", "bits per weight"),
    ("activations", "bits per activation"),
    ("kv", "bits per element of K and V"),
)


def draw(rows: list[dict[str, Any]], title: str) -> bytes:
    """SVG of rows with ``method``, ``perplexity`` and ``bits``; the same rows give the same bytes.

    A method without a finite perplexity has no mark; the legend says so.
    """
    shown = [row for row in rows if _finite(row)]
    with style():
        drawn = new_figure(3.2 + 0.18 * math.ceil(len(rows) / 3))
        panels = drawn.subplots(1, len(_PANELS), sharey=True)
        for i, row in enumerate(rows):
            color, mark = f"C{i % 10}", MARKS[i // 10 % len(MARKS)]
            label = row["method"] if _finite(row) else f"{row['method']} (infinite)"
            for axes, (kind, _) in zip(panels, _PANELS, strict=True):
                place = ([row["bits"][kind]], [row["perplexity"]]) if _finite(row) else ([], [])
                axes.plot(*place, mark, color=color, label=label if kind == "weights" else None)
        for axes, (kind, text) in zip(panels, _PANELS, strict=True):
            axes.set_xlabel(text)
            axes.set_xlim(0, 1.05 * max((row["bits"][kind] for row in shown), default=32))
        panels[0].set_ylabel("perplexity")
        if shown:
            low = scale(panels[0].yaxis, [row["perplexity"] for row in shown])
            panels[0].set_ylim(low, None)
        drawn.suptitle(title)
        drawn.legend(loc="outside lower center", ncols=3)
        return svg_bytes(drawn)


def _finite(row: dict[str, Any]) -> bool:
    return row["perplexity"] is not None and math.isfinite(row["perplexity"])
