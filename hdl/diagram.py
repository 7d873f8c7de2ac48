"""A picture of a block's parts and streams as SVG: ``python -m hdl.build NAME --diagram``.

Each part is a box. Of few streams, a box has those that it receives at its top and those that it
sends at its bottom. Of many, it lists those that it sends, and one line connects two parts. The
bytes depend on the design alone.
"""

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping
from html import escape

from hdl.block import Block
from hdl.layers import Arc, Box, Layout, arrange
from hdl.parts import End, Part, Parts, parts

__all__ = ["Drawing", "diagram", "draw"]

_ROW = 760  # of boxes, in pixels: a page's column at its usual width
_BETWEEN = 44
_MARGIN = 12
_TURN = 26  # height of the turn of a line that runs back
_LETTER = 6.4  # width of a letter of _FONT
_LINE = 13
_FONT = "10.5px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_GAP = 10  # between the labels of a box
_PILL = 20
_CARD = 34  # letters of a line of a list
_FEW = 24  # streams between the parts that are drawn one by one
_LEGENDS = {
    True: "arrow: a stream; circle: an end in the block's own logic; dashed: plain signals",
    False: "line: streams between two parts; each box lists those that it sends, and to which part",
}
_STYLE = f"""\
text{{font:{_FONT};fill:#1f2933;text-anchor:middle}}
.n{{font-weight:bold}}.k,.l{{fill:#52606d}}.n.l{{fill:#1f2933}}.l{{text-anchor:start}}
.b{{fill:#eef3f8;stroke:#486581}}.i{{fill:#d9f2e6;stroke:#27704a}}.o{{fill:#fdebd0;stroke:#a05a00}}
.a,.d,.s{{fill:none;stroke:#334e68;stroke-width:1.2;marker-end:url(#h)}}
.d{{marker-start:url(#h)}}.s{{stroke:#7b8794;stroke-dasharray:3 3}}
.e{{fill:#fff;stroke:#334e68}}"""
_ARROW = (
    '<defs><marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 1L8 4L0 7z" fill="#334e68"/></marker></defs>'
)
_IN, _OUT = "<", ">"  # begin the names of the block's own streams, which no part has


@dataclasses.dataclass(frozen=True)
class _Picture:
    """Boxes, what is inside each one, and the lines between them with their class of _STYLE."""

    boxes: dict[str, Box]
    inside: dict[str, list[str]]  # SVG, from the box's left and top edge on
    arcs: dict[Arc, str]


# -- texts --------------------------------------------------------------------------------------
def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _width(text: str) -> float:
    return len(text) * _LETTER


