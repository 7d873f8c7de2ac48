"""Mermaid's flowcharts and state diagrams as SVG, so that a page needs no script to show them.

``svg`` knows what the pages use: nodes with a text, arrows with or without a label, chains, and
states. Of another kind of diagram it returns None, and the site shows the text.
"""

import re
import textwrap

from hdl.pages.layers import Arc, Box
from hdl.pages.sketch import GAP, LINE, Picture, rectangle, sketch, text, width_of

_WRAP = 26  # letters of a line of a node
_KINDS = re.compile(r"(flowchart|graph) (LR|TD|TB)$|stateDiagram(-v2)?$")
# Lines that say how to draw, or group nodes.
_IGNORED = re.compile(r"(subgraph|end|direction|style|classDef|class|linkStyle|%%)\b|%%")
_TEXT = r'"[^"]*"|[^"\[\](){}|]*'
_NODE = re.compile(
    rf"\s*(\[\*\]|\w+)(?:(?:\[\(|\(\[|\[\[|\(\(|\[|\(|\{{)({_TEXT})(?:\)\]|\]\)|\]\]|\)\)|\]|\)|\}}))?\s*"
)
_ARROW = re.compile(
    r"(?P<back><)?(?:"
    r"-->\s*\|(?P<bar>[^|]*)\||"
    r"--\s+(?P<label>[^->][^>]*?)\s+-->|"
    r"-\.\s+(?P<dots>[^>]*?)\s+\.->|"
    r"(?P<kind>-->|---|-\.->|==>))"
)


class _Chart:
    """Nodes and lines of a diagram, in the order of its text."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}  # name -> text
        self.lines: list[tuple[str, str, str, str]] = []  # source, sink, class, label

    def node(self, name: str, given: str | None) -> None:
        if given is not None:
            self.nodes[name] = given.strip().strip('"')
        else:
            self.nodes.setdefault(name, name)

    def add(self, line: str) -> bool:
        """Read one line; False: it is none of those that are known."""
        groups = [[]]  # nodes joined by &, before and after each arrow
        arrows: list[tuple[str, str]] = []
        at = 0
        while match := _NODE.match(line, at):
            self.node(match[1], match[2])
            groups[-1].append(match[1])
            at = match.end()
            if line[at : at + 1] == "&":
                at += 1
                continue
            arrow = _ARROW.match(line, at)
            if arrow is None:
                break
            label = arrow["bar"] or arrow["label"] or arrow["dots"] or ""
            dashed = arrow["dots"] is not None or arrow["kind"] == "-.->"
            kind = (
                "d" if arrow["back"] else "s" if dashed else "p" if arrow["kind"] == "---" else "a"
            )
            arrows.append((kind, label.strip().strip('"')))
            groups.append([])
            at = arrow.end()
        if line[at:].startswith(":") and len(arrows) == 1:  # of a state diagram
            arrows = [(arrows[0][0], line[at + 1 :].strip())]
            at = len(line)
        if at < len(line.rstrip()) or not groups[-1]:
            return False
        for (kind, label), sources, sinks in zip(arrows, groups, groups[1:], strict=False):
            self.lines += [(a, b, kind, label) for a in sources for b in sinks]
        return True


def _wrapped(given: str) -> list[str]:
    parts = re.split(r"<br ?/?>|\\n", given)
    return [line for part in parts for line in textwrap.wrap(part, _WRAP) or [""]]


def _box(given: str, *, is_label: bool = False) -> tuple[Box, list[str]]:
    if given == "[*]":
        return Box(14, 14, {"": 7.0}, {"": 7.0}), ['<circle cx="7" cy="7" r="6" fill="#334e68"/>']
    lines = _wrapped(given)
    width = max(map(width_of, lines)) + (4 if is_label else 2 * GAP)
    height = LINE * len(lines) + (2 if is_label else 12)
    top = 10 if is_label else 16
    drawn = [] if is_label else [rectangle("b", width, height, 4)]
    kind = "k" if is_label else ""
    drawn += [text(width / 2, top + LINE * n, each, kind) for n, each in enumerate(lines)]
    return Box(width, height, {"": width / 2}, {"": width / 2}), drawn


def _picture(chart: _Chart) -> Picture:
    made = {name: _box(given) for name, given in chart.nodes.items()}
    arcs: dict[Arc, str] = {}
    for n, (source, sink, kind, label) in enumerate(chart.lines):
        if not label:
            arcs[Arc(source, "", sink, "")] = kind
            continue
        middle = f" {n}"  # no node has a space in its name
        made[middle] = _box(label, is_label=True)
        arcs[Arc(source, "", middle, "")] = "p"
        arcs[Arc(middle, "", sink, "")] = kind
    boxes = {name: box for name, (box, _) in made.items()}
    return Picture(boxes, {name: lines for name, (_, lines) in made.items()}, arcs)


def svg(source: str, title: str) -> str | None:
    """SVG of the diagram ``source``; None where it is of another kind."""
    first, *lines = [line.strip() for line in source.strip().splitlines() if line.strip()]
    if not _KINDS.match(first):
        return None
    chart = _Chart()
    for line in lines:
        if not _IGNORED.match(line) and not chart.add(line.rstrip(";")):
            return None
    return sketch(_picture(chart), title) if chart.nodes else None
