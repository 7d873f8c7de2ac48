"""The best plan of an engine within a budget, by branch and bound over a space of plans."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

from golden.config import ConfigError
from golden.vqllm import timing
from golden.vqllm.config import Budget, Plan, Work

__all__ = [
    "Estimate",
    "Planner",
    "Resources",
    "Shortage",
    "Space",
    "resources",
    "split_optimum",
    "split_traffic",
]

_WORD = 16  # bits of an FP16 word
_MACS = 256  # most products of a beat of a core and a vector


class Shortage(ValueError):
    """No plan fits: the message names the resource, and how much it is short."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a plan takes, in the units of a Budget."""

    register_bits: int
    sram_bits: int
    ports: int
    multipliers: int

    def fits(self, budget: Budget) -> bool:
        return (
            self.register_bits <= budget.register_bits
            and self.sram_bits <= budget.sram_bits
            and self.ports <= budget.ports
            and self.multipliers <= budget.multipliers
        )


def resources(work: Work, plan: Plan) -> Resources:
    """Memories of entries, vectors, sums and beats under way; registers of entries; products."""
    vq, cores = work.matrix.vq, plan.cores
    entry = _WORD * vq.size
    macs = plan.lookups // vq.stages * vq.size
    rows = math.ceil((plan.shared + vq.stages - 1) / plan.banks) * vq.stages
    banks = plan.banks * max(2, 2 * rows) * entry
    words = math.ceil(work.matrix.columns / macs)
    operands = plan.side * max(2, 2 * words) * _WORD * macs
    sums = plan.rows * (timing.sum_bits(vq.stages, words * macs) * plan.side + 1)
    beats = timing.IN_FLIGHT * plan.lookups * (entry + 1)
    return Resources(
        register_bits=cores * 2 * vq.stages * plan.registers * entry,
        sram_bits=cores * (banks + operands + sums + beats),
        ports=cores * (plan.banks + plan.side + 2),
        multipliers=cores * macs * plan.side,
    )


def split_traffic(outputs: int, codebooks: int, split: int) -> float:
    """What the paper balances: ``split * outputs + codebooks / split``."""
    return split * outputs + codebooks / split


