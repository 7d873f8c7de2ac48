"""The requests that decode, with their sums kept from step to step. Pure Python.

All requests of the batch make a word in each step. So a request's tokens are its own offset plus
the steps of the batch, and no step touches each request:

| figure | kept as |
|---|---|
| cached tokens of all | the sum of the offsets, and their number times the steps |
| next end | a heap of the steps at which requests end |
| tokens within a window | the same sums of those below it, and a heap of the steps that fill it |
| pages | ``Even``: requests by their place in a page; ``Uneven``: by the step that changes theirs |

Figures are whole numbers, so they equal sums that are taken anew.
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence

from sim.serving.outcome import Served

_NEVER = 1 << 62


class Live:
    """A request with pages.

    cached : tokens in the cache, and made : words; both as of its last change while it decodes
    left : tokens to prefill
    pages : while it is prefilled, or for its whole life in a static wave
    shared : pages of these that a prefix cache counts; blocks : the blocks that it holds there
    seen : blocks of its prompt that are filled, its own copies included
    """

    __slots__ = (
        "base", "blocks", "cached", "ends", "left", "made", "pages", "seen", "served", "shared",
        "turns",
    )  # fmt: skip

    def __init__(self, served: Served, made: int, pages: int):
        self.served, self.made, self.pages = served, made, pages
        self.cached, self.left = 0, served.request.prompt + made
        self.base = self.ends = self.turns = self.shared = self.seen = 0
        self.blocks: list[int] = []


class Even:
    """Pages of requests where each ``size`` tokens begin a page."""

    def __init__(self, table: Sequence[int], size: int):
        self._table, self._size = table, size
        self._at = [0] * size  # requests by the step, modulo ``size``, that takes a page
        self._count = 0
        self.pages = 0

    def add(self, live: Live, step: int) -> None:
        self._at[-live.base % self._size] += 1
        self._count += 1
        self.pages += self._table[live.base + step]

    def remove(self, live: Live, step: int) -> None:
        self._at[-live.base % self._size] -= 1
        self._count -= 1
        self.pages -= self._table[live.base + step]

    def demand(self, step: int, steps: int) -> int:
        """Pages after ``steps`` steps more."""
        size = self._size
        whole, rest = divmod(steps, size)
        found = self.pages + self._count * whole
        if rest:
            low = step % size
            high = low + rest
            found += sum(self._at[low:high])
            if high > size:
                found += sum(self._at[: high - size])
        return found

    def advance(self, step: int, steps: int, pages: int) -> None:
        """pages : the demand after ``steps`` steps."""
        self.pages = pages


class Uneven:
    """Pages of requests by any table."""

    def __init__(self, table: Sequence[int]):
        self._table = table
        # The next length with another number of pages.
        self._next = [_NEVER] * len(table)
        for n in range(len(table) - 2, -1, -1):
            self._next[n] = self._next[n + 1] if table[n] == table[n + 1] else n + 1
        self._at: dict[int, dict[Live, None]] = {}  # by the step that changes their pages
        self._count = 0
        self.pages = 0

    def _place(self, live: Live, step: int) -> None:
        live.turns = self._next[live.base + step] - live.base
        self._at.setdefault(live.turns, {})[live] = None

    def _changing(self, step: int, steps: int) -> Iterator[int]:
        """The steps, of the next ``steps``, that change some pages."""
        if steps < len(self._at):
            return (each for each in range(step + 1, step + steps + 1) if each in self._at)
        return (each for each in self._at if each <= step + steps)

    def add(self, live: Live, step: int) -> None:
        self.pages += self._table[live.base + step]
        self._count += 1
        self._place(live, step)

    def remove(self, live: Live, step: int) -> None:
        self.pages -= self._table[live.base + step]
        self._count -= 1
        mates = self._at[live.turns]
        del mates[live]
        if not mates:
            del self._at[live.turns]

    def demand(self, step: int, steps: int) -> int:
        """Pages after ``steps`` steps more."""
        table, end, found = self._table, step + steps, self.pages
        for each in self._changing(step, steps):
            for live in self._at[each]:
                found += table[live.base + end] - table[live.base + step]
        return found

    def advance(self, step: int, steps: int, pages: int) -> None:
        """pages : the demand after ``steps`` steps."""
        self.pages = pages
        for each in list(self._changing(step, steps)):
            for live in self._at.pop(each):
                self._place(live, step + steps)


def growth_of(table: Sequence[int]) -> Even | Uneven:
    """``Even`` if the table of pages by length allows it."""
    size = next((n for n, pages in enumerate(table) if pages > 1), len(table)) - 1
    if size > 0 and all(pages == -(-n // size) for n, pages in enumerate(table)):
        return Even(table, size)
    return Uneven(table)


class Batch:
    """Requests that decode, oldest first."""

    def __init__(self, table: Sequence[int], most: int | None, reserved: bool):
        """The empty batch.

        most : tokens in the cache that a step reads of a request at most; None: all
        reserved : requests keep the pages that they have, whatever their length
        """
        self._growth = None if reserved else growth_of(table)
        self._lives: dict[Live, None] = {}
        self._order = itertools.count()
        self._ends: list[tuple[int, int, Live]] = []
        self._bases = 0
        self._reserved = 0
        self._asked = self._answer = 0  # steps of the last demand, 0 for none, and what it was
        self._most = most
        self._below, self._below_bases = 0, 0  # requests that are shorter than ``most``
        self._fills: list[tuple[int, int, Live]] = []
        self.step = 0

    def __len__(self) -> int:
        return len(self._lives)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._lives)

    @property
    def pages(self) -> int:
        return self._reserved if self._growth is None else self._growth.pages

    def add(self, live: Live) -> None:
        self._lives[live] = None
        self._put(live)

    def _put(self, live: Live) -> None:
        step = self.step
        live.base = live.cached - step
        live.ends = step + live.served.request.output - live.made
        heapq.heappush(self._ends, (live.ends, next(self._order), live))
        self._bases += live.base
        if self._growth is None:
            self._reserved += live.pages
        else:
            self._growth.add(live, step)
            self._asked = 0
        if self._most is not None and live.cached < self._most:
            self._below += 1
            self._below_bases += live.base
            fills = self._most - live.base
            heapq.heappush(self._fills, (fills, next(self._order), live))

    def _take(self, live: Live) -> None:
        """Leaves its tokens and words in ``live``."""
        step = self.step
        live.cached = live.base + step
        live.made = live.served.request.output - (live.ends - step)
        self._bases -= live.base
        if self._growth is None:
            self._reserved -= live.pages
        else:
            self._growth.remove(live, step)
            self._asked = 0
        if self._most is not None and live.cached < self._most:
            self._below -= 1
            self._below_bases -= live.base

    def remove(self, live: Live) -> None:
        del self._lives[live]
        self._take(live)

    def youngest(self) -> Live:
        """Removes the last that was added."""
        live, _ = self._lives.popitem()
        self._take(live)
        return live

    def more(self, live: Live, words: int) -> None:
        """``words`` words of a request beyond those of the steps."""
        if words:
            self._take(live)
            live.cached += words
            live.made += words
            self._put(live)

    @property
    def left(self) -> int:
        """Steps to the next end."""
        ends, lives = self._ends, self._lives
        while ends[0][2] not in lives or ends[0][2].ends != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] - self.step

    @property
    def read(self) -> int:
        """Tokens in the cache that a step reads."""
        if self._most is None:
            return self._bases + len(self._lives) * self.step
        full = len(self._lives) - self._below
        return self._below_bases + self._below * self.step + full * self._most

    @property
    def rising(self) -> tuple[int, int]:
        """Requests of which a step reads more than the last one, and steps until one is not."""
        if self._most is None:
            return len(self._lives), _NEVER
        fills, lives, most = self._fills, self._lives, self._most
        while fills and (fills[0][2] not in lives or most - fills[0][2].base != fills[0][0]):
            heapq.heappop(fills)
        return self._below, fills[0][0] - self.step if fills else _NEVER

    def demand(self, steps: int) -> int:
        """Pages after ``steps`` steps more, of which none ends a request."""
        if self._growth is None:
            return self._reserved
        if steps != self._asked:
            self._answer = self._growth.demand(self.step, steps)
            self._asked = steps
        return self._answer

    def advance(self, steps: int) -> list[Live]:
        """The requests that ``steps`` steps end, which leave; no step before the last ends one."""
        if self._growth is not None:
            self._growth.advance(self.step, steps, self.demand(steps))
            self._asked = 0
        self.step += steps
        step, lives = self.step, self._lives
        fills, most = self._fills, self._most
        while most is not None and fills and fills[0][0] <= step:
            filled, _, live = heapq.heappop(fills)
            if live in lives and most - live.base == filled:
                self._below -= 1
                self._below_bases -= live.base
        return self.ended()

    def ended(self) -> list[Live]:
        """The requests without further words, which leave."""
        made: list[Live] = []
        ends, lives = self._ends, self._lives
        while ends and ends[0][0] <= self.step:
            at, _, live = heapq.heappop(ends)
            if live in lives and live.ends == at:
                self.remove(live)
                made.append(live)
        return made
