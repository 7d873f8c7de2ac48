"""The measured events, at 28 nm. Pure Python.

``events.json`` has what ``python -m senbazuru.runs.event_power --write COMMIT`` has measured, of
each library in its own node. Here each library gives an estimate of 28 nm, an interval
(``sim.energy.nodes``). An event that two libraries have lies between the least and the most of
both; its value is the geometric mean of theirs. An event of one library gets the estimate of the
other by the ratio that the two have in the events of both.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from golden.config import ConfigError
from sim.constant import Interval
from sim.energy.nodes import NODES, node_of

FILE = Path(__file__).parent / "events.json"
MEASURED = "measured, scaled to 28 nm"
FIRST = "Sky130 HD"  # the library that has every event


@dataclasses.dataclass(frozen=True)
class Figure:
    """An event in one library and its own node.

    pj : of an event; idle_pj : of a cycle in which the block waits
    """

    event: str
    unit: str
    block: str
    library: str
    pj: float
    idle_pj: float
    leakage_mw: float
    flip_flops: int
    kge: float


@dataclasses.dataclass(frozen=True)
class EventTable:
    """Figures of all events and libraries, and the commit that they were measured at."""

    commit: str
    date: str
    figures: tuple[Figure, ...]

    def of(self, event: str) -> dict[str, Figure]:
        """Figures of an event by library. ConfigError: no such event."""
        found = {each.library: each for each in self.figures if each.event == event}
        if not found:
            raise ConfigError(f"event must be one of {', '.join(self.names)}, not {event!r}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Events, in the order of the file."""
        return tuple(dict.fromkeys(each.event for each in self.figures))

    @functools.cached_property
    def ratios(self) -> Mapping[str, Interval]:
        """Gives, by library, energy at 28 nm over that by FIRST, and its spread over all events."""
        made = {}
        for library in NODES:
            both = [
                self.estimate(event, library).value / self.estimate(event, FIRST).value
                for event in {each.event for each in self.figures if each.library == library}
                if FIRST in self.of(event)
            ]
            if both:
                made[library] = Interval(min(both), _mean(both), max(both))
        return made

    def estimate(self, event: str, library: str) -> Interval:
        """Picojoules of an event at 28 nm, by one library."""
        return node_of(library).to_28 * self.of(event)[library].pj

    def estimates(self, event: str) -> dict[str, Interval]:
        """Gives estimates by library; those that one lacks come from FIRST and ``ratios``."""
        found = self.of(event)
        made = {library: self.estimate(event, library) for library in NODES if library in found}
        for library, ratio in self.ratios.items():
            if library not in made and FIRST in made:
                value = made[FIRST].value
                scale, own = node_of(library).to_28, value * ratio.value
                made[library] = Interval(
                    value * ratio.low * scale.low / scale.value, own,
                    value * ratio.high * scale.high / scale.value,
                )  # fmt: skip
        return made

    @functools.lru_cache(256)  # noqa: B019, there is one table
    def pj(self, event: str) -> Interval:
        """Picojoules of an event at 28 nm, by all libraries."""
        return _joined(list(self.estimates(event).values()))

    @functools.cached_property
    def clock_pj(self) -> Interval:
        """Picojoules of an idle cycle for each flip-flop, at 28 nm: the clock's, without a tree."""
        return self._static(lambda each: each.idle_pj / each.flip_flops, scaled=True)

    @functools.cached_property
    def leakage_mw(self) -> Interval:
        """Milliwatts of leakage for a thousand NAND2, at 25 C; each library's, in its own node."""
        return self._static(lambda each: each.leakage_mw / each.kge, scaled=False)

    def _static(self, of: Any, scaled: bool) -> Interval:
        made = []
        for library in NODES:
            found = [of(each) for each in self.figures if each.library == library]
            if found:
                each = Interval(min(found), _mean(found), max(found))
                scale = node_of(library).to_28 if scaled else Interval.of(1.0)
                made.append(
                    Interval(each.low * scale.low, each.value * scale.value, each.high * scale.high)
                )
        return _joined(made)


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _joined(found: Sequence[Interval]) -> Interval:
    return Interval(
        min(each.low for each in found), _mean([each.value for each in found]),
        max(each.high for each in found),
    )  # fmt: skip


def read_table(file: Path = FILE) -> EventTable:
    """ConfigError: no such file, or a figure that is odd."""
    try:
        found = json.loads(file.read_text())
        names = [field.name for field in dataclasses.fields(Figure)]
        figures = tuple(Figure(**{name: each[name] for name in names}) for each in found["events"])
        made = EventTable(found["commit"], found["date"], figures)
    except OSError as error:
        raise ConfigError(f"{file.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file.name}: no figures of events: {error!r}") from None
    for each in figures:
        numbers = (each.pj, each.idle_pj, each.leakage_mw, each.flip_flops, each.kge)
        if not all(isinstance(n, int | float) and 0 < n < 1e12 for n in numbers):
            raise ConfigError(f"{file.name}: {each.event}: figures must be above 0")
        node_of(each.library)
    return made


@functools.cache
def event_table() -> EventTable:
    """The table of the project."""
    return read_table()
