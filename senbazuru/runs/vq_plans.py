"""``senbazuru.runs.vq_plans``: plans of VQ-LLM in Verilated engines next to their predictions.

Every result is also compared with golden. A plan's expected cycles come from the histogram of the
codes alone. 24 plans are held out by a hash of their names, whatever they take. Two whole builds
are held out, too. Plans of gemm, of tables, of both layouts and of attention follow.
``--page`` rewrites the tables of docs/vqllm-planner.md.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable

import numpy as np

from golden import command
from golden.vqllm import format as image_format
from golden.vqllm import timing
from golden.vqllm.config import Budget, MatrixShape, Plan, VqShape, Work
from hdl.arguments import add_page, check_page, write_page
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.config import VqGemvConfig
from hdl.vqllm.gemv.core import VqGemvCoreConfig
from hdl.vqllm.gemv.gemv import VqGemv
from hdl.vqllm.plan_search import Estimate, Planner
from senbazuru.runs.cycles import Figure, add_option, described, owned, predicted, save
from tb.simulate.run import ROOT, simulate

PAGE = ROOT / "docs" / "vqllm-planner.md"
HELD_OUT = 24
# The constants of golden.vqllm.timing were set by runs on other matrices, drawn from other seeds.
SEED = 3
SPAN = "from the job to the last result"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_plans", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    parser.add_argument("--only", metavar="BUILD", help="measure one build, and hold out nothing")
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["vq_plans", "vq_choices", "vq_plan_operations"])
    if options.only and options.page:
        parser.error("--page needs all builds")
    if options.only and options.only not in BUILDS:
        parser.error(f"--only must be one of {', '.join(BUILDS)}, not {options.only}")
    with owned(parser, options.json):
        return report(options)


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Sizes, and the skew of its codes: the share of entry j falls with (j + 1) ** -skew."""

    rows: int
    columns: int
    skew: float


@dataclasses.dataclass(frozen=True)
class Build:
    """A netlist, and the plans that it runs on each of its matrices."""

    config: VqGemvConfig
    latency: int  # of memory
    matrices: tuple[Matrix, ...]
    tiers: tuple[tuple[int, int], ...]  # n_reg, n_shared
    splits: tuple[int, ...] = (1,)
    held_out: bool = False  # no run of it has set a constant or a rule of the prediction

    def plans(self) -> list[Plan]:
        core, cache = self.config.core, self.config.core.cache
        return [
            Plan(
                cores=self.config.cores, lookups=cache.lookups, side=core.batch, banks=cache.banks,
                registers=registers, shared=shared, split=split, rows=core.rows,
                lanes=self.config.lanes,
            )
            for split in self.splits
            for registers, shared in self.tiers
        ]  # fmt: skip


def _engine(vq: VqShape, lookups: int, columns: int, rows: int, cores: int = 1, **cache):
    config = VqCodebookCacheConfig(vq=vq, lookups=lookups, shared=vq.entries, **cache)
    core = VqGemvCoreConfig(cache=config, columns=columns, rows=rows)
    return VqGemvConfig(core=core, cores=cores)


_SMALL = VqShape(size=4, entries=64, stages=1)
_TILES = VqShape(size=4, entries=64, stages=1, tile_rows=64, tile_columns=64)
_SHORT = VqShape(size=4, entries=256, stages=1, tile_rows=8, tile_columns=64)
_TILED = Build(
    config=_engine(_TILES, 8, 256, 64, cores=4, registers=16, banks=4, data_bits=128),
    latency=20,
    matrices=(Matrix(192, 192, 0.9), Matrix(64, 256, 0.4)),
    tiers=((0, 64), (16, 64), (0, 16), (8, 16)),
    splits=(1, 2, 4),
)
BUILDS = {
    "few banks": Build(
        config=_engine(_SMALL, 8, 256, 64, registers=32, banks=2, data_bits=256),
        latency=20,
        matrices=(Matrix(72, 192, 0.9), Matrix(112, 256, 0.3)),
        tiers=((0, 64), (2, 64), (8, 64), (32, 64), (0, 16), (8, 16), (16, 32), (0, 1)),
    ),
    "narrow memory": Build(
        config=_engine(_SMALL, 8, 256, 64, registers=8, banks=8, data_bits=64),
        latency=60,
        matrices=(Matrix(64, 224, 1.0), Matrix(52, 192, 0.2)),
        tiers=((0, 64), (8, 64), (0, 32), (8, 32), (0, 8), (8, 8), (4, 16), (0, 1)),
    ),
    "tiles on four cores": _TILED,
    # A load takes longer than the rows that use it, and cores that split columns load side by side.
    "tiles in far memory": dataclasses.replace(
        _TILED, latency=100, matrices=(Matrix(28, 256, 0.7), Matrix(10, 192, 0.3))
    ),
    "few rows of a codebook": Build(
        config=_engine(_SHORT, 8, 256, 8, registers=16, banks=8, data_bits=256),
        latency=10,
        matrices=(Matrix(40, 256, 1.0), Matrix(32, 128, 0.2)),
        tiers=((0, 256), (16, 256), (0, 64), (16, 64), (0, 16), (16, 16), (0, 4), (0, 1)),
    ),
    "two stages on two cores": Build(
        config=_engine(
            VqShape(entries=64), 8, 256, 64, cores=2, registers=16, banks=8, data_bits=256
        ),
        latency=30,
        matrices=(Matrix(96, 192, 0.9),),
        tiers=((0, 64), (4, 64), (16, 64), (0, 32), (16, 32), (0, 8)),
        splits=(1, 2),
    ),
    "narrow matrix on four cores": Build(
        config=_engine(_SMALL, 8, 128, 64, cores=4, registers=16, banks=8, data_bits=256),
        latency=20,
        matrices=(Matrix(208, 96, 0.5),),
        tiers=((0, 64), (16, 64), (8, 32), (0, 16)),
        splits=(1, 2, 4),
    ),
    "three stages on two cores": Build(
        config=_engine(
            VqShape(size=4, entries=32, stages=3), 6, 256, 64, cores=2, registers=8, banks=4,
            data_bits=128,
        ),
        latency=33,
        matrices=(Matrix(88, 192, 0.8), Matrix(60, 256, 0.3)),
        tiers=((0, 32), (8, 32), (0, 16), (8, 16)),
        splits=(1, 2),
        held_out=True,
    ),
    "small tiles of pairs": Build(
        config=_engine(
            VqShape(size=2, entries=128, stages=1, tile_rows=24, tile_columns=32), 8, 256, 24,
            registers=16, banks=8, data_bits=512,
        ),
        latency=75,
        matrices=(Matrix(72, 160, 0.8), Matrix(60, 256, 0.3)),
        tiers=((0, 128), (16, 128), (0, 32), (16, 32)),
        held_out=True,
    ),
}  # fmt: skip


