"""Boxes in rows: a layout of a graph that flows from top to bottom.

``arrange`` gives each box a place and each arc a path. The same graph gives the same layout.
"""

import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence

_SWEEPS = 12
_GAP = 18  # between neighbours of a row
_LANE_GAP = 9  # from an arc that passes the row


@dataclasses.dataclass(frozen=True)
class Box:
    """A box; ``tops`` and ``bottoms`` are the places of its pins, from its left edge on."""

    width: float
    height: float
    tops: Mapping[str, float]
    bottoms: Mapping[str, float]
    is_low: bool = False  # at the bottom of its row


@dataclasses.dataclass(frozen=True)
class Arc:
    """An arc from pin ``out`` at the bottom of ``source`` to pin ``into`` on top of ``sink``."""

    source: str
    out: str
    sink: str
    into: str


@dataclasses.dataclass(frozen=True)
class Layout:
    """places: left and top edge of each box; paths: points of each arc, from its source on."""

    width: float
    height: float
    places: dict[str, tuple[float, float]]
    paths: dict[Arc, list[tuple[float, float]]]


def _forward(names: Sequence[str], arcs: Iterable[Arc]) -> dict[tuple[str, str], bool]:
    """(source, sink) -> whether the arc runs with the order; one per circle runs against it."""
    sinks: dict[str, list[str]] = {name: [] for name in names}
    for arc in arcs:
        sinks[arc.source].append(arc.sink)
    found: dict[tuple[str, str], bool] = {}
    open_now: set[str] = set()
    done: set[str] = set()

    def visit(name: str) -> None:
        open_now.add(name)
        for sink in sinks[name]:
            found[name, sink] = sink not in open_now
            if sink not in open_now | done:
                visit(sink)
        open_now.discard(name)
        done.add(name)

    for name in names:
        if name not in done:
            visit(name)
    return found


def _ranks(names: Sequence[str], pairs: set[tuple[str, str]]) -> dict[str, int]:
    """The longest way to each box; one without a box before it is next to the first after it."""
    ranks = dict.fromkeys(names, 0)
    for _ in names:
        for source, sink in sorted(pairs):
            ranks[sink] = max(ranks[sink], ranks[source] + 1)
    has_source = {sink for _, sink in pairs}
    for name in names:
        after = [ranks[sink] for source, sink in pairs if source == name]
        if name not in has_source and after:
            ranks[name] = min(after) - 1
    return ranks


def _rows(names: Sequence[str], ranks: Mapping[str, int], boxes, most: float) -> list[list[str]]:
    """Boxes by rank; a rank that is wider than ``most`` takes several rows."""
    rows: list[list[str]] = []
    for rank in sorted(set(ranks.values())):
        row: list[str] = []
        width = 0.0
        for name in (name for name in names if ranks[name] == rank):
            if row and width + boxes[name].width > most:
                rows.append(row)
                row, width = [], 0.0
            row.append(name)
            width += boxes[name].width + _GAP
        rows.append(row)
    return rows


class _Grid:
    """Rows of boxes and of lanes; a lane is (arc, row)."""

    def __init__(self, boxes: Mapping[str, Box], arcs: Sequence[Arc], most: float):
        names = list(boxes)
        self.boxes = boxes
        forward = _forward(names, arcs)
        pairs = {pair if ahead else pair[::-1] for pair, ahead in forward.items()}
        pairs -= {(name, name) for name in names}
        rows = _rows(names, _ranks(names, pairs), boxes, most)
        self.row = {name: n for n, row in enumerate(rows) for name in row}
        self.rows: list[list[Hashable]] = [list(row) for row in rows]
        self.lanes: dict[Arc, list[int]] = {}
        for arc in arcs:
            first, last = self.row[arc.source], self.row[arc.sink]
            ahead = range(first + 1, last)
            passed = list(ahead if first < last else range(first, last - 1, -1))
            self.lanes[arc] = passed
            for row in passed:
                self.rows[row].append((arc, row))
        # Of each item: (neighbour, place of the pin there, own pin) above and below.
        self.above: dict[Hashable, list] = {item: [] for row in self.rows for item in row}
        self.below: dict[Hashable, list] = {item: [] for row in self.rows for item in row}
        for arc, passed in self.lanes.items():
            self._chain(arc, passed)

    def _chain(self, arc: Arc, passed: list[int]) -> None:
        first, last = self.boxes[arc.source], self.boxes[arc.sink]
        chain: list[tuple[Hashable, float]] = [
            (arc.source, first.bottoms[arc.out] - first.width / 2)
        ]
        chain += [((arc, row), 0.0) for row in passed]
        chain.append((arc.sink, last.tops[arc.into] - last.width / 2))
        for (one, out), (other, into) in itertools.pairwise(chain):
            self.below[one].append((other, into, out))
            self.above[other].append((one, out, into))

    def width(self, item: Hashable) -> float:
        return self.boxes[item].width if isinstance(item, str) else 0.0

    def apart(self, row: list) -> list[float]:
        """Distance of the centres of neighbours, the least that is allowed."""
        return [
            (self.width(a) + self.width(b)) / 2
            + (_GAP if isinstance(a, str) and isinstance(b, str) else _LANE_GAP)
            for a, b in itertools.pairwise(row)
        ]


