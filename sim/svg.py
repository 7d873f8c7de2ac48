"""Line charts and stacked bars as SVG. The same data gives the same bytes. Pure Python.

``page`` sets charts in columns on one sheet. Colours differ in lightness too, so a reader who sees
no red or green can name each one. A long line keeps its least and greatest value per pixel.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from html import escape

# Okabe and Ito's colours, black last.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c7a00", "#000000",
)  # fmt: skip
_WIDTH, _HEIGHT = 560, 340  # of a chart, with its texts
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 34, 48  # margins of the plot
_ROW = 16  # height of a line of the legend
_MOST = 1e100
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclasses.dataclass(frozen=True)
class Axis:
    """label: with the unit. low, high: ends of the axis; None: those of the data."""

    label: str
    is_log: bool = False
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Line:
    """Points in order of x. has_marks: a dot at each point; is_dashed: for a bound."""

    name: str
    points: Sequence[tuple[float, float]]
    has_marks: bool = False
    is_dashed: bool = False


@dataclasses.dataclass(frozen=True)
class LineChart:
    """Lines over common axes. A logarithmic axis leaves out points of 0 or less."""

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]


@dataclasses.dataclass(frozen=True)
class StackedBars:
    """parts: name of a part to its amount in each of ``bars``, from the bottom up."""

    title: str
    y: Axis
    bars: Sequence[str]
    parts: Mapping[str, Sequence[float]]


def amount(value: float) -> str:
    """A number in at most four digits: 0.25, 12, 1.5k, 3M, 2e-6."""
    if value == 0:
        return "0"
    for scale, prefix in _PREFIXES:
        if abs(value) >= scale:
            return f"{value / scale:.4g}{prefix}"
    text = f"{value:.4g}"
    return text if "e" not in text else text.replace("e-0", "e-")


_LEAST = 1e-300  # of a range; a sixth of a smaller one may have no power of ten


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in ``low..high``, ``most`` at most."""
    if not high - low > _LEAST:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (power, 2 * power, 5 * power, 10 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    return [each * step for each in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / 6))
    found = [10.0**each for each in range(first, last + 1, every)]
    return found if len(found) > 1 else ticks(low, high)


class _Scale:
    """Data to pixels along one axis."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float):
        low = min(values, default=1.0 if axis.is_log else 0.0) if axis.low is None else axis.low
        high = max(values, default=1.0) if axis.high is None else axis.high
        if high - low <= 1e-9 * max(abs(high), abs(low)):
            # One value: an axis around it.
            more = max(abs(low), 1.0)
            low, high = (low / 2, low * 2) if axis.is_log else (low - more, low + more)
        self.is_log, self.low, self.high, self._start, self._end = (
            axis.is_log,
            low,
            high,
            start,
            end,
        )
        self.ticks = _decades(low, high) if axis.is_log else ticks(low, high)

    def __call__(self, value: float) -> float:
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self._start + min(max(share, 0.0), 1.0) * (self._end - self._start)


def _has(axis: Axis, value: float) -> bool:
    """Whether the value has a place on the axis; what no pixel can show has none."""
    return abs(value) < _MOST and (not axis.is_log or value > 1 / _MOST)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text, quote=False)}</text>'


def _frame(title: str, x_label: str, y: Axis, scale: _Scale) -> list[str]:
    """Title, labels, and the lines and numbers of the y axis."""
    left, right, bottom = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    middle = (_TOP + bottom) / 2
    made = [
        _text(left, 20, title, ' class="title"'),
        _text((left + right) / 2, _HEIGHT - 10, x_label, ' text-anchor="middle"'),
        _text(
            16, middle, y.label, f' text-anchor="middle" transform="rotate(-90 16 {middle:.1f})"'
        ),
    ]
    for tick in scale.ticks:
        at = scale(tick)
        made.append(f'<path class="grid" d="M{left} {at:.1f}H{right}"/>')
        made.append(_text(left - 6, at + 4, amount(tick), ' text-anchor="end"'))
    made.append(f'<path class="axis" d="M{left} {_TOP}V{bottom}H{right}"/>')
    return made


def _legend(names: Sequence[str]) -> list[str]:
    made = []
    width = 18 + 6.5 * max(map(len, names), default=0)
    x = _WIDTH - _RIGHT - width - 6
    if len(names) > 1:
        height = _ROW * len(names) + 6
        made.append(
            f'<rect class="legend" x="{x:.1f}" y="{_TOP + 4}" width="{width + 4:.1f}" '
            f'height="{height}"/>'
        )
        for row, name in enumerate(names):
            y = _TOP + 10 + _ROW * row
            colour = COLOURS[row % len(COLOURS)]
            made.append(f'<rect x="{x + 5:.1f}" y="{y}" width="10" height="10" fill="{colour}"/>')
            made.append(_text(x + 20, y + 9, name))
    return made


def _thinned(pixels: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keeps, of the points of one column of pixels, the first, least, greatest and last."""
    made: list[tuple[float, float]] = []
    start = 0
    for at in range(1, len(pixels) + 1):
        if at == len(pixels) or int(pixels[at][0]) != int(pixels[start][0]):
            column = pixels[start:at]
            if len(column) > 4:
                places = sorted(range(len(column)), key=lambda n: column[n][1])
                column = [column[n] for n in sorted({0, places[0], places[-1], len(column) - 1})]
            made += column
            start = at
    return made


