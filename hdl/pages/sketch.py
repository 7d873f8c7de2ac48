"""Boxes with texts, and lines between them, as SVG.

``sketch`` places the boxes of a ``Picture`` (``hdl.pages.layers``) and draws all. The bytes depend
on the picture alone.
"""

import dataclasses
from html import escape

from hdl.pages.layers import Arc, Box, Layout, arrange

_ROW = 760  # of boxes, in pixels: a page's column at its usual width
_BETWEEN = 44
_MARGIN = 12
_TURN = 26  # height of the turn of a line that runs back
_LETTER = 6.4  # width of a letter of _FONT
LINE = 13  # height of a line of text
GAP = 10  # between the labels of a box, and around its texts
_FONT = "10.5px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_STYLE = f"""\
text{{font:{_FONT};fill:#1f2933;text-anchor:middle}}
.n{{font-weight:bold}}.k,.l{{fill:#52606d}}.n.l{{fill:#1f2933}}.l{{text-anchor:start}}
.b{{fill:#eef3f8;stroke:#486581}}.i{{fill:#d9f2e6;stroke:#27704a}}.o{{fill:#fdebd0;stroke:#a05a00}}
.a,.d,.s,.p{{fill:none;stroke:#334e68;stroke-width:1.2}}.a,.d,.s{{marker-end:url(#h)}}
.d{{marker-start:url(#h)}}.s{{stroke:#7b8794;stroke-dasharray:3 3}}
.e{{fill:#fff;stroke:#334e68}}"""
_ARROW = (
    '<defs><marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 1L8 4L0 7z" fill="#334e68"/></marker></defs>'
)


@dataclasses.dataclass(frozen=True)
class Picture:
    """Boxes, what is inside each one, and the lines between them.

    inside: SVG of each box, from its left and top edge on. arcs: class of each line. "a" has an
    arrow at its end, "d" at both ends, "s" is dashed, "p" is plain.
    """

    boxes: dict[str, Box]
    inside: dict[str, list[str]]
    arcs: dict[Arc, str]


def number(value: float) -> str:
    """Writes ``value`` with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def width_of(each: str) -> float:
    """Pixels of a text."""
    return len(each) * _LETTER


def text(x: float, y: float, each: str, kind: str = "") -> str:
    """A text around, or with class \"l\" from, the point (x, y) of its base line."""
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{number(x)}" y="{number(y)}">{escape(each)}</text>'


def rectangle(kind: str, width: float, height: float, radius: int) -> str:
    """A box at the point (0, 0)."""
    return f'<rect class="{kind}" width="{number(width)}" height="{number(height)}" rx="{radius}"/>'


def _curve(points: list[tuple[float, float]]) -> str:
    """A path from the bottom of a box to the top of another; every second piece is straight."""
    (x, y), last = points[0], len(points) - 2
    is_back = points[-1][1] < y
    text = f"M{number(x)} {number(y)}"
    for n, (other, below) in enumerate(points[1:]):
        if n % 2:
            text += f"V{number(below)}"
        else:
            leaves = -1 if is_back and n else 1
            arrives = -1 if is_back and n < last else 1
            bend = max(abs(below - y) / 2, 14) if leaves == arrives else _TURN
            ends = ((x, y + leaves * bend), (other, below - arrives * bend), (other, below))
            text += "C" + " ".join(f"{number(a)} {number(b)}" for a, b in ends)
        x, y = other, below
    return text


def _height(layout: Layout) -> tuple[float, float]:
    """Top and bottom of boxes and lines."""
    paths = layout.paths.values()
    turn = _TURN * any(path[-1][1] < path[0][1] for path in paths)
    return -turn, layout.height + turn


def sketch(picture: Picture, title: str, *, heading: str = "", legend: str = "") -> str:
    """SVG of ``picture``; heading: above it, legend: below it."""
    layout = arrange(picture.boxes, list(picture.arcs), most=_ROW, between=_BETWEEN)
    top, bottom = _height(layout)
    notes = []
    if heading:
        top -= 24
        notes.append(text(0, top + 8, heading, "n l"))
    if legend:
        bottom += 20
        notes.append(text(0, bottom, legend, "l"))
    width = max(layout.width, width_of(legend)) + 2 * _MARGIN
    height = bottom - top + 2 * _MARGIN
    size = f'width="{number(width)}" height="{number(height)}"'
    view = f"{-_MARGIN} {number(top - _MARGIN)} {number(width)} {number(height)}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} viewBox="{view}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        _ARROW,
        f'<rect x="{-_MARGIN}" y="{number(top - _MARGIN)}" {size} rx="6" fill="#fff"/>',
        *notes,
    ]
    for arc, kind in picture.arcs.items():
        lines.append(f'<path class="{kind}" d="{_curve(layout.paths[arc])}"/>')
    for each, inside in picture.inside.items():
        x, y = layout.places[each]
        lines += [f'<g transform="translate({number(x)} {number(y)})">', *inside, "</g>"]
    lines.append("</svg>")
    return "\n".join(lines) + "\n"