def _text(x: float, y: float, each: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{_number(x)}" y="{_number(y)}">{escape(each)}</text>'


def _rectangle(kind: str, width: float, height: float, radius: int) -> str:
    return (
        f'<rect class="{kind}" width="{_number(width)}" height="{_number(height)}" rx="{radius}"/>'
    )


def _kind(part: Part) -> str:
    return type(part.block).__name__.lstrip("_")


# -- boxes --------------------------------------------------------------------------------------
def _pill(name: str, mark: str) -> tuple[Box, list[str]]:
    """A stream of the block itself."""
    width = _width(name) + 2 * _GAP
    centre = {"": width / 2}
    lines = [
        _rectangle("i" if mark == _IN else "o", width, _PILL, _PILL // 2),
        _text(width / 2, 14, name),
    ]
    return Box(width, _PILL, centre, centre, is_low=mark == _IN), lines


def _labels_width(names: tuple[str, ...]) -> float:
    return sum(map(_width, names)) + _GAP * (len(names) + 1)


def _pins(names: tuple[str, ...], width: float) -> dict[str, float]:
    """Centres of the labels ``names``, spread over ``width``."""
    gap = (width - sum(map(_width, names))) / (len(names) + 1)
    found, at = {}, gap
    for name in names:
        found[name] = at + _width(name) / 2
        at += _width(name) + gap
    return found


def _pinned(name: str, part: Part, ends: set[End]) -> tuple[Box, list[str]]:
    """A part with its streams as pins; ends: those that an arrow reaches."""
    height = 66
    texts = max(_width(name), _width(_kind(part))) + 2 * _GAP
    width = max(texts, _labels_width(part.inputs), _labels_width(part.outputs))
    tops, bottoms = _pins(part.inputs, width), _pins(part.outputs, width)
    lines = [
        _rectangle("b", width, height, 4),
        _text(width / 2, 31, name, "n"),
        _text(width / 2, 44, _kind(part), "k"),
    ]
    for pins, edge, label in ((tops, 0, 14), (bottoms, height, height - 6)):
        for each, x in pins.items():
            lines.append(_text(x, label, each))
            if End(name, each) not in ends:
                lines.append(f'<circle class="e" cx="{_number(x)}" cy="{edge}" r="3"/>')
    centre = {"": width / 2}  # of plain signals
    return Box(width, height, centre | tops, centre | bottoms), lines


def _card(name: str, part: Part, sent: Mapping[str, list[str]]) -> tuple[Box, list[str]]:
    """A part with a list of what it sends; sent: receiver -> streams."""
    texts = [
        line
        for receiver, streams in sent.items()
        for line in textwrap.wrap(
            f"{', '.join(streams)} \N{RIGHTWARDS ARROW} {receiver}", _CARD,
            subsequent_indent="  ", break_long_words=False, break_on_hyphens=False,
        )
    ]  # fmt: skip
    width = max(map(_width, [name, _kind(part), *texts])) + 2 * _GAP
    height = 34 + _LINE * len(texts) + 4 * bool(texts)
    lines = [
        _rectangle("b", width, height, 4),
        _text(_GAP, 15, name, "n l"),
        _text(_GAP, 15 + _LINE, _kind(part), "l"),
    ]
    for n, each in enumerate(texts):
        leading = len(each) - len(each.lstrip())
        place = _GAP + leading * _LETTER
        lines.append(_text(place, 15 + _LINE * (n + 2) + 3, each.lstrip(), "l"))
    centre = {"": width / 2}
    return Box(width, height, centre, centre), lines


# -- pictures -----------------------------------------------------------------------------------
def _node(end: End, mark: str) -> tuple[str, str]:
    """Box and pin of an end of a flow; ``mark`` begins the box of a stream of the block."""
    return (end.part, end.stream) if end.part else (f"{mark}{end.stream}", "")


def _picture_of_streams(found: Parts) -> _Picture:
    ends = {end for flow in found.flows for end in flow}
    made = {f"{_IN}{name}": _pill(name, _IN) for name in found.inputs}
    made |= {name: _pinned(name, part, ends) for name, part in found.parts.items()}
    made |= {f"{_OUT}{name}": _pill(name, _OUT) for name in found.outputs}
    arcs = {Arc(*_node(source, _IN), *_node(sink, _OUT)): "a" for source, sink in found.flows}
    arcs |= {Arc(source, "", sink, ""): "s" for source, sink in found.signals}
    return _Picture(
        {name: box for name, (box, _) in made.items()},
        {name: lines for name, (_, lines) in made.items()},
        arcs,
    )


def _member(stream: str) -> str:
    """The member of the block that has ``stream``: a bus has several."""
    return stream.partition("__")[0]


def _picture_of_parts(found: Parts) -> _Picture:
    sent: dict[str, dict[str, list[str]]] = {name: {} for name in found.parts}
    pairs: dict[tuple[str, str], None] = {}
    marks: dict[str, str] = {}
    for name in found.outputs:
        marks[_member(name)] = _OUT
    for name in found.inputs:
        marks[_member(name)] = _IN
    for source, sink in found.flows:
        one, other = (
            end.part or f"{marks[_member(end.stream)]}{_member(end.stream)}"
            for end in (source, sink)
        )
        pairs[one, other] = None
        if source.part:
            receiver = sink.part or _member(sink.stream)
            streams = sent[source.part].setdefault(receiver, [])
            if source.stream not in streams:
                streams.append(source.stream)
    made = {f"{mark}{name}": _pill(name, mark) for name, mark in marks.items() if mark == _IN}
    made |= {name: _card(name, part, sent[name]) for name, part in found.parts.items()}
    made |= {f"{mark}{name}": _pill(name, mark) for name, mark in marks.items() if mark == _OUT}
    order = {name: n for n, name in enumerate(made)}
    arcs = {}
    for one, other in pairs:
        is_both = (other, one) in pairs
        if not is_both or order[one] < order[other]:
            arcs[Arc(one, "", other, "")] = "d" if is_both else "a"
    arcs |= {Arc(source, "", sink, ""): "s" for source, sink in found.signals}
    return _Picture(
        {name: box for name, (box, _) in made.items()},
        {name: lines for name, (_, lines) in made.items()},
        arcs,
    )


# -- drawing ------------------------------------------------------------------------------------
def _curve(points: list[tuple[float, float]]) -> str:
    """A path from the bottom of a box to the top of another; every second piece is straight."""
    (x, y), last = points[0], len(points) - 2
    is_back = points[-1][1] < y
    text = f"M{_number(x)} {_number(y)}"
    for n, (other, below) in enumerate(points[1:]):
        if n % 2:
            text += f"V{_number(below)}"
        else:
            leaves = -1 if is_back and n else 1
            arrives = -1 if is_back and n < last else 1
            bend = max(abs(below - y) / 2, 14) if leaves == arrives else _TURN
            ends = ((x, y + leaves * bend), (other, below - arrives * bend), (other, below))
            text += "C" + " ".join(f"{_number(a)} {_number(b)}" for a, b in ends)
        x, y = other, below
    return text


def draw(name: str, found: Parts) -> str:
    """SVG of the graph ``found`` of the block ``name``."""
    are_few = len(found.flows) <= _FEW
    picture = (_picture_of_streams if are_few else _picture_of_parts)(found)
    layout = arrange(picture.boxes, list(picture.arcs), most=_ROW, between=_BETWEEN)
    body = [
        f'<path class="{kind}" d="{_curve(layout.paths[arc])}"/>'
        for arc, kind in picture.arcs.items()
    ]
    for each, lines in picture.inside.items():
        x, y = layout.places[each]
        body.append(f'<g transform="translate({_number(x)} {_number(y)})">')
        body += [*lines, "</g>"]
    return _document(name, layout, _LEGENDS[are_few], body)


def _document(name: str, layout: Layout, legend: str, body: Iterable[str]) -> str:
    paths = layout.paths.values()
    turn = _TURN * any(path[-1][1] < path[0][1] for path in paths)
    top, bottom = -turn - 24, layout.height + turn + 20
    width = max(layout.width, _width(legend)) + 2 * _MARGIN
    height = bottom - top + 2 * _MARGIN
    size = f'width="{_number(width)}" height="{_number(height)}"'
    view = f"{-_MARGIN} {_number(top - _MARGIN)} {_number(width)} {_number(height)}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} viewBox="{view}">',
        f"<title>Parts and streams of {escape(name)}</title>",
        f"<style>{_STYLE}</style>",
        _ARROW,
        f'<rect x="{-_MARGIN}" y="{_number(top - _MARGIN)}" {size} rx="6" fill="#fff"/>',
        _text(0, top + 8, name, "n l"),
        _text(0, bottom, legend, "l"),
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _alone(block: Block, name: str, found: Parts) -> Parts:
    """The graph of a block without parts: the block itself."""
    flows = [(End("", each), End(name, each)) for each in found.inputs]
    flows += [(End(name, each), End("", each)) for each in found.outputs]
    part = Part(block, 1, found.inputs, found.outputs)
    return dataclasses.replace(found, parts={name: part}, flows=tuple(flows))


def diagram(block: Block, name: str) -> str:
    """SVG of the parts of ``block``, which the picture calls ``name``."""
    found = parts(block)
    return draw(name, found if found.parts else _alone(block, name, found))


@dataclasses.dataclass(frozen=True)
class Drawing:
    """NAME.svg of one block, for ``hdl.deliver.write``."""

    stem: str
    svg: str

    def files(self) -> dict[str, str]:
        return {f"{self.stem}.svg": self.svg}
