"""``senbazuru.runs.vq_plans``: plans of gemm, tables, layouts and attention on their engines.

No constant of a prediction was set by these runs. All engines but attention take their codes from
streams of the bench. So their predictions have a memory that limits nothing but single entries.
"""

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from golden.config import Config
from golden.fp16.ops import bits_from_float
from golden.markers import table
from golden.million.config import PqShape
from golden.vqllm import timing
from golden.vqllm.access import look_ups
from golden.vqllm.cache import Tiers
from golden.vqllm.config import AttendShape, Budget, MatrixShape, Plan, VqShape, Work
from hdl.vqllm.attend.attention import VqAttentionConfig
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.core import VqGemvCore, VqGemvCoreConfig
from hdl.vqllm.gemv.gemm import VqGemm, VqGemmConfig
from hdl.vqllm.plan_search import Estimate, Planner
from hdl.vqllm.table.config import VqTableGemvConfig
from hdl.vqllm.table.gemv import VqTableGemv
from senbazuru.runs.cycles import Figure, described, predicted
from tb.simulate.run import build_model, run_model
from tb.vqllm.support.attention_engines import measure as attended
from tb.vqllm.support.core_words import core_params
from tb.vqllm.support.draws import drawn
from tb.vqllm.support.one_image import OneImage
from tb.vqllm.support.tables import table_params

MULTIPLIERS = 16
_VQ = VqShape(size=4, entries=64, stages=1)
_COLUMNS, _ROWS, _TOKENS = 256, 600, 16
_STREAMED = Budget(data_bits=1024, latency=5, multipliers=MULTIPLIERS)
_TIERS = ((0, 64), (16, 64), (0, 16), (16, 32))  # n_reg, n_shared
_FUSED_TIERS = ((0, 64), (8, 64), (16, 64))
# Rows, columns, tokens, and the skew of the codes
_GEMM = ((40, 192, 2, 1.0), (56, 256, 12, 0.5), (72, 128, 6, 0.1))
_GEMV = ((30, 192, 0.5), (200, 256, 0.3), (500, 128, 1.1))
_GROUPS, _CACHED = (8, 32), (80, 256, 448)
_ATTEND = Budget(data_bits=256, latency=20)
_PQ = PqShape(head_dim=64, subspaces=32, bits=8)


@dataclasses.dataclass(frozen=True)
class Run:
    """A plan for a piece of work on an engine."""

    work: str
    plan: str
    block: str
    config: Config
    estimate: Estimate
    cycles: int

    @property
    def error(self) -> float:
        return self.estimate.cycles / self.cycles - 1


def _cache(lookups: int) -> VqCodebookCacheConfig:
    return VqCodebookCacheConfig(
        vq=_VQ, lookups=lookups, registers=16, shared=64, banks=4, data_bits=_STREAMED.data_bits
    )


_PLAIN = VqGemmConfig(cache=_cache(4), tokens=_TOKENS, columns=_COLUMNS, rows=_ROWS)
_TABLES = VqTableGemvConfig(vq=_VQ, lookups=4, lanes=4, columns=_COLUMNS, rows=_ROWS)
_FUSED = {
    fusion: VqGemvCoreConfig(cache=_cache(8), columns=_COLUMNS, rows=_ROWS, fusion=fusion, need=2)
    for fusion in ("exchange", "buffer")
}
_HEADS = {
    groups: VqAttentionConfig(
        shape=AttendShape(pq=_PQ, groups=groups, data_bits=_ATTEND.data_bits, max_tokens=512)
    )
    for groups in _GROUPS
}
_SPAN = "from the first word, or the request, to the last result"


def _cycles(model, config, params: dict) -> int:
    """Counts the cycles of an engine whose words are all at hand; its results are golden's."""
    work = run_model(model, "tb.vqllm.tb_engine_rates", config=config, params=params)
    return json.loads((work / "rates.json").read_text())


def _named(plan: Plan) -> str:
    if plan.method == "tables":
        return "tables"
    fusion = "" if plan.fusion == "none" else f"{plan.fusion}, "
    return f"{fusion}n_reg {plan.registers}, n_shared {plan.shared}"


