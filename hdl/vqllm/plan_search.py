"""The best plan of an engine within a budget, by branch and bound over a space of plans."""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from golden.config import ConfigError
from golden.vqllm import timing
from golden.vqllm.config import Budget, Plan, Work
from hdl.vqllm.plan_config import Engine, engine

_WORD = 16  # bits of an FP16 word
_TABLE_ENTRIES = 4096  # most of a codebook whose tables are built
_MACS = 256  # most products of a beat of a core and a vector


class Shortage(ValueError):
    """No plan fits: the message names the resource, and how much it is short."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """The resources that a plan takes, in the units of a Budget."""

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
    """Memories of entries, tables, vectors, sums and beats under way; registers of entries."""
    if work.operation == "attention":
        return _attention_resources(work, plan)
    vq, cores = work.matrix.vq, plan.cores
    entry, lanes = _WORD * vq.size, plan.lookups // vq.stages
    columns = math.ceil(work.matrix.vectors / lanes) * lanes * vq.size  # whole beats
    vectors = plan.side * plan.groups * 2 * columns * _WORD
    sum_bits = timing.sum_bits(vq, columns)
    sums = plan.rows * plan.groups * (sum_bits * plan.side + 1)
    if plan.groups > 1:  # sums of the row so far
        sums += plan.groups * sum_bits * plan.side
    if plan.method == "tables":
        book = vq.stages * plan.shared * entry
        tables = plan.lookups * 2 * plan.shared * _WORD * plan.side
        return Resources(
            register_bits=0,
            sram_bits=2 * book + tables + vectors + sums,
            ports=plan.lookups + plan.side + 2,
            multipliers=plan.builders * vq.size * plan.side,
        )
    rows = math.ceil((plan.shared + vq.stages - 1) / plan.banks) * vq.stages
    banks = plan.banks * max(2, 2 * rows) * entry
    beats = timing.IN_FLIGHT * plan.lookups * (entry + 1)
    exchanged = lanes * entry * (plan.fusion == "exchange")
    buffered = 2 * lanes * entry * (plan.fusion == "buffer")
    return Resources(
        register_bits=cores * (2 * vq.stages * plan.registers * entry + exchanged),
        sram_bits=cores * (banks + vectors + sums + beats + buffered),
        ports=cores * (plan.banks + plan.side + 2 + lanes * (plan.fusion == "buffer")),
        multipliers=cores * lanes * (plan.need or vq.size) * plan.side,
    )


def _attention_resources(work: Work, plan: Plan) -> Resources:
    """Two sides of the codebooks of a pass, queries, scores or weights, and sums."""
    vq, tokens = work.matrix.vq, work.matrix.rows
    books = 2 * plan.lookups * plan.shared * vq.size * _WORD
    scores = tokens * (timing.sum_bits(vq, work.matrix.columns) * plan.side + 1)
    return Resources(
        register_bits=0,
        sram_bits=books + 2 * plan.side * work.matrix.columns * _WORD + scores,
        ports=plan.lookups + plan.side + 1,
        multipliers=2 * plan.lookups * vq.size * plan.side,
    )


def split_traffic(outputs: int, codebooks: int, split: int) -> float:
    """The traffic that the paper balances: ``split * outputs + codebooks / split``."""
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
    """Values of the fields of a Plan; all combinations that make sense for the work are plans."""

    method: tuple[str, ...] = ("dequantize", "tables")
    fusion: tuple[str, ...] = ("none", "exchange", "buffer")
    need: tuple[int, ...] = (1, 2, 4, 8)
    cores: tuple[int, ...] = (1, 2, 4, 8, 16)
    lookups: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    side: tuple[int, ...] = (1,)
    groups: tuple[int, ...] = (2, 4, 8, 16, 32, 64)  # of a gemm
    split: tuple[int, ...] = (1, 2, 4, 8, 16)
    rows: tuple[int, ...] = (256,)
    builders: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    banks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    registers: tuple[int, ...] = (0, 2, 4, 8, 16, 32, 64, 128, 256)
    shared: tuple[int, ...] = (256,)

    @classmethod
    def of(cls, work: Work) -> "Space":
        """All powers of two, with whole vectors in a beat."""
        vq, shape = work.matrix.vq, work.matrix
        powers = [1 << n for n in range(21)]
        least, most = (4, 8) if work.operation == "attention" else (1, 64)
        rows = [n for n in powers if 16 <= n < 2 * shape.tile_rows and n <= 1 << 16] or [16]
        one = {"cores": (1,), "split": (1,)} if work.operation == "gemm" else {}
        return cls(
            **one,
            lookups=tuple(n * vq.stages for n in powers if least <= n * vq.stages <= 128),
            side=tuple(n for n in powers if n <= most and n < 2 * work.vectors),
            rows=tuple(rows),
            shared=tuple(n for n in powers if n <= vq.stored),
        )

    def fixed(self, **fields) -> "Space":
        """The part of the space where these fields have these values."""
        changes = {
            name: value if isinstance(value, tuple) else (value,) for name, value in fields.items()
        }
        return dataclasses.replace(self, **changes)

    def _outer(self, *names: str, **own) -> Iterator[dict]:
        for values in itertools.product(*(getattr(self, name) for name in names)):
            yield own | dict(zip(names, values, strict=True))

    def outer(self, work: Work) -> Iterator[tuple[dict, bool]]:
        """Values of all fields but the tiers; whether banks and registers are open."""
        vq, shape = work.matrix.vq, work.matrix
        whole = {"shared": vq.stored, "registers": 0, "banks": 1}
        if work.operation == "attention":
            if "dequantize" in self.method:
                for each in self._outer("lookups", "side", rows=shape.rows, **whole):
                    if shape.vectors % each["lookups"] == 0:
                        yield each, False
            return
        if "tables" in self.method and not vq.lattice and work.operation == "gemv":
            for each in self._outer(
                "lookups", "side", "rows", "builders", method="tables", **whole
            ):
                lanes = each["lookups"] // vq.stages
                if self._is_valid(work, {"cores": 1, "split": 1, **each}):
                    if lanes % each["builders"] == 0 and vq.stored <= _TABLE_ENTRIES:
                        yield each, False
        if "dequantize" in self.method:
            is_gemm = work.operation == "gemm"
            names = ("cores", "lookups", "side", "split", "rows", "shared")
            for each in self._outer(*names, *(("groups",) if is_gemm else ())):
                # With one codebook along the columns, no sum waits for another job.
                useless = shape.grid[1] == 1 and each["rows"] != self.rows[0]
                if is_gemm and each["groups"] > self.groups[0]:
                    # Half of them hold all vectors.
                    useless |= each["groups"] // 2 * each["side"] >= work.vectors
                if useless or not self._is_valid(work, each):
                    continue
                for fusion in self.fusion:
                    for need in self.need if fusion != "none" else (0,):
                        pieces = vq.size // need if need else 1
                        lanes = each["lookups"] // vq.stages
                        is_group = pieces >= 2 and pieces & (pieces - 1) == 0
                        if not need or (
                            is_group and vq.size == pieces * need and lanes % pieces == 0
                        ):
                            yield each | {"fusion": fusion, "need": need}, True

    @staticmethod
    def _is_valid(work: Work, each: dict) -> bool:
        vq = work.matrix.vq
        lanes = each["lookups"] // vq.stages
        return (
            each["cores"] % each["split"] == 0
            and each["lookups"] % vq.stages == 0
            and each["lookups"] <= 64
            and lanes * vq.size <= _MACS
        )

    def has(self, plan: Plan) -> bool:
        """Whether a plan of a larger space is here, whatever its banks and registers."""
        if plan.method not in self.method or plan.lookups not in self.lookups:
            return False
        if plan.cores not in self.cores or plan.split not in self.split:
            return False
        if plan.groups > 1 and plan.groups not in self.groups:
            return False
        if plan.method == "tables":
            return plan.builders in self.builders
        return plan.shared in self.shared and plan.fusion in self.fusion

    def plans(self, work: Work) -> Iterator[Plan]:
        """All of them."""
        for outer, is_open in self.outer(work):
            tiers = itertools.product(self.banks, self.registers) if is_open else [(None, None)]
            for banks, registers in tiers:
                if not is_open:
                    yield Plan(**outer)
                elif registers <= outer["shared"]:
                    yield Plan(**outer, banks=banks, registers=registers)


def _total(terms: dict[str, float]) -> int:
    """The largest of the terms and the fill, in whole cycles."""
    largest = max(value for name, value in terms.items() if name != "fill")
    return math.ceil(largest + terms["fill"] - 1e-6)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A plan, its expected cycles by resource, and what it takes."""

    plan: Plan
    terms: dict[str, float]
    resources: Resources
    moved: int  # bits of partial sums and codebooks

    @property
    def cycles(self) -> int:
        return _total(self.terms)

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