def split_optimum(outputs: int, codebooks: int) -> int:
    """The whole number that minimises ``split_traffic``, the smaller of two.

    It is next to the paper's sqrt(codebooks / outputs), where both terms are equal. The paper calls
    that the mean value theorem. It is the inequality of the arithmetic and the geometric mean, and
    holds for real numbers.
    """
    low = max(1, math.isqrt(codebooks // outputs))
    return min((low, low + 1), key=lambda split: (split_traffic(outputs, codebooks, split), split))


@dataclasses.dataclass(frozen=True)
class Space:
    """Values of each field of a Plan; all combinations that are valid are plans."""

    method: tuple[str, ...] = ("dequantize",)
    fusion: tuple[str, ...] = ("none",)
    cores: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    lookups: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    side: tuple[int, ...] = (1,)
    split: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    rows: tuple[int, ...] = (256,)
    banks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    registers: tuple[int, ...] = (0, 2, 4, 8, 16, 32, 64, 128, 256)
    shared: tuple[int, ...] = (256,)

    @classmethod
    def of(cls, work: Work) -> "Space":
        """All powers of two, with lookups in whole vectors."""
        vq, shape = work.matrix.vq, work.matrix
        powers = [1 << n for n in range(21)]
        least_rows = 1 << max(0, (shape.tile_rows - 1).bit_length())
        return cls(
            method=("dequantize",),
            lookups=tuple(n * vq.stages for n in powers if n * vq.stages <= 64),
            side=tuple(n for n in powers if n <= 64 and n < 2 * work.vectors),
            rows=tuple(n for n in powers if 16 <= n <= min(least_rows, 1 << 16)) or (least_rows,),
            shared=tuple(n for n in powers if n <= vq.entries),
        )

    def fixed(self, **fields) -> "Space":
        """The part of the space where these fields have these values."""
        changes = {
            name: value if isinstance(value, tuple) else (value,) for name, value in fields.items()
        }
        return dataclasses.replace(self, **changes)

    def outer(self, work: Work) -> Iterator[dict]:
        """Values of all fields but those of the tiers."""
        vq = work.matrix.vq
        names = ("method", "fusion", "cores", "lookups", "side", "split", "rows")
        for values in itertools.product(*(getattr(self, name) for name in names)):
            found = dict(zip(names, values, strict=True))
            macs = found["lookups"] // vq.stages * vq.size
            if found["cores"] % found["split"] or found["lookups"] % vq.stages or macs > _MACS:
                continue
            yield found

    def tiers(self) -> Iterator[dict]:
        for banks, registers, shared in itertools.product(self.banks, self.registers, self.shared):
            if registers <= shared:
                yield {"banks": banks, "registers": registers, "shared": shared}

    def plans(self, work: Work) -> Iterator[Plan]:
        """All of them."""
        for outer in self.outer(work):
            for tiers in self.tiers():
                yield Plan(**outer, **tiers)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A plan, its expected cycles by resource, and what it takes."""

    plan: Plan
    terms: dict[str, float]
    resources: Resources
    moved: int  # bits of partial sums and codebooks

    @property
    def cycles(self) -> int:
        fill = self.terms["fill"]
        return math.ceil(max(v for name, v in self.terms.items() if name != "fill") + fill)

    @property
    def limit(self) -> str:
        """The resource that decides."""
        names = [name for name in self.terms if name != "fill"]
        return max(names, key=lambda name: self.terms[name])

    @property
    def key(self) -> tuple:
        """The smallest is the best: cycles, then traffic, then what the plan takes."""
        taken = self.resources
        return (
            self.cycles, self.moved, taken.sram_bits, taken.register_bits, taken.ports,
            taken.multipliers, tuple(self.plan.describe().values()),
        )  # fmt: skip


class Planner:
    """Estimates of plans for one piece of work within one budget.

    counts: look-ups of each entry, (tiles, stages, entries), in any order: the codebooks are taken
    to be in the falling order of them. One tile stands for all tiles. None: all entries are equal.
    ConfigError: the counts are of another work.
    """

    def __init__(self, work: Work, budget: Budget, counts: np.ndarray | None = None):
        vq = work.matrix.vq
        if counts is None:
            counts = np.ones((1, vq.stages, vq.entries))
        tiles = math.prod(work.matrix.grid)
        if counts.shape not in {(n, vq.stages, vq.entries) for n in (1, tiles)}:
            wanted = f"({tiles} or 1, {vq.stages}, {vq.entries})"
            raise ConfigError(f"histogram must be {wanted}, not {counts.shape}")
        if not (counts.sum(-1) > 0).all():
            raise ConfigError("histogram must have a look-up in each tile and stage")
        self.work, self.budget = work, budget
        ordered = -np.sort(-counts.astype(float), axis=-1)
        self.counts, self.weights = np.unique(ordered, axis=0, return_counts=True)
        self._far = functools.cache(self._far)  # type: ignore[method-assign]
        self._tiers = functools.cache(self._tiers)  # type: ignore[method-assign]
        self._cycles = functools.cache(self._cycles)  # type: ignore[method-assign]

    def _mean(self, of_tiles: np.ndarray) -> float:
        return float(of_tiles @ self.weights / self.weights.sum())

    def _far(self, shared: int) -> np.ndarray:
        """Share of the look-ups that go to memory: (tiles, stages)."""
        return (self.counts / self.counts.sum(-1, keepdims=True))[..., shared:].sum(-1)

    def _tiers(self, registers: int, shared: int, banks: int) -> np.ndarray:
        return timing.tier_chances(self.counts, (registers, shared, banks))

    def _cycles(self, registers: int, shared: int, banks: int, lanes: int) -> float:
        chances = self._tiers(registers, shared, banks)
        return self._mean(timing.beat_cycles(timing.beat_chances(chances, lanes)))

    def beats(self, plan: Plan, *, quick: bool = False) -> timing.Beats:
        """Expected beats of a plan. quick: with no more cycles than those, found sooner."""
        tiers = (plan.registers, plan.shared, plan.banks)
        chances = self._tiers(*tiers)
        far = self._far(plan.shared)
        jobs = timing.core_jobs(self.work, plan)
        used = {lanes for job in jobs for _, lanes in timing.job_beats(self.work, plan, job)}
        cycles = {
            lanes: self._mean(timing.beat_floor(chances, lanes))
            if quick
            else self._cycles(*tiers, lanes)
            for lanes in used
        }
        waits = {lanes: self._mean(1 - np.prod((1 - far) ** lanes, axis=1)) for lanes in used}
        return timing.Beats(cycles=cycles, waits=waits, far=self._mean(far.mean(1)))

    def estimate(self, plan: Plan, *, quick: bool = False) -> Estimate:
        """What a plan takes; quick: cycles are no more than the real estimate."""
        work = self.work
        return Estimate(
            plan=plan,
            terms=timing.plan_terms(work, plan, self.budget, self.beats(plan, quick=quick)),
            resources=resources(work, plan),
            moved=timing.moved_bits(work, plan),
        )

    def best(self, space: Space) -> Estimate:
        """The plan of the space with the smallest key, of those that fit. Shortage: none fits."""
        nodes = []
        for outer in space.outer(self.work):
            for shared in space.shared:
                plan = Plan(**outer, banks=1, registers=0, shared=shared)
                nodes.append((*self._free(plan), plan))
        best: Estimate | None = None
        for cycles, moved, plan in sorted(nodes, key=lambda node: node[:2]):
            if best is not None and (cycles, moved) > best.key[:2]:
                break
            fitting = []
            for banks, registers in itertools.product(space.banks, space.registers):
                if registers <= plan.shared:
                    each = dataclasses.replace(plan, banks=banks, registers=registers)
                    if resources(self.work, each).fits(self.budget):
                        fitting.append(self.estimate(each, quick=True))
            for quick in sorted(fitting, key=lambda estimate: estimate.key):
                if best is not None and quick.key > best.key:
                    break
                found = self.estimate(quick.plan)
                if best is None or found.key < best.key:
                    best = found
        if best is None:
            raise Shortage(self._shortage(space))
        return best

    def _free(self, plan: Plan) -> tuple[int, int]:
        """Cycles of a plan with any banks and registers, if no beat had a conflict; and moved."""
        far = self._far(plan.shared)
        jobs = timing.core_jobs(self.work, plan)
        used = {lanes for job in jobs for _, lanes in timing.job_beats(self.work, plan, job)}
        waits = {lanes: self._mean(1 - np.prod((1 - far) ** lanes, axis=1)) for lanes in used}
        cycles = {lanes: self._mean(np.maximum(1, lanes * far.sum(1))) for lanes in used}
        terms = timing.plan_terms(
            self.work, plan, self.budget, timing.Beats(cycles, waits, self._mean(far.mean(1)))
        )
        found = math.ceil(max(v for n, v in terms.items() if n != "fill") + terms["fill"])
        return found, timing.moved_bits(self.work, plan)

    def _shortage(self, space: Space) -> str:
        """The resource of which the least plan lacks the largest share."""
        least: tuple[float, str] | None = None
        for plan in space.plans(self.work):
            taken = dataclasses.asdict(resources(self.work, plan))
            short = {name: (n, getattr(self.budget, name)) for name, n in taken.items()}
            name = max(short, key=lambda each: short[each][0] / max(1, short[each][1]))
            need, have = short[name]
            share = need / max(1, have)
            if least is None or share < least[0]:
                least = (share, f"{name}: {need - have} short: {have} of {need}")
        assert least is not None
        return least[1]