class _Matrix:
    """A drawn matrix, its vectors, and the planner of its histogram."""

    def __init__(self, rng, rows: int, columns: int, vectors: int, skew: float):
        shape = MatrixShape(rows=rows, columns=columns, vq=_VQ)
        self.rng, self.matrix = rng, drawn(rng, shape, skew)
        self.x = bits_from_float(torch.tensor(rng.normal(0, 1, (vectors, columns)))).numpy()
        operation = "gemm" if vectors > 1 else "gemv"
        work = Work(matrix=shape, operation=operation, vectors=vectors)
        self.planner = Planner(work, _STREAMED, look_ups(self.matrix).numpy().astype(float))
        tokens = f", {vectors} tokens" if vectors > 1 else ""
        self.name = f"{operation}: {rows} x {columns}, skew {skew}{tokens}"

    def plan(self, lookups: int, tiers: tuple[int, int], **fields) -> Plan:
        return Plan(
            lookups=lookups, banks=4, registers=tiers[0], shared=tiers[1], rows=_ROWS,
            groups=_TOKENS if len(self.x) > 1 else 1, **fields,
        )  # fmt: skip

    def run(self, model, block: str, config, plan: Plan, params: dict) -> Run:
        cycles = _cycles(model, config, params)
        return Run(
            self.name, _named(plan), block, config, self.planner.estimate(plan), cycles
        )  # fmt: skip

    def dequantized(self, model, config, sink: str, plan: Plan) -> Run:
        where = Tiers(plan.registers, plan.shared, plan.banks)
        params = core_params(config, self.rng, self.matrix, self.x, sink, where)
        block = "vq_gemm" if sink == "y" else "vq_gemv_core"
        return self.run(model, block, config, plan, params)

    def tabled(self, model) -> Run:
        plan = Plan(
            method="tables", lookups=_TABLES.lookups, builders=_TABLES.lanes, shared=_VQ.entries,
            rows=_ROWS, banks=1,
        )  # fmt: skip
        params, _ = table_params(_TABLES, self.rng, self.matrix, self.x)
        return self.run(model, "vq_table_gemv", _TABLES, plan, params)


def _products() -> Iterator[Run]:
    """A gemm under its tiers; a gemv under its tiers, by tables, and through other layouts."""
    rng = np.random.default_rng(15)
    works = [_Matrix(rng, rows, columns, n, skew) for rows, columns, n, skew in _GEMM]
    works += [_Matrix(rng, rows, columns, 1, skew) for rows, columns, skew in _GEMV]
    plain = build_model(VqGemm(_PLAIN), long_run=True)
    tables = build_model(VqTableGemv(_TABLES), long_run=True)
    fused = {
        name: build_model(VqGemvCore(config), long_run=True) for name, config in _FUSED.items()
    }
    for work in works:
        for tiers in _TIERS:
            yield work.dequantized(plain, _PLAIN, "y", work.plan(4, tiers))
        if len(work.x) > 1:
            continue
        yield work.tabled(tables)
        for name, config in _FUSED.items():
            for tiers in _FUSED_TIERS:
                plan = work.plan(8, tiers, fusion=name, need=config.need)
                yield work.dequantized(fused[name], config, "sum", plan)


def _attention() -> Iterator[Run]:
    """A KV head alone, with fewer or more groups in a pass."""
    image = OneImage.random(_PQ, _HEADS[_GROUPS[0]].shape.queries, _CACHED[-1])
    vq = VqShape(size=_PQ.sub, entries=_PQ.entries, stages=1, tile_columns=_PQ.sub)
    for groups, config in _HEADS.items():
        queries = config.shape.queries
        spent = attended(config, [image.first(tokens) for tokens in _CACHED], _ATTEND.latency)
        for tokens, each in zip(_CACHED, spent, strict=True):
            work = Work(
                matrix=MatrixShape(rows=tokens, columns=_PQ.head_dim, vq=vq),
                operation="attention", vectors=queries,
            )  # fmt: skip
            plan = Plan(lookups=groups, side=queries, shared=_PQ.entries, rows=tokens, banks=1)
            assert each.alone is not None
            yield Run(
                f"attention: {tokens} tokens, {queries} queries", f"{groups} groups in a pass",
                "vq_attention", config, Planner(work, _ATTEND).estimate(plan), each.alone,
            )  # fmt: skip


def runs() -> list[Run]:
    """All of them. AssertionError: a result differs from golden's."""
    return [*_products(), *_attention()]


