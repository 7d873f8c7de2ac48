"""Pictures of a run and of a comparison, as SVG."""

from collections.abc import Mapping, Sequence
from typing import Any

from golden.config import ConfigError
from sim.cost import Cost
from sim.engine import NOT_SCALED, Engine, check_fits
from sim.model import Model
from sim.svg import Axis, Line, LineChart, StackedBars, page
from sim.work import Pass

_POINTS = 12  # of a curve, at most


def _shares(cost: Cost, steps: int) -> Mapping[str, float]:
    """Milliseconds of a step by operation; what takes less than 3 % is one part."""
    made: dict[str, float] = {}
    for each in cost.spent:
        name = each.name if each.seconds >= 0.03 * cost.seconds else "others"
        made[name] = made.get(name, 0.0) + 1e3 * each.seconds / steps
    return made


def _breakdown(prefill: Cost, decode: Cost, steps: int) -> list[StackedBars]:
    charts = []
    for title, cost, count in (("Prefill", prefill, 1), ("A step of decoding", decode, steps)):
        if cost.spent:
            shares = {name: [value] for name, value in _shares(cost, count).items()}
            charts.append(StackedBars(title, Axis("ms"), [""], shares))
    return charts


def _roofline(engine: Engine, cost: Cost) -> LineChart:
    """Operations by their products per byte.

    A product whose weights came while another command ran may lie above the memory's line.
    """
    points = []
    for each in cost.spent:
        amount = sum(each.traffic.values())
        if amount and each.macs and each.seconds:
            points.append(Line(each.name, [(each.macs / amount, each.macs / each.seconds)], True))
    least, most = (f(x for line in points for x, _ in line.points) for f in (min, max))
    # The legend takes the right: no point lies there.
    roof = [(x, x * engine.memory.peak) for x in (least / 3, most * 30)]
    lines = [Line("peak of the memory", roof, is_dashed=True), *points]
    return LineChart(
        "Roofline of a step", Axis("products per byte", True), Axis("products per second", True),
        lines,
    )  # fmt: skip


def _doubling(most: int) -> list[int]:
    found = [1 << n for n in range(most.bit_length()) if 1 << n <= most]
    return found[-_POINTS:]


def _tokens(engine: Engine, model: Model, batch: int, context: int) -> float | None:
    try:
        check_fits(engine, model, batch, context + 1)
        return batch / engine.cost(model, Pass.decode(batch, context)).seconds
    except ConfigError:
        return None


def _curve(
    title: str, label: str, name: str, found: Sequence[tuple[int, float | None]]
) -> LineChart:
    line = Line(name, [(x, y) for x, y in found if y is not None], has_marks=True)
    return LineChart(title, Axis(label, True), Axis("tokens/s", low=0), [line])


def pictures(
    engine: Engine, model: Model, prefill: Cost, decode: Cost, sizes: Mapping[str, int]
) -> str:
    """Breakdown, roofline, and tokens per second by batch and by context, on one sheet.

    sizes: ``batch``, ``prompt`` and ``out`` of the run.
    """
    steps = max(sizes["out"] - 1, 1)
    charts: list[LineChart | StackedBars] = [*_breakdown(prefill, decode, steps)]
    cost = decode if decode.spent else prefill
    charts.append(_roofline(engine, cost))
    context = sizes["prompt"] + sizes["out"] - 1
    batches = [(b, _tokens(engine, model, b, context)) for b in _doubling(64)]
    charts.append(_curve(f"After {context} tokens", "sequences", engine.hardware.name, batches))
    longest = [(c, _tokens(engine, model, sizes["batch"], c)) for c in _doubling(1 << 17)]
    charts.append(_curve(f"Batch {sizes['batch']}", "cached tokens", engine.hardware.name, longest))
    return page(charts)


def _scatter(title: str, label: str, lines: Sequence[Line]) -> LineChart:
    """Points with room around them, and on the right for the legend."""
    x, y = ([point[n] for line in lines for point in line.points] for n in (0, 1))
    return LineChart(
        title, Axis(label, True, min(x) / 2, max(x) * 8), Axis("tokens/s", True, 0.7 * min(y)),
        lines,
    )  # fmt: skip


def comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """Seconds of the request; tokens per second by joules per token and, where stated, by area.

    A figure that is not scaled is left out.
    """
    able = [row for row in rows if "refused" not in row]
    first = [row["first_token_seconds"] for row in able]
    request = StackedBars(
        "The whole request", Axis("s"), [row["hardware"] for row in able],
        {
            "first token": first,
            "others": [row["seconds"] - each for row, each in zip(able, first, strict=True)],
        },
    )  # fmt: skip
    energy = [
        Line(row["hardware"], [(row["joules_per_token"], row["tokens_per_second"])], True)
        for row in able
        if row["joules_per_token"] != NOT_SCALED and row["joules_per_token"] > 0
    ]
    charts: list[LineChart | StackedBars] = [request]
    if energy:
        charts.append(_scatter("Energy of decoding", "J per token", energy))
    areas = [
        Line(f"{row['hardware']}, {name[5:-4]}", [(value, row["tokens_per_second"])], True)
        for row in able
        for name, value in row.items()
        if name.startswith("area_") and value != NOT_SCALED
    ]
    if areas:
        charts.append(_scatter("Area, decoding", "mm2", areas))
    return page(charts)
