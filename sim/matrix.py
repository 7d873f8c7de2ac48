"""A chip of a matrix unit, a vector unit and a memory; files of ``sim/engines`` add to it.

Matrices: each weight is read once per operation, and meets all tokens. Attention: FP16 words of K
and V. Activations are on chip, as far as the buffer has room for what an operation reads and
writes. All resources of an operation work side by side.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from golden.config import Config, ConfigError, bounded, choice, flag, power_of_two
from sim.constant import Interval
from sim.cost import Cost, Spent, Totals
from sim.engine import Engine
from sim.hardware import Hardware
from sim.model import Model
from sim.roofline import operation, spilled
from sim.work import (
    ATTENTION,
    LINEAR,
    Part,
    Pass,
    Shape,
    Work,
    attended_tokens,
    attention_works,
    cached_tokens,
    works,
)

WORD = 2  # bytes of an FP16 word
CONSTANTS: dict[str, tuple[str, str]] = {
    "peak": ("TFLOPS", "FP16 products and sums of all cores, an operation each"),
    "clock": ("Hz", "of the cores"),
    "utilization": ("", "share of the peak that a large product reaches"),
    "vector": ("TOPS", "elements that all vector units take per second"),
    "buffer": ("B", "activations that stay on chip"),
    "watts": ("W", "of the chip without its memory, all units at work"),
    "idle": ("", "share of these watts that is taken without work"),
    "core_area": ("mm2", "of a core"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixSettings(Config):
    """Choices of a chip of a matrix unit."""

    cores: int = bounded(264, 1, 1 << 16, "cores of the chip")
    split: bool = flag(True, "a token's matrices and heads go to several cores; false: to one")
    weight_bits: int = choice(16, (4, 8, 16), "of an element of a matrix")
    weight_group: int = bounded(128, 1, 1 << 16, "elements that share an FP16 scale below 16 bits")
    page_bytes: int = power_of_two(4096, 256, 65536, "of a page of the cache")
    max_tokens: int = bounded(1 << 17, 1, 1 << 20, "longest sequence")

    @property
    def weight_bytes(self) -> float:
        """Bytes of an element, with its share of a scale."""
        scales = 0.0 if self.weight_bits == 16 else WORD / self.weight_group
        return self.weight_bits / 8 + scales


@dataclasses.dataclass(frozen=True)
class PartLoad:
    """The work of attention for each of ``count`` sequences, in one layer.

    cached : tokens of the cache that are read
    new : tokens that are computed and written
    pairs : sum over new tokens of the tokens that each attends
    """

    count: int
    cached: int
    new: int
    pairs: int


_Share = tuple[float, float, float, float]
_Shares = list[_Share]
_Group = tuple[list[Spent], _Shares]


def _last(made: Sequence[Spent]) -> int:
    """The place of the first operation that depends on the words: these are the last ones."""
    return next(n for n, each in enumerate(made) if each.name == "final norm")


def _shares(spent: Iterable[Spent]) -> _Shares:
    """Seconds of each operation, of its matrix unit, of the slowest unit but memory; its bytes."""
    return [
        (
            each.seconds,
            each.limits.get("matrix", 0.0),
            max((s for n, s in each.limits.items() if n != "memory"), default=0.0),
            float(sum(each.traffic.values())),
        )
        for each in spent
    ]


def part_loads(model: Model, step: Pass) -> list[PartLoad]:
    return [
        PartLoad(
            part.count, cached_tokens(model, part.context), part.new,
            attended_tokens(model, part.context, part.new),
        )
        for part in step.parts
    ]  # fmt: skip


def with_background(
    limits: Mapping[str, float], background: Mapping[str, float], rest: float
) -> dict[str, float]:
    """``limits`` with those of engines that nothing in the layer waits for.

    They may work for ``rest`` seconds more, since the next pass is the first to need their results.
    Their time is cut to that of the operation.
    """
    front = max(limits.values())
    return {**limits, **{name: min(s, max(front, s - rest)) for name, s in background.items()}}


class MatrixEngine(Engine):
    """The base of chips with a matrix unit. It has no name, so that no file of hardware has it."""

    constants: ClassVar[Mapping[str, tuple[str, str]]] = CONSTANTS
    Settings: ClassVar[type[Config]] = MatrixSettings
    chip_fields: ClassVar[Collection[str]] = ("cores", "peak", "clock", "vector", "buffer")
    # Page tables are in no figure, so the longest sequence changes none.
    free_fields: ClassVar[Collection[str]] = (
        "split",
        "weight_bits",
        "weight_group",
        "page_bytes",
        "max_tokens",
    )
    energies: ClassVar[Collection[str]] = ("watts",)
    areas: ClassVar[Mapping[str, Collection[str]]] = {"paper": ("core_area",)}
    # Cores bring their peak, their vector unit and their buffer.
    follows: ClassVar[Mapping[str, Collection[str]]] = {"core_area": ("cores",)}

    def __init__(self, hardware: Hardware):
        super().__init__(hardware)
        # Serving asks for many passes, of which only the contexts differ.
        self._by_tokens = functools.lru_cache(1 << 13)(self._tokens_group)
        self._by_words = functools.lru_cache(1 << 12)(self._words_group)
        self._supported = functools.lru_cache(64)(self.supports)

    def weight_bytes(self, model: Model) -> float:
        return model.weights * self.settings.weight_bytes

    def kv_bytes(self, model: Model, tokens: int) -> float:
        return sum(self.cache_bytes(each, tokens) for each in model.alike)

    def cache_bytes(self, model: Model, tokens: int) -> float:
        """Bytes of K and V where all layers attend alike.

        FP16 words in pages: a stream for each head of K and of V of each layer.
        """
        kept = model.kept(tokens)
        stream = self.paged(kept * model.head_size * WORD)
        return 2.0 * model.layers * model.kv_heads * stream

    def check(self, model: Model, batch: int, context: int) -> None:
        most = self.settings.max_tokens
        if max(each.kept(context) for each in model.alike) > most:
            raise ConfigError(
                f"{self.hardware.name}: context must be 1..{most} tokens, not {context}"
            )
        self._supported(model)

    def supports(self, model: Model) -> None:
        """ConfigError: the engines do not have such heads or such matrices."""
        if model.kv_rank:
            raise ConfigError(
                f"{self.hardware.name}: kv_lora_rank must be absent, not {model.kv_rank}: each "
                "core attends with K and V of heads, and the cache has a stream for each"
            )

    def paged(self, amount: float) -> float:
        """Bytes of the pages that a stream of ``amount`` bytes takes."""
        size: int = self.settings.page_bytes
        return math.ceil(amount / size) * size

    @property
    def clock(self) -> float:
        return self.base("clock")

    @property
    def macs(self) -> float:
        """Products of all cores per second that a large product reaches."""
        return self.base("peak") / 2 * self.base("utilization")

    @property
    def memory_cycles(self) -> int:
        """The cycles from a request to its first word."""
        return max(1, round(self.memory.latency * self.clock))

    @property
    def area(self) -> Mapping[str, float]:
        return {"paper": self.settings.cores * self.base("core_area")}

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        return {"activations": self.base("buffer")}

    def extrapolated(self, model: Model) -> tuple[str, ...]:
        """Why predictions lie outside what was measured."""
        return ()

    def _attentions(self, model: Model, step: Pass, others: Iterable[_Shares]) -> list[Spent]:
        """others: the operations but attention."""
        self.check(model, step.sequences, max(part.context + part.new for part in step.parts))
        rest = sum([each[0] for group in others for each in group]) / model.layers
        return [
            self.attention(each, step, work, rest) for each, work in attention_works(model, step)
        ]

    def cost(self, model: Model, step: Pass) -> Cost:
        before, after = self._by_tokens(model, step.tokens)
        last = self._by_words(model, step.words)
        attention = self._attentions(model, step, (before[1], after[1], last[1]))
        spent = (*before[0], *attention, *after[0], *last[0])
        energy = self.energy(_shares(spent))
        joules = {**energy, "sram": self.on_chip(model, step)}
        return Cost(spent, joules, self.extrapolated(model))

    def totals(self, model: Model, parts: Sequence[Shape], words: int) -> Totals:
        step = Pass.of(parts, words)
        (_, before), (_, after) = self._by_tokens(model, step.tokens)
        _, last = self._by_words(model, words)
        attention = _shares(self._attentions(model, step, (before, after, last)))
        shares = [*before, *attention, *after, *last]
        found = Interval.of(0.0)
        for joules in (*self.energy(shares).values(), self.on_chip(model, step)):
            found = found + joules
        return Totals(
            sum([each[0] for each in shares]), sum([each[3] for each in shares]),
            (found.low, found.value, found.high), self.extrapolated(model),
        )  # fmt: skip

    def _others(self, model: Model, tokens: int, words: int) -> tuple[list[Spent], int]:
        """All operations of a pass but attention, and the place that attention has."""
        found = works(model, Pass((Part(count=tokens, new=1, context=0),), logits=words))
        place = next(n for n, work in enumerate(found) if work.kind == ATTENTION)
        made = [
            self.linear(model, work) if work.kind == LINEAR else self.other(work)
            for work in found
            if work.kind != ATTENTION
        ]
        return made, place

    def _tokens_group(self, model: Model, tokens: int) -> tuple[_Group, _Group]:
        """The operations before attention, and those after it that depend on the tokens."""
        made, place = self._others(model, tokens, 1)
        before, after = made[:place], made[place : _last(made)]
        return (before, _shares(before)), (after, _shares(after))

    def _words_group(self, model: Model, words: int) -> _Group:
        """The operations that depend on the words."""
        made, _ = self._others(model, 1, words)
        last = made[_last(made) :]
        return last, _shares(last)

    def on_chip(self, model: Model, step: Pass) -> Interval:
        """Joules of memories on chip that the chip's watts leave out: here none."""
        return Interval.of(0.0)

    def spilled(self, work: Work) -> float:
        """Bytes of activations that find no room on chip."""
        return spilled(work, WORD, WORD, self.base("buffer"))

    def product_seconds(self, work: Work) -> float:
        """The seconds of the matrix unit.

        Without ``split`` a token is on one core, and has its rate.
        """
        seconds = work.macs / self.macs
        if self.settings.split or not work.rows:
            return seconds
        cores = self.settings.cores
        return seconds * math.ceil(work.rows / cores) * cores / work.rows

    def roofline(
        self,
        work: Work,
        limits: Mapping[str, float],
        traffic: Mapping[str, float],
        overhead: float = 0.0,
    ) -> Spent:
        """An operation with the memory's and the vector unit's time; ``limits``: of the others."""
        moved = {**traffic, "activations": self.spilled(work)}
        made = {
            "memory": self.memory.seconds(sum(moved.values())),
            "vector": work.vectors / self.base("vector"),
            **limits,
        }
        return operation(work, made, moved, overhead)

    def linear(self, model: Model, work: Work) -> Spent:
        limits = {"matrix": self.product_seconds(work)}
        return self.roofline(work, limits, {"weights": work.weights * self.settings.weight_bytes})

    def other(self, work: Work) -> Spent:
        return self.roofline(work, {}, {})

    def busiest(self, jobs: Iterable[tuple[int, float]]) -> float:
        """Time of the busiest core. jobs: how many, and the time of each on one core.

        A job is on one core. Sequences of many lengths are spread evenly over the layers.
        """
        total, longest = 0.0, 0.0
        for count, each in jobs:
            total += count * each
            longest = max(longest, each)
        return max(longest, total / self.settings.cores)

    def attend_seconds(self, model: Model, loads: list[PartLoad], whole: bool) -> dict[str, float]:
        """The seconds of matrix unit and vector unit in a layer.

        whole: a token's heads are on one core.
        """
        apart = 1 if whole else model.heads
        macs, cores = self.macs, self.settings.cores
        query = model.heads * model.head_size
        products = [
            (load.count * load.new * apart, 2 * load.pairs / load.new * query / apart)
            for load in loads
        ]
        scores = sum(load.count * load.pairs for load in loads) * model.heads
        scores *= 2 if model.attention_cap else 1
        vectors = sum(load.count * load.new for load in loads) * 2 * query
        return {
            "matrix": self.busiest(products) * cores / macs,
            "vector": (scores + vectors) / self.base("vector"),
        }

    def attention(self, model: Model, step: Pass, work: Work, rest: float) -> Spent:
        """rest: seconds of a layer's other operations, in which engines of the cache may work."""
        limits = self.attend_seconds(model, part_loads(model, step), not self.settings.split)
        traffic = {"kv_read": work.kv_read * WORD, "kv_written": work.kv_written * WORD}
        return self.roofline(work, limits, traffic, self.memory.latency)

    def energy(self, shares: Iterable[_Share]) -> dict[str, Interval]:
        """The energy of a pass.

        Static: the chip's share ``idle`` and the memory's standby. Core: the other watts, for as
        long as the matrix unit works (low), some unit works (value), or the pass takes (high).
        These watts include the memories of the cores.
        """
        seconds = matrix = units = moved = 0.0
        for each_seconds, each_matrix, each_units, each_moved in shares:
            seconds += each_seconds
            matrix += each_matrix
            units += each_units
            moved += each_moved
        watts = self.hardware.constants["watts"].interval
        idle = self.hardware.constants["idle"].interval
        still = Interval(watts.low * idle.low, watts.value * idle.value, watts.high * idle.high)
        core = Interval(
            watts.low * (1 - idle.high) * matrix,
            watts.value * (1 - idle.value) * units,
            watts.high * (1 - idle.low) * seconds,
        )
        return {
            "static": (still + self.memory.watts) * seconds,
            "dram": self.memory.joules(moved),
            "core": core,
        }
