"""Exchanges of cells of a legal placement, each kept only if it is shorter."""

import bisect
from collections.abc import Iterable

import numpy as np

from synth.placement.die import Die, Ints, Nets, placement_of

SWEEPS = 6  # of exchanges, at most
_LEAST_GAIN = 0.003  # of the length: a sweep that gains less is the last


class Swaps:
    """A legal placement, and the exchanges of cells that make it shorter.

    Plain lists: each step reads a few numbers, where arrays would cost more than the arithmetic.
    """

    def __init__(self, widths: Ints, nets: Nets, ports: int, die: Die, row: Ints, column: Ints):
        self.die = die
        self.widths: list[int] = widths.tolist()
        self.row: list[int] = row.tolist()
        self.column: list[int] = column.tolist()
        start = placement_of(die, widths, row, column, ports)
        self.x: list[float] = start.x.tolist()
        self.y: list[float] = start.y.tolist()
        ends = nets.first.tolist()
        points = nets.points.tolist()
        self.points = [points[ends[k] : ends[k + 1]] for k in range(len(nets))]
        self.nets: list[list[int]] = [[] for _ in self.x]
        for number, each in enumerate(self.points):
            for point in each:
                self.nets[point].append(number)
        self.length: list[float] = nets.lengths(start.x, start.y).tolist()

    def improve(self, random: np.random.Generator) -> None:
        """Sweeps until one gains little."""
        total = sum(self.length)
        for _ in range(SWEEPS):
            self._exchange(random.permutation(len(self.widths)).tolist())
            self._turn_neighbours()
            before, total = total, sum(self.length)
            if before - total <= _LEAST_GAIN * before:
                break

    def _lengths(self, numbers: Iterable[int]) -> list[float]:
        x, y = self.x, self.y
        found = []
        for number in numbers:
            points = self.points[number]
            xs = [x[point] for point in points]
            ys = [y[point] for point in points]
            found.append(max(xs) - min(xs) + max(ys) - min(ys))
        return found

    def _keep_if_shorter(self, numbers: list[int]) -> bool:
        """Whether the nets ``numbers`` are shorter at the new places; then it notes the lengths."""
        new = self._lengths(numbers)
        length = self.length
        if sum(new) >= sum([length[number] for number in numbers]) - 1e-9:
            return False
        for number, value in zip(numbers, new, strict=True):
            length[number] = value
        return True

    def _target(self, cell: int) -> tuple[float, float]:
        """The middle of the region where the cell's nets are shortest, the others at rest."""
        wide: list[float] = []
        tall: list[float] = []
        x, y = self.x, self.y
        for number in self.nets[cell]:
            others = [point for point in self.points[number] if point != cell]
            xs = [x[point] for point in others]
            ys = [y[point] for point in others]
            wide += min(xs), max(xs)
            tall += min(ys), max(ys)
        wide.sort()
        tall.sort()
        half = len(wide) // 2
        return (wide[half - 1] + wide[half]) / 2, (tall[half - 1] + tall[half]) / 2

    def _swap(self, a: int, b: int) -> None:
        x, y, row, column = self.x, self.y, self.row, self.column
        x[a], x[b] = x[b], x[a]
        y[a], y[b] = y[b], y[a]
        row[a], row[b] = row[b], row[a]
        column[a], column[b] = column[b], column[a]

    def _exchange(self, order: list[int]) -> None:
        """Each cell, with a cell of its width near the place where it would be best."""
        places: dict[tuple[int, int], list[tuple[float, int]]] = {}
        for cell, width in enumerate(self.widths):
            places.setdefault((self.row[cell], width), []).append((self.x[cell], cell))
        slots: dict[tuple[int, int], tuple[list[float], list[int]]] = {}
        for key, found in places.items():
            found.sort()
            slots[key] = [at for at, _ in found], [cell for _, cell in found]
        height = self.die.site.height
        for cell in order:
            if not self.nets[cell]:
                continue
            x, y = self._target(cell)
            if abs(x - self.x[cell]) + abs(y - self.y[cell]) < height:
                continue
            width, middle = self.widths[cell], min(int(y / height), self.die.rows - 1)
            for row in (middle, middle - 1, middle + 1):
                at, cells = slots.get((row, width), ([], []))
                near = bisect.bisect(at, x)
                if any(
                    self._try(cell, cells, number, slots)
                    for number in range(max(0, near - 2), min(near + 2, len(cells)))
                ):
                    break

    def _try(
        self,
        cell: int,
        cells: list[int],
        number: int,
        slots: dict[tuple[int, int], tuple[list[float], list[int]]],
    ) -> bool:
        other = cells[number]
        if other == cell:
            return False
        numbers = list({*self.nets[cell], *self.nets[other]})
        at, mates = slots[self.row[cell], self.widths[cell]]
        own = bisect.bisect_left(at, self.x[cell])
        self._swap(cell, other)
        if not self._keep_if_shorter(numbers):
            self._swap(cell, other)
            return False
        cells[number], mates[own] = cell, other
        return True

    def _turn_neighbours(self) -> None:
        """Each pair of neighbours in a row; together they keep their sites."""
        rows: list[list[int]] = [[] for _ in range(self.die.rows)]
        for cell in sorted(range(len(self.widths)), key=self.column.__getitem__):
            rows[self.row[cell]].append(cell)
        for cells in rows:
            for number in range(len(cells) - 1):
                a, b = cells[number], cells[number + 1]
                first = self.column[a]
                end = self.column[b] + self.widths[b]
                before = self.column[a], self.column[b]
                self._move(a, end - self.widths[a])
                self._move(b, first)
                if self._keep_if_shorter(list({*self.nets[a], *self.nets[b]})):
                    cells[number], cells[number + 1] = b, a
                else:
                    self._move(a, before[0])
                    self._move(b, before[1])

    def _move(self, cell: int, column: int) -> None:
        self.column[cell] = column
        self.x[cell] = (column + self.widths[cell] / 2) * self.die.site.width
