"""The cost of a pass: time and bytes of each operation, energy by part. Pure Python."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sim.constant import Interval

TRAFFIC = ("weights", "kv_read", "kv_written", "activations")  # bytes of memory, by what they are
ENERGY = ("static", "dram", "sram", "core")  # joules, by where they go


@dataclasses.dataclass(frozen=True)
class Spent:
    """The resources that one operation took, all its executions together.

    seconds : that it adds to the pass
    limits : seconds that each resource would take alone; none is above ``seconds``
    traffic : bytes of memory, by TRAFFIC
    macs : multiplications that are added up
    """

    name: str
    seconds: float
    limits: Mapping[str, float]
    traffic: Mapping[str, float]
    macs: float = 0.0

    @property
    def binds(self) -> str:
        """The resource that would take longest; ``overhead`` if none is known."""
        return max(self.limits, key=lambda each: self.limits[each]) if self.limits else "overhead"

    @property
    def slack(self) -> float:
        """Seconds of the binding resource above those of the next one."""
        most = sorted(self.limits.values(), reverse=True)
        return most[0] - most[1] if len(most) > 1 else (most[0] if most else 0.0)


class Totals(NamedTuple):
    """The sums of a Cost. energy: joules, lowest, used, highest; None: the cost states none."""

    seconds: float
    bytes: float
    energy: tuple[float, float, float] | None
    extrapolated: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Cost:
    """A pass, or many: ``spent`` by operation in order, ``energy`` in joules by part.

    The parts are ENERGY, or those of ``sim.energy.kllm`` where events are counted.
    events : counts of events in the chip's units; empty where nothing counts them.
    extrapolated: why the prediction lies outside what was measured; empty where it does not.
    """

    spent: tuple[Spent, ...]
    energy: Mapping[str, Interval] = dataclasses.field(default_factory=dict)
    extrapolated: tuple[str, ...] = ()
    events: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.spent)

    @property
    def bytes(self) -> float:
        return sum(sum(each.traffic.values()) for each in self.spent)

    def traffic(self) -> dict[str, float]:
        """Bytes by TRAFFIC."""
        made = dict.fromkeys(TRAFFIC, 0.0)
        for each in self.spent:
            for name, amount in each.traffic.items():
                made[name] += amount
        return made

    @property
    def joules(self) -> Interval:
        found = Interval.of(0.0)
        for each in self.energy.values():
            found = found + each
        return found


def totals_of(cost: Cost) -> Totals:
    joules = cost.joules
    energy = (joules.low, joules.value, joules.high) if cost.energy else None
    return Totals(cost.seconds, cost.bytes, energy, cost.extrapolated)


def _scaled(spent: Spent, factor: float) -> Spent:
    return Spent(
        spent.name,
        spent.seconds * factor,
        {name: value * factor for name, value in spent.limits.items()},
        {name: value * factor for name, value in spent.traffic.items()},
        spent.macs * factor,
    )


def _plus(a: Spent, b: Spent) -> Spent:
    def both(x: Mapping[str, float], y: Mapping[str, float]) -> dict[str, float]:
        return {name: x.get(name, 0.0) + y.get(name, 0.0) for name in {**x, **y}}

    return Spent(
        a.name, a.seconds + b.seconds, both(a.limits, b.limits), both(a.traffic, b.traffic),
        a.macs + b.macs,
    )  # fmt: skip


def total(costs: Iterable[tuple[float, Cost]]) -> Cost:
    """The weighted sum of costs: operations by name in the order of their first."""
    spent: dict[str, Spent] = {}
    energy: dict[str, Interval] = {}
    reasons: dict[str, None] = {}
    events: dict[str, float] = {}
    for factor, cost in costs:
        for each in cost.spent:
            scaled = _scaled(each, factor)
            spent[each.name] = _plus(spent[each.name], scaled) if each.name in spent else scaled
        for name, joules in cost.energy.items():
            energy[name] = energy.get(name, Interval.of(0.0)) + joules * factor
        for name, number in cost.events.items():
            events[name] = events.get(name, 0.0) + number * factor
        reasons |= dict.fromkeys(cost.extrapolated)
    return Cost(tuple(spent.values()), energy, tuple(reasons), events)