def _line_chart(chart: LineChart) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    shown = [
        [(x, y) for x, y in line.points if _has(chart.x, x) and _has(chart.y, y)]
        for line in chart.lines
    ]
    every = [point for points in shown for point in points]
    x_scale = _Scale(chart.x, [x for x, _ in every], _LEFT, _WIDTH - _RIGHT)
    y_scale = _Scale(chart.y, [y for _, y in every], bottom, _TOP)
    made = _frame(chart.title, chart.x.label, chart.y, y_scale)
    for tick in x_scale.ticks:
        at = x_scale(tick)
        made.append(f'<path class="axis" d="M{at:.1f} {bottom}v4"/>')
        made.append(_text(at, bottom + 17, amount(tick), ' text-anchor="middle"'))
    for number, line in enumerate(chart.lines):
        colour = COLOURS[number % len(COLOURS)]
        pixels = _thinned([(x_scale(x), y_scale(y)) for x, y in shown[number]])
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        dash = ' stroke-dasharray="6 4"' if line.is_dashed else ""
        made.append(f'<polyline class="line" stroke="{colour}"{dash} points="{path}"/>')
        if line.has_marks:
            made += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in pixels
            ]
    return made + _legend([line.name for line in chart.lines])


def _stacked_bars(chart: StackedBars) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    sums = [sum(values[n] for values in chart.parts.values()) for n in range(len(chart.bars))]
    scale = _Scale(dataclasses.replace(chart.y, is_log=False), [0.0, *sums], bottom, _TOP)
    made = _frame(chart.title, "", chart.y, scale)
    width = (_WIDTH - _LEFT - _RIGHT) / max(len(chart.bars), 1)
    for at, bar in enumerate(chart.bars):
        x = _LEFT + at * width
        base = 0.0
        for number, values in enumerate(chart.parts.values()):
            top, low = scale(base + values[at]), scale(base)
            base += values[at]
            made.append(
                f'<rect x="{x + 0.2 * width:.1f}" y="{top:.1f}" width="{0.6 * width:.1f}" '
                f'height="{low - top:.1f}" fill="{COLOURS[number % len(COLOURS)]}"/>'
            )
        made.append(_text(x + width / 2, scale(base) - 4, amount(base), ' text-anchor="middle"'))
        made.append(_text(x + width / 2, bottom + 17, bar, ' text-anchor="middle"'))
    return made + _legend(list(chart.parts))


_STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-weight:bold;font-size:13px}"
    ".grid{stroke:#ddd}.axis{stroke:#444;fill:none}.line{fill:none;stroke-width:1.6}"
    ".legend{fill:#fff;fill-opacity:.8;stroke:#ccc}"
)


def page(charts: Sequence[LineChart | StackedBars], columns: int = 2) -> str:
    """One SVG with all charts, row by row."""
    columns = min(columns, max(len(charts), 1))
    rows = -(-len(charts) // columns)
    width, height = columns * _WIDTH, max(rows, 1) * _HEIGHT
    size = f'width="{width}" height="{height}"'
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size}>',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, chart in enumerate(charts):
        row, column = divmod(number, columns)
        drawn = _line_chart(chart) if isinstance(chart, LineChart) else _stacked_bars(chart)
        made.append(f'<g transform="translate({column * _WIDTH} {row * _HEIGHT})">')
        made += [*drawn, "</g>"]
    return "\n".join([*made, "</svg>"]) + "\n"
