"""The chart of points, as Vega-Lite has it: one text for the page and for a file of SVG.

``TEMPLATE`` lacks what depends on the points. ``filled`` gives it here, and ``draw`` of
``page.html`` in the browser.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

from sim.explore.table import LESS, Line, front, objectives

# Okabe and Ito's colours, each with a shape of its own.
FAMILIES = {
    "KLLM": ("#0072b2", "circle"),
    "KLLM and Oaken": ("#000000", "triangle-left"),
    "Oaken": ("#e69f00", "square"),
    "MILLION": ("#009e73", "triangle-up"),
    "VQ-LLM": ("#cc79a7", "diamond"),
    "QET": ("#d55e00", "triangle-down"),
    "GPU": ("#56b4e9", "cross"),
    "other baselines": ("#767676", "triangle-right"),
}
ROOM = 1.4  # of a logarithmic axis, around the points
_WIDTH = 640  # pixels of a file
_AXIS = {"tickCount": 5, "labelOverlap": True, "format": "~g"}
_LABELS = {"joules": "J per token", "area": "mm2", "loss": "loss of accuracy, %"}

TEMPLATE: dict[str, Any] = {
    "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
    "height": 400,
    "autosize": {"type": "fit", "contains": "padding"},
    "background": None,
    "config": {
        "font": "system-ui, sans-serif",
        "axis": {"labelFontSize": 12, "titleFontSize": 12},
        "legend": {"labelFontSize": 12},
    },
    "encoding": {
        "x": {"field": "x", "type": "quantitative", "scale": {}, "axis": dict(_AXIS)},
        "y": {
            "field": "y",
            "type": "quantitative",
            "scale": {"type": "log", "nice": False},
            "axis": {**_AXIS, "title": "tokens/s"},
        },
    },
    "layer": [
        {
            "data": {"values": []},
            "mark": {"type": "line", "color": "#1d2330", "strokeDash": [4, 3], "aria": False},
            "encoding": {"order": {"field": "x"}},
        },
        {
            "data": {"values": []},
            "mark": {"type": "point", "size": 110, "strokeWidth": 2, "opacity": 1},
            "encoding": {
                "color": {
                    "field": "family",
                    "type": "nominal",
                    "scale": {},
                    "legend": {"orient": "bottom", "title": None, "symbolStrokeWidth": 2},
                },
                "fill": {
                    "condition": {
                        "test": "datum.front === 'yes'",
                        "field": "family",
                        "type": "nominal",
                        "scale": {},
                        "legend": None,
                    },
                    "value": "transparent",
                },
                "shape": {"field": "family", "type": "nominal", "scale": {}},
                "tooltip": {"field": "label"},
                "description": {"field": "label"},
            },
        },
    ],
}


def filled(values: Sequence[dict[str, Any]], title: str) -> dict[str, Any]:
    """The chart of points with ``x``, ``y``, ``family``, ``label`` and ``front``, yes or no."""
    made = copy.deepcopy(TEMPLATE)
    line, points = made["layer"]
    line["data"]["values"] = [each for each in values if each["front"] == "yes"]
    points["data"]["values"] = list(values)
    known = [name for name in FAMILIES if any(each["family"] == name for each in values)]
    colours = {"domain": known, "range": [FAMILIES[name][0] for name in known]}
    encoding = points["encoding"]
    encoding["color"]["scale"] = encoding["fill"]["condition"]["scale"] = colours
    encoding["color"]["legend"]["columns"] = 4
    encoding["shape"]["scale"] = {
        "domain": known, "range": [FAMILIES[name][1] for name in known],
    }  # fmt: skip
    x = [each["x"] for each in values]
    scale = {"type": "log", "nice": False, "domain": [min(x) / ROOM, max(x) * ROOM]}
    if min(x) <= 0:
        scale = {"type": "symlog", "constant": 1, "nice": True}
    made["encoding"]["x"]["scale"] = scale
    made["encoding"]["x"]["axis"]["title"] = title
    y = [each["y"] for each in values]
    made["encoding"]["y"]["scale"]["domain"] = [min(y) / ROOM, max(y) * ROOM]
    return made | {"width": _WIDTH, "background": "white"}


def points(lines: Sequence[Line], families: Sequence[str], name: str) -> list[dict[str, Any]]:
    """The points of ``filled`` of the lines that have a figure of ``LESS``.

    families : of the chips of ``lines``
    """
    best = front(lines, objectives(lines))
    made = []
    for number, (line, family) in enumerate(zip(lines, families, strict=True)):
        if line.figures is None:
            continue
        value = line.accuracy.loss if name == "loss" else getattr(line.figures, LESS[name])
        if value is not None and math.isfinite(value):
            made.append(
                {
                    "x": 100 * value if name == "loss" else value,
                    "y": line.figures.tokens_per_second,
                    "family": family,
                    "front": "yes" if number in best else "no",
                    "label": line.point.setup.hw,
                }
            )
    return made


def svg(lines: Sequence[Line], families: Sequence[str], name: str = "joules") -> str:
    """The chart of a figure of ``LESS`` as SVG; empty where no line has it.

    ModuleNotFoundError: the extra ``explore`` is not installed.
    """
    import vl_convert

    found = points(lines, families, name)
    made: str = vl_convert.vegalite_to_svg(filled(found, _LABELS[name])) if found else ""
    return made