@dataclasses.dataclass
class Measured:
    """A plan on a matrix."""

    name: str
    build: str
    matrix: Matrix
    estimate: Estimate
    cycles: int = 0
    held_out: bool = False

    @property
    def error(self) -> float:
        return self.estimate.cycles / self.cycles - 1


def measure(name: str, build: Build) -> list[Measured]:
    """All plans of a build, simulated in one run; every result is compared with golden."""
    from golden.vqllm.access import look_ups  # torch, only now
    from golden.vqllm.vectors.engine import engine_job, random_x
    from tb.vqllm.support.draws import drawn

    rng = np.random.default_rng([SEED, *name.encode()])
    cache = build.config.core.cache
    found, jobs, base = [], [], 0
    for matrix in build.matrices:
        shape = MatrixShape(rows=matrix.rows, columns=matrix.columns, vq=cache.vq)
        made = drawn(rng, shape, matrix.skew)
        x = random_x(rng, build.config.core.batch, matrix.columns)
        budget = Budget(data_bits=cache.data_bits, latency=build.latency)
        planner = Planner(Work(matrix=shape), budget, look_ups(made).numpy().astype(float))
        for plan in build.plans():
            of_job = image_format.Plan(
                registers=plan.registers, shared=plan.shared, split=plan.split
            )
            job = engine_job(build.config, made, of_job, x, base=base)
            base = job.after(128)
            jobs.append(job.params())
            title = (
                f"{name}: {matrix.rows} x {matrix.columns}, skew {matrix.skew}, "
                f"registers {plan.registers}, shared {plan.shared}, split {plan.split}"
            )
            found.append(Measured(title, name, matrix, planner.estimate(plan)))
    params = {"jobs": jobs, "latency": build.latency}
    work = simulate(VqGemv(build.config), "tb.vqllm.tb_engine_replay", params=params)
    for each, job in zip(
        found, json.loads((work / "replay.json").read_text())["jobs"], strict=True
    ):
        each.cycles = job["cycles"]
    return found


def hold_out(found: list[Measured]) -> None:
    """Holds out by a hash of the names, so that no result decides; skips builds held out whole."""
    found = [each for each in found if not BUILDS[each.build].held_out]
    order = sorted(found, key=lambda each: hashlib.sha256(each.name.encode()).digest())
    for each in order[:HELD_OUT]:
        each.held_out = True


def choices(found: list[Measured]) -> list[dict]:
    """The planner's choice, and the best that was measured, by build and matrix."""
    from senbazuru.runs import vq_plans_other  # torch, only now

    rows = []
    for build, matrix in dict.fromkeys((each.build, each.matrix) for each in found):
        some = [each for each in found if (each.build, each.matrix) == (build, matrix)]
        chosen, best, distance = vq_plans_other.choice(some)
        rows.append({
            "build": build, "matrix": matrix, "plans": len(some), "chosen": chosen, "best": best,
            "distance": distance,
        })  # fmt: skip
    return rows


def _tiers(each: Measured) -> str:
    plan = each.estimate.plan
    return f"{plan.registers}, {plan.shared}, {plan.split}"