@dataclasses.dataclass(frozen=True)
class _Node:
    """Plans that differ in banks and registers alone, the one with the least of both."""

    plan: Plan
    is_open: bool  # there are others
    fits: bool
    key: tuple[int, int]  # no plan of the node has fewer cycles, and all move as many bits


def _least(nodes: Iterable[_Node], space: Space) -> list[Plan]:
    """The plans of a space that take the least of their nodes."""
    least = {"banks": min(space.banks), "registers": min(space.registers)}
    return [
        dataclasses.replace(node.plan, **least) if node.is_open else node.plan
        for node in nodes
        if not node.is_open or least["registers"] <= node.plan.shared
    ]


class Planner:
    """Estimates of plans for one piece of work within one budget.

    counts: look-ups of each entry, (tiles, stages, entries), in any order: the codebooks are taken
    to be in the falling order of them. One tile may serve for all. None: all entries are equal.
    ConfigError: the counts are of another work.
    """

    def __init__(self, work: Work, budget: Budget, counts: np.ndarray | None = None):
        vq = work.matrix.vq
        if counts is None:
            counts = np.ones((1, vq.stages, vq.stored))
        tiles = math.prod(work.matrix.grid)
        if counts.shape not in {(n, vq.stages, vq.stored) for n in (1, tiles)}:
            number = f"{tiles} or 1" if tiles > 1 else "1"
            wanted = f"({number}, {vq.stages}, {vq.stored})"
            raise ConfigError(f"histogram must be {wanted}, not {counts.shape}")
        if not (counts.sum(-1) > 0).all():
            raise ConfigError("histogram must have a look-up in each tile and stage")
        self.work, self.budget = work, budget
        ordered = -np.sort(-counts.astype(float), axis=-1)
        self.counts, self.weights = np.unique(ordered, axis=0, return_counts=True)
        self._nodes = functools.cache(self._nodes)  # type: ignore[method-assign]
        self._refusal = functools.cache(self._refusal)  # type: ignore[method-assign]
        self._far = functools.cache(self._far)  # type: ignore[method-assign]
        self._tiers = functools.cache(self._tiers)  # type: ignore[method-assign]
        self._cycles = functools.cache(self._cycles)  # type: ignore[method-assign]
        self._chances = functools.cache(self._chances)  # type: ignore[method-assign]

    def _mean(self, of_tiles: np.ndarray) -> float:
        return float(of_tiles @ self.weights / self.weights.sum())

    def _far(self, shared: int) -> np.ndarray:
        """Share of the look-ups that go to memory: (tiles, stages)."""
        return (self.counts / self.counts.sum(-1, keepdims=True))[..., shared:].sum(-1)

    def _tiers(self, registers: int, shared: int, banks: int) -> np.ndarray:
        return timing.tier_chances(self.counts, (registers, shared, banks))

    def _cycles(self, tiers: tuple[int, int, int], lanes: int) -> tuple[float, float]:
        """Mean and variance of a beat."""
        chances = self._chances(tiers, lanes)
        return (
            self._mean(timing.beat_cycles(chances)),
            self._mean(timing.beat_variance(chances)),
        )

    def _chances(self, tiers: tuple[int, int, int], lanes: int) -> np.ndarray:
        return timing.beat_chances(self._tiers(*tiers), lanes)

    def _lanes(self, plan: Plan) -> set[int]:
        """Look-ups of each stage in the beats of a plan."""
        jobs = timing.core_jobs(self.work, plan)
        return {lanes for job in jobs for _, lanes in timing.job_beats(self.work, plan, job)}

    def beats(self, plan: Plan, *, quick: bool = False) -> timing.Beats:
        """Expected beats of a plan. quick: with no more cycles than those, found sooner."""
        tiers = (plan.registers, plan.shared, plan.banks)
        if quick or plan.method == "tables" or self.work.operation == "attention":
            return self._floor(plan, self._tiers(*tiers))
        found = {lanes: self._cycles(tiers, lanes) for lanes in self._lanes(plan)}
        floor = self._floor(plan, self._tiers(*tiers))
        return dataclasses.replace(
            floor,
            cycles={lanes: mean for lanes, (mean, _) in found.items()},
            variance={lanes: variance for lanes, (_, variance) in found.items()},
        )

    def _floor(self, plan: Plan, chances: np.ndarray) -> timing.Beats:
        """Beats with no more cycles than expected; chances of banks and of memory, and of others.

        Without a variance fewer beats wait for memory.
        """
        if plan.method == "tables" or self.work.operation == "attention":
            return timing.Beats({}, {}, {}, 0.0)  # each lane has a memory of its own
        used, far = self._lanes(plan), self._far(plan.shared)
        return timing.Beats(
            cycles={n: self._mean(timing.beat_floor(chances, n)) for n in used},
            variance=dict.fromkeys(used, 0.0),
            waits={n: self._mean(1 - np.prod((1 - far) ** n, axis=1)) for n in used},
            far=self._mean(far.mean(1)),
        )

    def estimate(self, plan: Plan, *, quick: bool = False) -> Estimate:
        """Estimates what a plan takes; quick: cycles are no more than the real estimate."""
        work = self.work
        return Estimate(
            plan=plan,
            terms=timing.plan_terms(work, plan, self.budget, self.beats(plan, quick=quick)),
            resources=resources(work, plan),
            moved=timing.moved_bits(work, plan),
        )

    def engine(self, plan: Plan) -> Engine:
        """The engine that is generated for a plan. ConfigError: its generator refuses it."""
        return engine(self.work, plan, self.budget)

    def _refusal(self, plan: Plan) -> str:
        """Why the generator refuses a plan; nothing where it takes it."""
        try:
            self.engine(plan)
        except ConfigError as error:
            return str(error)
        return ""

    def best(self, space: Space, within: Space | None = None) -> Estimate:
        """The plan with the smallest key, of those that fit and that a generator takes.

        Shortage: the space has none.

        within: a space that has all plans of this one. Its first search makes the others fast.
        """
        every = self._nodes(within or space)
        nodes = [node for node in every if node.fits and space.has(node.plan)]
        best: Estimate | None = None
        for node in nodes:
            plan, is_open = node.plan, node.is_open
            if best is not None and node.key > best.key[:2]:
                break
            if self._refusal(plan):
                continue
            fitting = [] if is_open else [self.estimate(plan, quick=True)]
            for banks, registers in itertools.product(space.banks, space.registers):
                if is_open and registers <= plan.shared:
                    each = dataclasses.replace(plan, banks=banks, registers=registers)
                    if resources(self.work, each).fits(self.budget):
                        fitting.append(self.estimate(each, quick=True))
            for quick in sorted(fitting, key=lambda estimate: estimate.key):
                if best is not None and quick.key > best.key:
                    break
                found = self.estimate(quick.plan)
                if (best is None or found.key < best.key) and not self._refusal(found.plan):
                    best = found
        if best is None:
            nodes = [node for node in every if space.has(node.plan)]
            raise Shortage(self._shortage(_least(nodes, space)))
        return best

    def _free(self, plan: Plan) -> tuple[int, int]:
        """Cycles of a plan with any registers, if no beat had a conflict; and moved.

        No plan with fewer banks has fewer: their loads take no less.
        """
        far = self._far(plan.shared)
        beats = self._floor(plan, np.stack((far, 1 - far), -1))
        terms = timing.plan_terms(self.work, plan, self.budget, beats)
        return _total(terms), timing.moved_bits(self.work, plan)

    def _nodes(self, space: Space) -> list[_Node]:
        """Plans of a space with the least tiers, the best first."""
        found = []
        for outer, is_open in space.outer(self.work):
            plan = Plan(**outer, banks=1, registers=0) if is_open else Plan(**outer)
            fits = resources(self.work, plan).fits(self.budget)
            most = dataclasses.replace(plan, banks=max(space.banks)) if is_open else plan
            key = self._free(most) if fits else (0, 0)
            found.append(_Node(plan, is_open, fits, key))
        return sorted(found, key=lambda node: node.key)

    def _shortage(self, plans: list[Plan]) -> str:
        """All that the plan lacks which comes closest to the budget."""
        if not plans:
            if self.work.matrix.vq.lattice:
                return "no such plan: signs of single elements share no table"
            return "no such plan for this work"
        accepted = [plan for plan in plans if not self._refusal(plan)]
        if not accepted:
            return collections.Counter(map(self._refusal, plans)).most_common(1)[0][0]
        budget = dataclasses.asdict(self.budget)
        needs = [dataclasses.asdict(resources(self.work, plan)) for plan in accepted]

        def shares(need: dict[str, int]) -> list[float]:
            return sorted((need[name] / max(1, budget[name]) for name in need), reverse=True)

        closest = min(needs, key=shares)
        return ", ".join(
            f"{name} must be {need} or more, {need - budget[name]} more than {budget[name]}"
            for name, need in closest.items()
            if need > budget[name]
        )
