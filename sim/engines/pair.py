"""Two chips in one: one has the weights, the other has K, V and attention, on one memory.

A step of decoding is the first chip's, without its attention, and then the attention of the
second. They take turns. A prompt runs on the first chip alone, and the
second stores its K and V.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from golden.config import Config, ConfigError
from sim.constant import Interval
from sim.cost import Cost, Spent
from sim.engine import Engine, engine_of
from sim.hardware import Hardware
from sim.model import Model
from sim.work import Part, Pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairSettings(Config):
    """weights, cache: known chips or files; the memory is the pair's own."""

    weights: str = "kllm-a4"
    cache: str = "oaken-hbm"

    def __post_init__(self) -> None:
        for name in ("weights", "cache"):
            if not isinstance(getattr(self, name), str):
                self._refuse(name, "a known chip or a file")


class Pair(Engine):
    """See the module."""

    name = "pair"
    Settings: ClassVar[type[Config]] = PairSettings
    constants: ClassVar[Mapping[str, tuple[str, str]]] = {}
    samples: ClassVar[int] = 3

    def __init__(self, hardware: Hardware):
        super().__init__(hardware)
        self.weights, self.cache = (
            self._part(getattr(self.settings, name)) for name in ("weights", "cache")
        )

    def _part(self, name: str) -> Engine:
        found = engine_of(name)
        if isinstance(found, Pair):
            raise ConfigError(f"{self.hardware.name}: settings: {name} must be no pair")
        return type(found)(dataclasses.replace(found.hardware, memory=self.memory))

    def weight_bytes(self, model: Model) -> float:
        return self.weights.weight_bytes(model)

    def kv_bytes(self, model: Model, tokens: int) -> float:
        return self.cache.kv_bytes(model, tokens)

    def kv_parts(self, model: Model, tokens: int) -> tuple[float, float]:
        return self.cache.kv_parts(model, tokens)

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        both = [each.sram_bytes(model) for each in (self.weights, self.cache)]
        if not all(both):
            return {}
        return {name: sum(each.get(name, 0.0) for each in both) for name in {**both[0], **both[1]}}

    @property
    def not_scaled(self) -> Mapping[str, str]:
        """Those of either chip."""
        made: dict[str, str] = {}
        for each in (self.weights, self.cache):
            for figure, why in each.not_scaled.items():
                if figure != "energy" and figure not in self.area:
                    continue
                why = f"{each.hardware.name}: {why}"
                made[figure] = f"{made[figure]}; {why}" if figure in made else why
        return made

    def check(self, model: Model, batch: int, context: int) -> None:
        self.weights.check(model, batch, 1)
        self.cache.check(model, batch, context)

    def cost(self, model: Model, step: Pass) -> Cost:
        if any(part.new > 1 for part in step.parts):
            return self.weights.cost(model, step)
        empty = Pass(tuple(Part(count=p.count, new=1, context=0) for p in step.parts), step.logits)
        first, second = self.weights.cost(model, empty), self.cache.cost(model, step)
        spent = [_without_cache(each) for each in first.spent if not _is_attention(each)]
        attention = [each for each in second.spent if _is_attention(each)]
        reasons = dict.fromkeys((*first.extrapolated, *second.extrapolated))
        made = Cost((*spent, *attention), extrapolated=tuple(reasons))
        # Watts of a unit while it works; bytes of the memory once; standby of both all the time.
        energy: dict[str, Interval] = {}
        for cost, own in ((first, spent), (second, attention)):
            share = sum(each.seconds for each in own) / cost.seconds
            for name in ("core", "sram"):
                part = cost.energy.get(name, Interval.of(0.0)) * share
                energy[name] = energy.get(name, Interval.of(0.0)) + part
        energy["dram"] = self.memory.joules(made.bytes)
        standby = self.memory.watts
        for cost in (first, second):  # each counts the memory's own too
            watts = cost.energy.get("static", Interval.of(0.0)) * (1 / cost.seconds)
            memory = self.memory.watts
            standby = standby + Interval(
                max(0.0, watts.low - memory.low),
                max(0.0, watts.value - memory.value),
                max(0.0, watts.high - memory.high),
            )
        energy["static"] = standby * made.seconds
        return dataclasses.replace(made, energy=energy)

    @property
    def area(self) -> Mapping[str, float]:
        """The area of both, by those whose figures both have."""
        first, second = self.weights.area, self.cache.area
        return {name: first[name] + second[name] for name in first if name in second}


def _is_attention(spent: Spent) -> bool:
    """Whether a cache of its own replaces an operation; models may have two of attention."""
    return spent.name.endswith("attention")


def _without_cache(spent: Spent) -> Spent:
    """An operation without bytes of K and V: the other chip reads and writes them."""
    traffic = {name: n for name, n in spent.traffic.items() if not name.startswith("kv_")}
    return dataclasses.replace(spent, traffic=traffic)