# What a plan has, of those that differ in nothing else
KINDS: dict[str, Callable[[Plan, int], bool]] = {
    "registers": lambda plan, entries: plan.registers > 0,
    "no registers": lambda plan, entries: plan.registers == 0,
    "all entries on chip": lambda plan, entries: plan.shared == entries,
    "some entries in memory": lambda plan, entries: plan.shared < entries,
    "split = 1": lambda plan, entries: plan.split == 1,
    "split > 1": lambda plan, entries: plan.split > 1,
}


def wins(found: list[Measured]) -> dict[str, int]:
    """Builds and matrices where the best measured plan is of a kind, and is faster than all others.

    A kind that all plans of the build have does not win.
    """
    count = dict.fromkeys(KINDS, 0)
    for row in choices(found):
        some = [
            each for each in found if (each.build, each.matrix) == (row["build"], row["matrix"])
        ]
        entries = BUILDS[row["build"]].config.core.cache.vq.stored
        for name, has in KINDS.items():
            own = [each.cycles for each in some if has(each.estimate.plan, entries)]
            others = [each.cycles for each in some if not has(each.estimate.plan, entries)]
            count[name] += bool(own and others and min(own) < min(others))
    return count


def tables(found: list[Measured]) -> dict[str, str]:
    """The sections of the page."""
    rows = choices(found)
    lines = [
        "| build | matrix | plans | n_reg, n_shared, split | cycles | best | cycles | distance |",
        "|---|---|---:|---|---:|---|---:|---:|",
    ]
    for row in rows:
        matrix, chosen, best = row["matrix"], row["chosen"], row["best"]
        lines.append(
            f"| {row['build']} | {matrix.rows} x {matrix.columns}, skew {matrix.skew} "
            f"| {row['plans']} | {_tiers(chosen)} | {chosen.cycles:,} | {_tiers(best)} "
            f"| {best.cycles:,} | {row['distance']:.1%} |"
        )
    errors = [
        "| plans | count | mean error | largest error | within 5 % |",
        "|---|---:|---:|---:|---:|",
    ]
    sets = {"plans held out": (False, True), "other plans": (False, False)}
    sets |= {"builds held out": (True, False)}
    for title, kind in sets.items():
        some = [
            abs(each.error)
            for each in found
            if (BUILDS[each.build].held_out, each.held_out) == kind
        ]
        if some:
            within = sum(error <= 0.05 for error in some)
            errors.append(
                f"| {title} | {len(some)} | {statistics.mean(some):.1%} | {max(some):.1%} "
                f"| {within} |"
            )
    worst = sorted(found, key=lambda each: -abs(each.error))[:5]
    errors += ["", "The largest errors:", "", "| plan | predicted | measured | error |"]
    errors += ["|---|---:|---:|---:|"]
    errors += [
        f"| {each.name} | {each.estimate.cycles:,} | {each.cycles:,} | {each.error:+.1%} |"
        for each in worst
    ]
    lines += ["", "| kind | wins, of builds and matrices |", "|---|---:|"]
    lines += [f"| {name} | {count} of {len(rows)} |" for name, count in wins(found).items()]
    return {"vq_plans": "\n".join(errors) + "\n", "vq_choices": "\n".join(lines) + "\n"}


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from senbazuru.runs import vq_plans_other  # torch, only now

    began = time.monotonic()
    found, figures = [], []
    for name, build in BUILDS.items():
        if options.only in (None, name):
            some = measure(name, build)
            found += some
            figures += [
                Figure(
                    command="senbazuru.runs.vq_plans",
                    block="vq_gemv",
                    configuration=described(build.config),
                    parameters={
                        "rows": each.matrix.rows, "columns": each.matrix.columns,
                        "skew": each.matrix.skew, "latency": build.latency,
                        "registers": each.estimate.plan.registers,
                        "shared": each.estimate.plan.shared, "split": each.estimate.plan.split,
                    },
                    span=SPAN,
                    cycles=each.cycles,
                    bound=math.ceil(max(_bound(build, each).values())),
                    **predicted(timing.plan_terms, each.estimate.cycles),
                )
                for each in some
            ]  # fmt: skip
            print(f"{name}: {len(some)} plans, {time.monotonic() - began:.0f} s", flush=True)
    if options.only is None:
        hold_out(found)
    made = tables(found)
    if options.only is None:
        others = vq_plans_other.runs()
        print(f"other operations: {len(others)} plans, {time.monotonic() - began:.0f} s")
        made["vq_plan_operations"] = vq_plans_other.section(others)
        figures += vq_plans_other.figures(others)
    print("\n".join(made.values()))
    write_page(options.page, made)
    save(options.json, figures)
    return 0


def _bound(build: Build, each: Measured) -> dict[str, float]:
    cache = build.config.core.cache
    shape = MatrixShape(rows=each.matrix.rows, columns=each.matrix.columns, vq=cache.vq)
    budget = Budget(data_bits=cache.data_bits, latency=build.latency)
    return timing.plan_bound(Work(matrix=shape), each.estimate.plan, budget)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_plans", main)