def _by_work(found: list[Run]) -> dict[str, list[Run]]:
    works: dict[str, list[Run]] = {}
    for run in found:
        works.setdefault(run.work, []).append(run)
    return works


# What a plan for a gemv has, of those that take as many multipliers
_KINDS: dict[str, Callable[[Plan], bool]] = {
    "dequantizing, elements as they are": lambda plan: (
        (plan.method, plan.fusion) == ("dequantize", "none")
    ),
    "exchange network": lambda plan: plan.fusion == "exchange",
    "layout buffer": lambda plan: plan.fusion == "buffer",
    "tables": lambda plan: plan.method == "tables",
}


# What limits the plans of a gemv, all of which take as many multipliers
_BUDGETS = {
    "enough of each": _STREAMED,
    "2,048 register bits": dataclasses.replace(_STREAMED, register_bits=2048),
    "no register bits": dataclasses.replace(_STREAMED, register_bits=0),
    "60,000 SRAM bits": dataclasses.replace(_STREAMED, sram_bits=60_000),
}


def choice(some: Sequence) -> tuple:
    """Picks of estimated and run plans the planner's, the fastest, and how much slower it is."""
    chosen = min(some, key=lambda run: run.estimate.key)
    best = min(some, key=lambda run: run.cycles)
    return chosen, best, chosen.cycles / best.cycles - 1


def _choice_row(some: list[Run]) -> list:
    chosen, best, distance = choice(some)
    return [
        len(some), chosen.plan, f"{chosen.estimate.cycles:,}", f"{chosen.cycles:,}", best.plan,
        f"{best.cycles:,}", f"{distance:.1%}",
    ]  # fmt: skip


_CHOICE = ["plans", "choice", "predicted", "cycles", "best", "cycles", "distance"]


def _within(budget: Budget, some: list[Run]) -> list[Run]:
    return [run for run in some if run.estimate.resources.fits(budget)]


def _winners(gemv: dict[str, list[Run]]) -> list[str]:
    """Two tables: choices within each budget, and where each kind of plan is the fastest."""
    choices, wins = [], {kind: [0] * len(_BUDGETS) for kind in _KINDS}
    for number, (name, budget) in enumerate(_BUDGETS.items()):
        for work, some in gemv.items():
            fitting = _within(budget, some)
            choices.append([name, work.removeprefix("gemv: "), *_choice_row(fitting)])
            _, best, _ = choice(fitting)
            (kind,) = (kind for kind, has in _KINDS.items() if has(best.estimate.plan))
            wins[kind][number] += 1
    rows = [[kind, *(f"{n} of {len(gemv)}" for n in counts)] for kind, counts in wins.items()]
    return [
        table(["budget", "gemv", *_CHOICE], choices),
        table(["the fastest within", *_BUDGETS], rows),
    ]


def section(found: list[Run]) -> str:
    """Errors by operation, the planner's choices, and which kind of plan is the fastest."""
    rows = []
    for operation in ("gemv", "gemm", "attention"):
        errors = [abs(run.error) for run in found if run.work.startswith(operation)]
        within = sum(error <= 0.05 for error in errors)
        rows.append([
            operation, len(errors), f"{statistics.mean(errors):.1%}", f"{max(errors):.1%}", within,
        ])  # fmt: skip
    head = ["operation", "plans", "mean error", "largest error", "within 5 %"]
    works = _by_work(found)
    gemv = {work: some for work, some in works.items() if work.startswith("gemv")}
    parts = [
        table(head, rows),
        table(["work", *_CHOICE], [[work, *_choice_row(some)] for work, some in works.items()]),
    ]
    rows = []
    for kind, has in _KINDS.items():
        own = [min(run.cycles for run in some if has(run.estimate.plan)) for some in gemv.values()]
        rows.append([kind, *(f"{cycles:,}" for cycles in own)])
    sizes = [work.removeprefix("gemv: ") for work in gemv]
    parts += [table(["fastest plan with", *sizes], rows), *_winners(gemv)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def figures(found: list[Run]) -> list[Figure]:
    return [
        Figure(
            command="senbazuru.runs.vq_plans", block=run.block, configuration=described(run.config),
            parameters={"work": run.work, "plan": run.plan}, span=_SPAN, cycles=run.cycles,
            **predicted(timing.plan_terms, run.estimate.cycles),
        )
        for run in found
    ]  # fmt: skip