def _fit(wanted: list[float], apart: list[float]) -> list[float]:
    """Places nearest to ``wanted``, in this order, ``apart[n]`` or more between n and n + 1."""
    offsets = [0.0]
    for each in apart:
        offsets.append(offsets[-1] + each)
    groups: list[list[float]] = []  # sum, count
    for place, offset in zip(wanted, offsets, strict=True):
        groups.append([place - offset, 1])
        while len(groups) > 1 and groups[-2][0] * groups[-1][1] >= groups[-1][0] * groups[-2][1]:
            total, count = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += count
    means = [total / count for total, count in groups for _ in range(int(count))]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _centres(grid: _Grid) -> dict[Hashable, float]:
    """Centre of every item; reorders the rows so that arcs are short."""
    centre: dict[Hashable, float] = {}
    for row in grid.rows:
        at = 0.0
        for item in row:
            centre[item] = at + grid.width(item) / 2
            at += grid.width(item) + _GAP
    for sweep in range(_SWEEPS):
        is_down = sweep % 2 == 0
        near = grid.above if is_down else grid.below
        for row in grid.rows if is_down else grid.rows[::-1]:
            wanted = {}
            for item in row:
                places = [centre[other] + pin - own for other, pin, own in near[item]]
                wanted[item] = sum(places) / len(places) if places else centre[item]
            if sweep < _SWEEPS - 4:
                row.sort(key=lambda item: wanted[item])
            fitted = _fit([wanted[item] for item in row], grid.apart(row))
            centre |= dict(zip(row, fitted, strict=True))
    return centre


def arrange(
    boxes: Mapping[str, Box], arcs: Sequence[Arc], *, most: float, between: float
) -> Layout:
    """Places of ``boxes`` and paths of ``arcs``.

    most: width of a row of boxes, unless a box alone is wider; between: height between rows.
    """
    grid = _Grid(boxes, arcs, most)
    centre = _centres(grid)
    left = min(centre[item] - grid.width(item) / 2 for row in grid.rows for item in row)
    right = max(centre[item] + grid.width(item) / 2 for row in grid.rows for item in row)
    tops: list[float] = []
    heights: list[float] = []
    at = 0.0
    for row in grid.rows:
        tops.append(at)
        heights.append(max(boxes[item].height for item in row if isinstance(item, str)))
        at += heights[-1] + between
    places = {}
    for name, box in boxes.items():
        rank = grid.row[name]
        low = heights[rank] - box.height if box.is_low else 0.0
        places[name] = (centre[name] - box.width / 2 - left, tops[rank] + low)
    paths = {}
    for arc, passed in grid.lanes.items():
        x, y = places[arc.source]
        path = [(x + boxes[arc.source].bottoms[arc.out], y + boxes[arc.source].height)]
        is_down = grid.row[arc.source] < grid.row[arc.sink]
        for rank in passed:
            ends = [tops[rank], tops[rank] + heights[rank]]
            path += [(centre[arc, rank] - left, end) for end in (ends if is_down else ends[::-1])]
        x, y = places[arc.sink]
        path.append((x + boxes[arc.sink].tops[arc.into], y))
        paths[arc] = path
    return Layout(right - left, at - between, places, paths)
