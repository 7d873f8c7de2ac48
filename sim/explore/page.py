"""The page: one file of HTML with its data, its script and its charts, for a browser offline.

The charts are Vega-Lite's. ``vl_convert`` has its script, which a folder of the cache keeps.
"""

import dataclasses
import html
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from golden.files import replacing
from sim.explore.accuracy import Accuracy, Sources
from sim.explore.chart import FAMILIES, ROOM, TEMPLATE
from sim.explore.commands import evaluate, simulate
from sim.explore.figures import KINDS, Figures, Record, figures, unknown
from sim.explore.grid import Grid, Point, Setup
from sim.explore.table import changed_text
from sim.model import Model

FIGURES = tuple(field.name for field in dataclasses.fields(Figures))
CHANGES = ("lanes", "ports", "bandwidth")
FIGURE_KINDS = ("time", "energy", "area", "bits", "bytes")
_TEMPLATE = Path(__file__).with_name("page.html")
_LICENCE = (
    "Vega, Vega-Lite and Vega-Embed: BSD 3-Clause, copyright University of Washington Interactive "
    "Data Lab; of the package vl-convert-python"
)
_DIGITS = 6  # of a number of the page


def script(folder: Path) -> str:
    """The script that draws the charts, as one function that is called at once.

    ModuleNotFoundError: the extra ``explore`` is not installed.
    """
    import vl_convert

    version = importlib.metadata.version("vl-convert-python")
    kept = folder / f"vega-{version}.js"
    if kept.is_file():
        return kept.read_text()
    made = f"(() => {{{vl_convert.javascript_bundle()}}})();"  # type: ignore[call-arg]
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(kept) as part:
        part.write_text(made)
    return made


class _Texts:
    """Texts by number: most occur in many points."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def _short(value: Any) -> Any:
    """A number with as many digits as the page has; a text as it is."""
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _loss(accuracy: Accuracy, model: str) -> dict[str, Any]:
    made = dataclasses.asdict(accuracy)
    return {**made, "command": evaluate(model, accuracy.method)}


def _record(record: Record, model: Model, texts: _Texts) -> Any:
    """A point of the page: figures, their kinds, operations, energies, reasons, commands."""
    if "refused" in record:
        return texts.of(record["refused"])
    found, energy = figures(record, model), record["energy_joules"]
    lacking = {name: unknown(record, name) for name in FIGURES if getattr(found, name) is None}
    return {
        "f": [_short(getattr(found, name)) for name in FIGURES],
        "k": [KINDS.index(record["kinds"][name]) for name in FIGURE_KINDS],
        "u": {name: texts.of(why) for name, why in lacking.items()},
        "o": [
            [
                texts.of(each["operation"]),
                *(_short(each[name]) for name in ("seconds", "share")),
                texts.of(each["binds"]),
                *(_short(each[name]) for name in ("slack_seconds", "bytes")),
            ]
            for each in record["operations"]
        ],
        "e": []
        if isinstance(energy, str)
        else [[texts.of(name), *map(_short, each)] for name, each in energy.items()],
        "x": [texts.of(each) for each in record["extrapolated"]],
        "n": [texts.of(each) for each in record["not_scaled"]],
        "b": [texts.of(each) for each in record["commands"]],
        "l": [texts.of(each) for each in record["left_out"]],
    }


def _places(grid: Grid, setups: Sequence[Setup]) -> list[dict[str, int]]:
    """The place of each setup in the lists of the grid; -1 where its chip has nothing to change."""
    varied = {
        (setup.hw, field)
        for setup in setups
        for field in CHANGES
        if getattr(setup, field) is not None
    }
    return [
        {
            field: getattr(grid, field).index(getattr(setup, field))
            if (setup.hw, field) in varied
            else -1
            for field in CHANGES
        }
        for setup in setups
    ]


def data(
    grid: Grid,
    model: tuple[str, Model],
    records: Mapping[Point, Record],
    facts: Mapping[str, Mapping[str, Any]],
    sources: Sources,
) -> dict[str, Any]:
    """All that the page shows, in plain values.

    model : as commands have it, and its sizes
    facts : of each chip, as ``sim.explore.measure.facts``
    """
    texts, name, sizes = _Texts(), *model
    points: dict[Setup, list[Any]] = {setup: [] for setup in grid.setups()}
    for point, record in records.items():
        places = [grid.batch.index(point.batch), grid.context.index(point.context)]
        points[point.setup].append([*places, _record(record, sizes, texts)])
    return {
        "model": name,
        "out": grid.out[0],
        "axes": {
            "batch": list(grid.batch),
            "context": list(grid.context),
            **{field: [changed_text(value) for value in getattr(grid, field)] for field in CHANGES},
        },
        "chart": TEMPLATE,
        "room": ROOM,
        "families": FAMILIES,
        "kinds": KINDS,
        "figures": FIGURES,
        "figureKinds": FIGURE_KINDS,
        "chips": [
            {"name": hw, **facts[hw], "accuracy": _loss(sources.of(hw), name)} for hw in grid.hw
        ],
        "setups": [
            {
                "chip": grid.hw.index(setup.hw),
                **place,
                "run": simulate(setup, name),
                "points": points[setup],
            }
            for setup, place in zip(points, _places(grid, list(points)), strict=True)
        ],
        "texts": list(texts.numbers),
    }


def page(found: Mapping[str, Any], chart_script: str) -> str:
    """The whole file."""
    values = json.dumps(found, separators=(",", ":")).replace("<", "\\u003c")
    template = _TEMPLATE.read_text()
    for mark, text in (
        ("@TITLE@", html.escape(f"Senbazuru: chips for {found['model']}")),
        ("@LICENCE@", _LICENCE),
        ("@CHARTS@", chart_script),
        ("@DATA@", values),
    ):
        before, _, after = template.partition(mark)
        template = before + text + after
    return template
