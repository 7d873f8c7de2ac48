"""A picture of a block's parts and streams as SVG: ``python -m hdl.build NAME --diagram``.

Each part is a box. Of few streams, a box has those that it receives at its top and those that it
sends at its bottom. Of many, it lists those that it sends, and one line connects two parts. The
bytes depend on the design alone.
"""

import dataclasses
import textwrap
from collections.abc import Mapping

from hdl.block import Block
from hdl.pages.layers import Arc, Box
from hdl.pages.parts import End, Part, Parts, parts
from hdl.pages.sketch import GAP, LINE, Picture, number, rectangle, sketch, text, width_of

_PILL = 20
_CARD = 34  # letters of a line of a list
_FEW = 24  # streams between the parts that are drawn one by one
_LEGENDS = {
    True: "arrow: a stream; circle: an end in the block's own logic; dashed: plain signals",
    False: "line: streams between two parts; each box lists those that it sends, and to which part",
}
_IN, _OUT = "<", ">"  # begin the names of the block's own streams, which no part has


def _kind(part: Part) -> str:
    return type(part.block).__name__.lstrip("_")


# -- boxes --------------------------------------------------------------------------------------
def _pill(name: str, mark: str) -> tuple[Box, list[str]]:
    """A stream of the block itself."""
    width = width_of(name) + 2 * GAP
    centre = {"": width / 2}
    lines = [
        rectangle("i" if mark == _IN else "o", width, _PILL, _PILL // 2),
        text(width / 2, 14, name),
    ]
    return Box(width, _PILL, centre, centre, is_low=mark == _IN), lines


def _labels_width(names: tuple[str, ...]) -> float:
    return sum(map(width_of, names)) + GAP * (len(names) + 1)


def _pins(names: tuple[str, ...], width: float) -> dict[str, float]:
    """Centres of the labels ``names``, spread over ``width``."""
    gap = (width - sum(map(width_of, names))) / (len(names) + 1)
    found, at = {}, gap
    for name in names:
        found[name] = at + width_of(name) / 2
        at += width_of(name) + gap
    return found


def _pinned(name: str, part: Part, ends: set[End]) -> tuple[Box, list[str]]:
    """A part with its streams as pins; ends: those that an arrow reaches."""
    height = 66
    texts = max(width_of(name), width_of(_kind(part))) + 2 * GAP
    width = max(texts, _labels_width(part.inputs), _labels_width(part.outputs))
    tops, bottoms = _pins(part.inputs, width), _pins(part.outputs, width)
    lines = [
        rectangle("b", width, height, 4),
        text(width / 2, 31, name, "n"),
        text(width / 2, 44, _kind(part), "k"),
    ]
    for pins, edge, label in ((tops, 0, 14), (bottoms, height, height - 6)):
        for each, x in pins.items():
            lines.append(text(x, label, each))
            if End(name, each) not in ends:
                lines.append(f'<circle class="e" cx="{number(x)}" cy="{edge}" r="3"/>')
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
    width = max(map(width_of, [name, _kind(part), *texts])) + 2 * GAP
    height = 34 + LINE * len(texts) + 4 * bool(texts)
    lines = [
        rectangle("b", width, height, 4),
        text(GAP, 15, name, "n l"),
        text(GAP, 15 + LINE, _kind(part), "l"),
    ]
    for n, each in enumerate(texts):
        leading = len(each) - len(each.lstrip())
        place = GAP + width_of(" " * leading)
        lines.append(text(place, 15 + LINE * (n + 2) + 3, each.lstrip(), "l"))
    centre = {"": width / 2}
    return Box(width, height, centre, centre), lines


# -- pictures -----------------------------------------------------------------------------------
def _node(end: End, mark: str) -> tuple[str, str]:
    """Box and pin of an end of a flow; ``mark`` begins the box of a stream of the block."""
    return (end.part, end.stream) if end.part else (f"{mark}{end.stream}", "")


def _picture_of_streams(found: Parts) -> Picture:
    ends = {end for flow in found.flows for end in flow}
    made = {f"{_IN}{name}": _pill(name, _IN) for name in found.inputs}
    made |= {name: _pinned(name, part, ends) for name, part in found.parts.items()}
    made |= {f"{_OUT}{name}": _pill(name, _OUT) for name in found.outputs}
    arcs = {Arc(*_node(source, _IN), *_node(sink, _OUT)): "a" for source, sink in found.flows}
    arcs |= {Arc(source, "", sink, ""): "s" for source, sink in found.signals}
    return Picture(
        {name: box for name, (box, _) in made.items()},
        {name: lines for name, (_, lines) in made.items()},
        arcs,
    )


def _member(stream: str) -> str:
    """The member of the block that has ``stream``: a bus has several."""
    return stream.partition("__")[0]


def _picture_of_parts(found: Parts) -> Picture:
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
    return Picture(
        {name: box for name, (box, _) in made.items()},
        {name: lines for name, (_, lines) in made.items()},
        arcs,
    )


def draw(name: str, found: Parts) -> str:
    """SVG of the graph ``found`` of the block ``name``."""
    are_few = len(found.flows) <= _FEW
    picture = (_picture_of_streams if are_few else _picture_of_parts)(found)
    title = f"Parts and streams of {name}"
    return sketch(picture, title, heading=name, legend=_LEGENDS[are_few])


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
    """NAME.svg of one block, for ``hdl.back.deliver.write``."""

    stem: str
    svg: str

    def files(self) -> dict[str, str]:
        return {f"{self.stem}.svg": self.svg}
