"""Several chips that share one model: tensor and pipeline parallel over stated links. Pure Python.

Each chip has ``1 / tensor`` of the heads and of the inside of each network, in ``1 / pipeline`` of
the layers. Its cost is that of a model of such sizes. With f chips of a stage, n new tokens and h
elements of a vector in FP16:

| what moves | bytes | messages |
|---|---|---|
| sums of a ring, twice in each layer | 2 (f - 1) / f * 2 n h | 2 (f - 1) |
| logits of the words, once | (f - 1) / f * 2 words vocabulary | f - 1 |
| vectors to the next stage | 2 n h | 1 |

The sequences of a pass are dealt out to ``pipeline`` groups. A group passes all stages, one after
the other, and a stage has the groups in turn. So a pass takes ``pipeline`` times the slowest
group's stage. One prompt alone is in one group, and gains nothing. Nothing overlaps a message.

Every stage is taken to have the embeddings and the last matrix, in memory and in time. Energy is of
the chips while they work: links and stages that wait are not counted.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from golden.config import Config, ConfigError, bounded, real
from sim.constant import Interval
from sim.cost import Cost, Spent, Totals
from sim.engine import Engine
from sim.model import Model
from sim.work import Pass, Shape

_FP16 = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link(Config):
    """bandwidth : bytes per second of a chip, in each direction; latency : seconds of a message."""

    bandwidth: float = real(1e9, 1.0, 1e18)
    latency: float = real(0.0, 0.0, 10.0)

    def seconds(self, amount: float, messages: int = 1) -> float:
        return amount / self.bandwidth + messages * self.latency


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split(Config):
    """Chips that share the heads of a layer, and stages that share the layers."""

    tensor: int = bounded(1, 1, 1024)
    pipeline: int = bounded(1, 1, 1024)

    @property
    def chips(self) -> int:
        return self.tensor * self.pipeline


def part_of(model: Model, split: Split) -> Model:
    """The model that one chip has. ConfigError: a size that the chips cannot share."""
    tensor, pipeline = split.tensor, split.pipeline
    sizes = {
        "heads": model.heads, "intermediate": model.intermediate, "shared": model.shared,
        "dense_intermediate": model.dense_intermediate,
    }  # fmt: skip
    for name, size in sizes.items():
        if size % tensor:
            text = f"--tensor must divide the {size} {name} of {model.name}, not {tensor}"
            raise ConfigError(text)
    if model.kv_heads % tensor and tensor % model.kv_heads:
        raise ConfigError(
            f"--tensor must divide the {model.kv_heads} kv_heads of {model.name} or be a multiple, "
            f"not {tensor}"
        )
    if model.layers % pipeline:
        raise ConfigError(
            f"--pipeline must divide the {model.layers} layers of {model.name}, not {pipeline}"
        )
    if pipeline > 1 and (any(model.sliding) or any(model.dense) or any(model.unrotated)):
        raise ConfigError(
            f"--pipeline must be 1 for {model.name}, whose layers differ, not {pipeline}"
        )
    return dataclasses.replace(
        model,
        heads=model.heads // tensor,
        kv_heads=max(model.kv_heads // tensor, 1),
        intermediate=model.intermediate // tensor,
        shared=model.shared // tensor,
        dense_intermediate=model.dense_intermediate // tensor,
        vocabulary=-(-model.vocabulary // tensor),
        layers=model.layers // pipeline,
    )


class Parallel(Engine):
    """Chips of one kind as one. Bytes of weights, of the cache and of memory are of a chip."""

    name = "parallel"

    def __init__(self, engine: Engine, split: Split, link: Link):
        self.engine, self.split, self.link = engine, split, link
        self.hardware, self.memory, self.settings = engine.hardware, engine.memory, engine.settings
        self.chips = split.chips
        self._part = functools.lru_cache(maxsize=16)(lambda model: part_of(model, split))

    def weight_bytes(self, model: Model) -> float:
        return self.engine.weight_bytes(self._part(model))

    def kv_bytes(self, model: Model, tokens: int) -> float:
        return self.engine.kv_bytes(self._part(model), tokens)

    def kv_bits(self, model: Model, tokens: int) -> tuple[float, float]:
        return self.engine.kv_bits(self._part(model), tokens)

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        held = self.engine.sram_bytes(self._part(model))
        return {name: self.chips * amount for name, amount in held.items()}

    def check(self, model: Model, batch: int, context: int) -> None:
        self.engine.check(self._part(model), batch, context)

    def groups(self, parts: Sequence[Shape], words: int) -> list[tuple[list[Shape], int]]:
        """The sequences of each group of a pipeline, dealt out in turn, and its words."""
        stages, at = self.split.pipeline, 0
        made: list[list[Shape]] = [[] for _ in range(stages)]
        for count, new, context in parts:
            each, more = divmod(count, stages)
            for n in range(stages):
                own = each + ((n - at) % stages < more)
                if own:
                    made[n].append((own, new, context))
            at = (at + more) % stages
        kept = [group for group in made if group]
        every = sum(count for group in kept for count, _, _ in group)
        return [
            (group, max(1, -(-words * sum(count for count, _, _ in group) // every)))
            for group in kept
        ]

    def messages(self, model: Model, tokens: int, words: int) -> float:
        """Seconds of the messages of a stage."""
        chips, stages = self.split.tensor, self.split.pipeline
        vectors = float(tokens * model.hidden * _FP16)
        seconds = 0.0
        if chips > 1:
            share = (chips - 1) / chips
            ring = self.link.seconds(2 * share * vectors, 2 * (chips - 1))
            seconds = 2 * model.layers // stages * ring
            seconds += self.link.seconds(share * words * model.vocabulary * _FP16, chips - 1)
        return seconds + (self.link.seconds(vectors) if stages > 1 else 0.0)

    def totals(self, model: Model, parts: Sequence[Shape], words: int) -> Totals:
        part, slowest, moved = self._part(model), 0.0, 0.0
        reasons: tuple[str, ...] = ()
        energy: list[float] | None = [0.0, 0.0, 0.0]
        for group, own in self.groups(parts, words):
            found = self.engine.totals(part, group, own)
            tokens = sum(count * new for count, new, _ in group)
            slowest = max(slowest, found.seconds + self.messages(model, tokens, own))
            moved += self.chips * found.bytes
            reasons = found.extrapolated
            if found.energy is None:
                energy = None
            elif energy is not None:
                energy = [a + self.chips * b for a, b in zip(energy, found.energy, strict=True)]
        joules = (energy[0], energy[1], energy[2]) if energy is not None else None
        return Totals(self.split.pipeline * slowest, moved, joules, reasons)

    def cost(self, model: Model, step: Pass) -> Cost:
        parts = [(part.count, part.new, part.context) for part in step.parts]
        found = self.totals(model, parts, step.words)
        spent = Spent("all", found.seconds, {}, {"weights": found.bytes})
        energy = {"core": Interval(*found.energy)} if found.energy is not None else {}
        return Cost((spent,), energy, found.extrapolated)

    @property
    def not_scaled(self) -> Mapping[str, str]:
        return self.engine.not_scaled

    @property
    def area(self) -> Mapping[str, float]:
        return {name: self.chips * each for name, each in self.engine.area.items()}
