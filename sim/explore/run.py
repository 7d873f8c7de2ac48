"""Measures the points of a grid that are not kept yet, in worker processes."""

import concurrent.futures
import functools
import itertools
import os
from collections.abc import Callable, Sequence

from golden.config import ConfigError
from sim.explore.figures import Record
from sim.explore.grid import Point
from sim.explore.kept import Kept

_AHEAD = 2  # blocks of each worker that wait; those of another run are seen before the next ones


def explore(
    points: Sequence[Point], kept: Kept, workers: int, say: Callable[[str], None]
) -> dict[Point, Record]:
    """The record of each point. ``say`` hears how many there are.

    Runs that work at the same time begin at different places, and take what another has finished.
    ConfigError: the points cannot be kept, or a worker has ended.
    """
    kept.read()
    blocks = [list(some) for _, some in itertools.groupby(points, lambda each: each.setup)]
    first = os.getpid() % max(len(blocks), 1)
    left = iter([*blocks[first:], *blocks[:first]])
    done = sum(kept.get(each) is not None for each in points)

    def next_block() -> list[Point]:
        """Points of a block that no run has finished; empty: there are no more blocks."""
        for block in left:
            if any(kept.get(each) is None for each in block):
                kept.read()
            if wanted := [each for each in block if kept.get(each) is None]:
                return wanted
        return []

    def add(block: Sequence[Point], records: Sequence[Record]) -> None:
        nonlocal done
        kept.add(zip(block, records, strict=True))
        done = sum(kept.get(each) is not None for each in points)
        say(f"{done} of {len(points)} points")

    if done < len(points):
        from sim.explore.measure import measure_all  # loads the engines

        if workers == 1:
            while block := next_block():
                add(block, measure_all(kept.model, block))
        else:
            _side_by_side(next_block, add, functools.partial(measure_all, kept.model), workers)
    found = {each: kept.get(each) for each in points}
    return {point: record for point, record in found.items() if record is not None}


def facts(names: Sequence[str], kept: Kept) -> dict[str, Record]:
    """Says what each chip is, as ``sim.explore.measure.facts``. ConfigError: a bad field."""
    lacking = [name for name in names if kept.get(name) is None]
    if lacking:
        from sim.explore import measure

        kept.add([(name, measure.facts(name)) for name in lacking])
    found = {name: kept.get(name) for name in names}
    return {name: record for name, record in found.items() if record is not None}


def _side_by_side(
    next_block: Callable[[], list[Point]],
    add: Callable[[Sequence[Point], Sequence[Record]], None],
    work: Callable[[list[Point]], list[Record]],
    workers: int,
) -> None:
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        waiting: dict[concurrent.futures.Future[list[Record]], list[Point]] = {}
        while True:
            while len(waiting) < _AHEAD * workers and (block := next_block()):
                waiting[pool.submit(work, block)] = block
            if not waiting:
                return
            finished, _ = concurrent.futures.wait(
                waiting, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for each in finished:
                try:
                    add(waiting.pop(each), each.result())
                except concurrent.futures.BrokenExecutor:
                    raise ConfigError("a worker has ended; finished points stay") from None
