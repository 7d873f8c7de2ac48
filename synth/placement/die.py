"""The die, the nets and a placement: what all steps share."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Site:
    """The least step of a cell in a row, um."""

    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class Nets:
    """Net k joins ``points[first[k]:first[k + 1]]``: numbers of cells, then those of ports.

    Each net joins at least two points, all different.
    """

    first: Ints
    points: Ints

    @classmethod
    def of(cls, nets: Iterable[Sequence[int]]) -> "Nets":
        lists = list(nets)
        first = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(first, np.array([point for each in lists for point in each], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.first) - 1

    def lengths(self, x: Floats, y: Floats) -> Floats:
        """Half the perimeter of the box around each net's points, um."""
        if not len(self):
            return np.zeros(0)
        total = np.zeros(len(self))
        for at in (x[self.points], y[self.points]):
            total += np.maximum.reduceat(at, self.first[:-1])
            total -= np.minimum.reduceat(at, self.first[:-1])
        return total


@dataclasses.dataclass(frozen=True)
class Die:
    """``rows`` rows of ``columns`` sites."""

    site: Site
    rows: int
    columns: int

    @property
    def width(self) -> float:
        """um"""
        return self.columns * self.site.width

    @property
    def height(self) -> float:
        """um"""
        return self.rows * self.site.height

    def boundary(self, ports: int) -> tuple[Floats, Floats]:
        """x and y of ``ports`` points at equal distances, counterclockwise from the corner 0, 0."""
        way = np.arange(ports) * (2 * (self.width + self.height) / max(1, ports))
        ends = np.cumsum([0.0, self.width, self.height, self.width, self.height])
        corners = np.array([0.0, self.width, self.width, 0.0, 0.0])
        heights = np.array([0.0, 0.0, self.height, self.height, 0.0])
        return np.interp(way, ends, corners), np.interp(way, ends, heights)


@dataclasses.dataclass(frozen=True)
class Placement:
    """``row`` and ``column`` of the left site of each cell; ``widths`` of the cells in sites.

    x, y : um, of the centres of the cells, then of the ports
    """

    die: Die
    widths: Ints
    row: Ints
    column: Ints
    x: Floats
    y: Floats

    @property
    def utilisation(self) -> float:
        """Share of the sites that cells take."""
        return float(self.widths.sum() / (self.die.rows * self.die.columns))


def check_utilisation(utilisation: float) -> None:
    """ValueError: ``utilisation`` is not in 0.1..0.9."""
    if not 0.1 <= utilisation <= 0.9:
        raise ValueError(f"utilisation must be in 0.1..0.9, not {utilisation:g}")


def die_of(widths: Ints, site: Site, utilisation: float) -> Die:
    """A die as square as rows allow. ValueError: ``utilisation`` is out of range."""
    check_utilisation(utilisation)
    sites = max(1.0, float(widths.sum())) / utilisation
    rows = max(1, round(math.sqrt(sites * site.width / site.height)))
    return Die(site, rows, max(math.ceil(sites / rows), int(widths.max(initial=1))))


def placement_of(die: Die, widths: Ints, row: Ints, column: Ints, ports: int) -> Placement:
    """The placement of cells that have their rows and columns."""
    port_x, port_y = die.boundary(ports)
    x = np.concatenate([(column + widths / 2) * die.site.width, port_x])
    y = np.concatenate([(row + 0.5) * die.site.height, port_y])
    return Placement(die, widths, row, column, x, y)


def legal_columns(widths: Ints, x: Floats, row: Ints, die: Die) -> Ints:
    """Left site of each cell: no overlaps in a row, in the order of x, near x.

    Pools of neighbours that would overlap move together, to the mean of their wishes (pool
    adjacent violators). A row's cells must fit in it.
    """
    column = np.zeros(len(widths), dtype=np.int64)
    order = np.lexsort((x, row))
    for cells in np.split(order, np.flatnonzero(np.diff(row[order])) + 1):
        before = np.cumsum(widths[cells]) - widths[cells]
        free = die.columns - int(widths[cells].sum())
        wish = x[cells] / die.site.width - widths[cells] / 2 - before  # of the free sites before it
        pools: list[tuple[float, int]] = []  # mean wish, cells
        for value in wish.tolist():
            count = 1
            while pools and pools[-1][0] >= value:
                mean, number = pools.pop()
                value = (mean * number + value * count) / (number + count)
                count += number
            pools.append((value, count))
        gaps = np.repeat([value for value, _ in pools], [count for _, count in pools])
        column[cells] = before + np.clip(np.rint(gaps), 0, free).astype(np.int64)
    return column
