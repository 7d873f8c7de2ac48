"""Figures as SVG whose bytes depend on the data alone. matplotlib is imported when one is drawn."""

import contextlib
import importlib.util
import io
from collections.abc import Iterator
from typing import Any

from golden.llm.checkpoint import CheckpointError

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "senbazuru",  # names of clip paths: random without it
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "axes.axisbelow": True,
}
MARKS = "osv^Dx*P"


def check_matplotlib() -> None:
    """CheckpointError: matplotlib is missing. Does not import it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CheckpointError("plots need matplotlib: pip install 'senbazuru[plots]'")


@contextlib.contextmanager
def style() -> Iterator[None]:
    """matplotlib's defaults with ours, whatever the user's files say; CheckpointError: missing."""
    check_matplotlib()
    import matplotlib

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        yield


def new_figure(height: float = 3.6) -> Any:
    """Makes a figure without pyplot: no state, no display. Inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(7.2, height), layout="constrained")


def svg_bytes(figure: Any, creator: str = "golden.llm.eval") -> bytes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = io.BytesIO()
    metadata = {"Date": None, "Creator": creator}
    FigureCanvasSVG(figure).print_svg(stream, metadata=metadata)
    lines = stream.getvalue().decode().splitlines()
    return "".join(line.rstrip() + "\n" for line in lines).encode()


def scale(axis: Any, values: list[float]) -> float:
    """Logarithmic where the largest is more than four times the least; plain numbers as ticks.

    Returns where bars begin: below the least value, at a tenth of the range.
    """
    from matplotlib.ticker import LogLocator, ScalarFormatter

    low, high = min(values), max(values)
    if high <= 4 * low:
        return low - (high - low) / 10 - 0.01 * low
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_locator(LogLocator(subs=()))
    return low * (low / high) ** 0.1
