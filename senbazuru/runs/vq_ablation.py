"""``senbazuru.runs.vq_ablation``: what each step of VQ-LLM saves, as switches of one engine.

Trained codes of SmolLM2-135M in the Verilated vq_gemv and vq_gemm, random ones in vq_attention. The
steps are run-time numbers: entries in registers and on chip, rows of a stripe or tokens of a
request, and the split. Every result and counter is compared with golden. ``--page`` rewrites the
tables of docs/vqllm-ablation.md.
"""

import argparse
import dataclasses
import functools
import json
from typing import TYPE_CHECKING

import numpy as np

from golden import command
from golden.command import elapsed
from golden.fp16.format import FP16
from golden.markers import table
from golden.vqllm.config import ATTEND, MatrixShape, VqShape
from golden.vqllm.crossover import Engine, gemm_cycles, plain_cycles, slowest
from golden.vqllm.format import Plan
from golden.vqllm.timing import read_once
from hdl.arguments import add_page, check_page, whole
from hdl.vqllm.gemv.config import VqGemvConfig
from hdl.vqllm.gemv.gemm import VqGemm, VqGemmConfig
from hdl.vqllm.gemv.gemv import VqGemv
from hdl.vqllm.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, give, owned
from senbazuru.runs.vq import SPAN
from tb.simulate.run import ROOT, build_model, run_model
from tb.vqllm.support.fill import fill_of

if TYPE_CHECKING:
    import torch

    from golden.vqllm.cache import Tiers
    from golden.vqllm.matrix import VqMatrix

PAGE = ROOT / "docs" / "vqllm-ablation.md"
# Operation, configuration of its engine
CASES = (
    ("gemv", "gptvq2_x4"), ("gemv", "aqlm2x8_x4"), ("gemv", "aqlm3"),
    ("gemm", "gptvq2"), ("gemm", "aqlm3"), ("attention", "cq4"),
)  # fmt: skip
MARKERS = ("vq_ablation",)
LAYER, MATRIX = 15, "up_proj"
TOKENS = 8  # of a gemm
STRIPE = 16  # rows for which all codebooks come, where the codebooks do not lead
_ITERATIONS = 5
_HEAD_SPAN = "from the status of the head before to its own, for all its tokens"
_GEMM_SPAN = "from the first word of any stream to the last result"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_ablation", description=__doc__)
    parser.add_argument(
        "--only", choices=[" ".join(each) for each in CASES], help="an operation and configuration"
    )
    parser.add_argument("--rows", type=whole(16, 1536), default=128, help="of the matrix")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, MARKERS)
    if options.only and options.page:
        parser.error("--page needs all cases")
    with owned(parser, options.json):
        return report(options)


@dataclasses.dataclass(frozen=True)
class Step:
    """A step adds to the one before it."""

    name: str
    registers: bool = False  # hottest entries in registers
    on_chip: bool = True  # all entries on chip; else entry 0 alone, the fewest there can be
    leads: bool = False  # a codebook stays for all rows of its tile
    split: bool = False  # cores have columns of their own, and so codebooks
    exchanges: bool = False  # twice the look-ups, and an exchange network to as many multipliers
    after: str = ""  # the step that this one adds to; by default the one before it

    def tiers(self, cache) -> "Tiers":
        from golden.vqllm.cache import Tiers  # torch, only now

        return Tiers(
            cache.registers if self.registers else 0, cache.shared if self.on_chip else 1,
            cache.banks,
        )  # fmt: skip


STEPS = (
    Step("entries in memory", on_chip=False),
    Step("entries in SRAM"),
    Step("hottest in registers", registers=True),
    Step("codebook by codebook", registers=True, leads=True),
    Step("columns split among cores", registers=True, leads=True, split=True),
    Step(
        "exchange network", registers=True, leads=True, exchanges=True,
        after="codebook by codebook",
    ),
)  # fmt: skip


@dataclasses.dataclass
class Measured:
    """A step on an engine; bytes as the port moves them."""

    operation: str
    name: str
    step: Step
    counts: dict[str, int]
    book_bytes: int
    code_bytes: int
    plain: int  # cycles of 16-bit weights with the same port and multipliers
    figure: Figure

    @property
    def cycles(self) -> int:
        return self.figure.cycles


@functools.cache
def _weight(rows: int) -> "torch.Tensor":
    from golden.llm import checkpoint  # torch, only now

    model = checkpoint.load(None).model
    weight = getattr(model.model.layers[LAYER].mlp, MATRIX).weight
    return weight.detach().float()[:rows]


@functools.cache
def _trained(vq: VqShape, rows: int) -> "VqMatrix":
    """The first rows of a matrix, codebooks in the order of their look-ups."""
    from golden.index.lloyd import Training  # torch, only now
    from golden.vqllm.access import reordered
    from golden.vqllm.matrix import quantize

    weight = _weight(rows)
    shape = MatrixShape(rows=rows, columns=weight.shape[1], vq=vq)
    return reordered(quantize(weight, shape, training=Training(iterations=_ITERATIONS, few=True)))


def striped(matrix: "VqMatrix", rows: int) -> "VqMatrix":
    """The same matrix, and its codebooks once for each ``rows`` rows."""
    import torch  # only now

    shape = matrix.shape
    if not shape.tile_rows % rows == 0 == shape.rows % rows:
        raise ValueError(f"rows must divide {shape.tile_rows} and {shape.rows}, not {rows}")
    fine = dataclasses.replace(shape.vq, tile_rows=rows)
    along = shape.grid[1]
    books = [
        matrix.codebooks[first // shape.tile_rows * along + column]
        for first in range(0, shape.rows, rows)
        for column in range(along)
    ]
    return dataclasses.replace(
        matrix, shape=dataclasses.replace(shape, vq=fine), codebooks=torch.stack(books)
    )


def _exchanging(config: VqGemvConfig) -> VqGemvConfig:
    """Doubles the look-ups of a beat, and keeps the number of multipliers."""
    core, cache = config.core, config.core.cache
    core = dataclasses.replace(
        core, cache=dataclasses.replace(cache, lookups=2 * cache.lookups),
        fusion="exchange", need=cache.vq.size // 2,
    )  # fmt: skip
    return dataclasses.replace(config, core=core)


def _gemv(name: str, rows: int, latency: int, say) -> list[Measured]:
    """The steps on a registered engine, then the one that has an engine of its own."""
    config = BLOCKS["vq_gemv"].configs[name]
    assert isinstance(config, VqGemvConfig)
    steps = [step for step in STEPS if config.cores > 1 or not step.split]
    own = [step for step in steps if not step.exchanges]
    found = _engine(config, name, own, rows, latency, say)
    others = [step for step in steps if step.exchanges]
    return found + _engine(_exchanging(config), name, others, rows, latency, say)


def _engine(
    config: VqGemvConfig, name: str, steps: list[Step], rows: int, latency: int, say
) -> list[Measured]:
    from golden.vqllm.bounds import job_bounds, part_work  # torch, only now
    from golden.vqllm.vectors.engine import engine_job, random_x

    cache = config.core.cache
    matrix, rng = _trained(cache.vq, rows), np.random.default_rng(1)
    x = random_x(rng, config.core.batch, matrix.shape.columns)
    jobs, base = [], 0
    for step in steps:
        tiers = step.tiers(cache)
        split = config.cores if step.split else 1
        plan = Plan(registers=tiers.registers, shared=tiers.shared, split=split)
        stripe = None if step.leads else max(1, STRIPE // config.cores)
        jobs.append(engine_job(config, matrix, plan, x, base=base, rows=stripe))
        base = jobs[-1].after(128)
    say(f"vq_gemv, {name}: {len(steps)} steps on {rows} x {matrix.shape.columns}")
    model = build_model(VqGemv(config), long_run=True)
    params = {"jobs": [job.params() for job in jobs], "latency": latency}
    work = run_model(model, "tb.vqllm.tb_engine_replay", config=config, params=params)
    made = json.loads((work / "replay.json").read_text())["jobs"]
    engine = Engine(macs=config.cores * config.core.sums.macs, port_bits=cache.data_bits)
    _, plain = slowest(plain_cycles(matrix.shape, engine, 1))
    found = []
    for step, job, each in zip(steps, jobs, made, strict=True):
        bounds = job_bounds(matrix, job.shape, job.plan, cache.banks, config.lanes)
        counts, parts = job.counts(), [part for _, part in job.parts]
        words = counts["memory"]
        work = part_work(matrix, job.shape, job.plan, cache.banks)
        words += read_once(work, lambda part: part.load_words)
        figure = Figure(
            command="senbazuru.runs.vq_ablation", block="vq_gemv", configuration=described(config),
            parameters={"rows": rows, "columns": matrix.shape.columns, "step": step.name,
                        "memory_latency": latency},
            span=SPAN, cycles=each["cycles"],
            bound=max(bounds.values()) + fill_of(config, job.plan.shared, latency),
        )  # fmt: skip
        found.append(Measured(
            "gemv", name, step, counts, words * job.shape.word_bytes,
            sum(part.code_bytes(job.shape) for part in parts), plain, figure,
        ))  # fmt: skip
    return found


def _gemm(name: str, rows: int, latency: int, say) -> list[Measured]:
    from golden.vqllm.vectors.engine import COUNTED, random_x  # torch, only now
    from tb.vqllm.support.core_words import core_params, look_cycles

    registered = BLOCKS["vq_gemm"].configs[name]
    assert isinstance(registered, VqGemmConfig)
    cache = registered.cache
    whole = _trained(cache.vq, rows)
    config = dataclasses.replace(
        registered, tokens=TOKENS, rows=min(rows, registered.rows), columns=whole.shape.columns
    )
    engine = Engine(macs=config.sums.macs, batch=config.batch, port_bits=cache.data_bits)
    bounds = gemm_cycles(whole.shape, engine, TOKENS)
    _, plain = slowest(plain_cycles(whole.shape, engine, TOKENS))
    model = build_model(VqGemm(config), long_run=True)
    found = []
    for step in STEPS:
        if step.split or step.exchanges or (step.leads and whole.shape.grid == (1, 1)):
            continue  # one engine; one codebook leads in any case
        tiers = step.tiers(cache)
        many = not step.leads and whole.shape.grid != (1, 1)
        matrix, rng = striped(whole, STRIPE) if many else whole, np.random.default_rng(1)
        x = random_x(rng, TOKENS, matrix.shape.columns)
        params = core_params(config, rng, matrix, x, "y", tiers)
        say(f"vq_gemm, {name}: {step.name}")
        work = run_model(model, "tb.vqllm.tb_engine_rates", config=config, params=params)
        cycles = json.loads((work / "rates.json").read_text())
        counts = {key: sum(phase["counts"][key] for phase in params["phases"]) for key in COUNTED}
        loads = len(params["phases"]) * cache.vq.stages * tiers.shared * cache.entry_bytes
        figure = Figure(
            command="senbazuru.runs.vq_ablation", block="vq_gemm", configuration=described(config),
            parameters={"rows": rows, "columns": matrix.shape.columns, "tokens": TOKENS,
                        "step": step.name},
            span=_GEMM_SPAN, cycles=cycles,
            bound=cache.load_beats(tiers.shared)
            + max(look_cycles(config, matrix, tiers), bounds["products"]),
        )  # fmt: skip
        found.append(Measured(
            "gemm", name, step, counts, loads + counts["memory"] * cache.data_bits // 8,
            matrix.shape.code_bits // 8, plain, figure,
        ))  # fmt: skip
    return found


def _attention(name: str, tokens: int, latency: int, say) -> list[Measured]:
    """A KV head among others: its codebooks again for each few tokens, or once for all.

    All entries are on chip and each group has a memory of its own, so no look-up has a conflict.
    """
    from golden.vqllm.vectors.engine import COUNTED  # torch, only now
    from hdl.vqllm.attend.attention import VqAttentionConfig
    from tb.vqllm.support import heads
    from tb.vqllm.support.attention_engines import measure
    from tb.vqllm.support.one_image import OneImage

    shape = dataclasses.replace(ATTEND[name], max_tokens=tokens)
    config, pq = VqAttentionConfig(shape=shape), shape.pq
    words = 2 * shape.passes * shape.book_words(pq.entries)  # of the codebooks of K and V
    codes = 2 * shape.passes * shape.code_words(tokens) * shape.data_bits // 8
    plain = 2 * tokens * max(-(-pq.head_dim * FP16.bits // shape.data_bits), shape.passes)
    counts = dict.fromkeys(COUNTED, 0) | {"shared": 2 * tokens * pq.subspaces}
    image = OneImage.random(pq, shape.queries, tokens)
    say(f"vq_attention, {name}: {tokens} tokens")
    sizes = {"entries in SRAM": STRIPE, "codebook by codebook": tokens}
    spent = measure(config, [image.first(size) for size in sizes.values()], latency)
    found = []
    for step, size, each in zip(sizes, sizes.values(), spent, strict=True):
        times, (cycles, bound) = tokens // size, each.others
        figure = Figure(
            command="senbazuru.runs.vq_ablation", block="vq_attention",
            configuration=described(config),
            parameters={"tokens": tokens, "step": step, "memory_latency": latency},
            span=_HEAD_SPAN, cycles=times * cycles // heads.COUNTED, bound=times * bound,
        )  # fmt: skip
        found.append(Measured(
            "attention", name, Step(step, leads=size == tokens), counts,
            times * words * shape.data_bits // 8, codes, plain, figure,
        ))  # fmt: skip
    return found


def _rows(found: list[Measured]) -> list[list[str]]:
    rows = []
    for each in found:
        own = [one for one in found if (one.operation, one.name) == (each.operation, each.name)]
        counts, first = each.counts, own[0]
        if each is first:
            rows.append([
                each.operation, f"`{each.name}`", "16-bit weights, bound", f"{each.plain:,}", "",
                f"{first.cycles / each.plain:.2f}", *[""] * 6,
            ])  # fmt: skip
        looks = sum(counts[tier] for tier in ("registers", "shared", "memory"))
        before = own[max(0, own.index(each) - 1)]
        if each.step.after:
            before = next(one for one in own if one.step.name == each.step.after)
        rows.append([
            each.operation, f"`{each.name}`", each.step.name, f"{each.cycles:,}",
            f"{before.cycles / each.cycles:.2f}", f"{first.cycles / each.cycles:.2f}",
            *(f"{100 * counts[tier] / looks:.1f} %" for tier in ("registers", "shared", "memory")),
            f"{counts['conflicts'] / looks:.3f}", f"{each.book_bytes:,}", f"{each.code_bytes:,}",
        ])  # fmt: skip
    return rows


_HEAD = (
    "operation", "configuration", "step", "cycles", "faster than the step before",
    "than the first", "look-ups in registers", "in SRAM", "in memory", "conflicts per look-up",
    "bytes of codebooks", "bytes of codes",
)  # fmt: skip


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from golden.llm.eval.command import quiet  # torch, only now

    say = elapsed(lambda line: print(line, flush=True))
    quiet()
    run = {"gemv": _gemv, "gemm": _gemm, "attention": _attention}
    found: list[Measured] = []
    for operation, name in CASES:
        if options.only in (None, f"{operation} {name}"):
            found += run[operation](name, options.rows, options.latency, say)
    made = {"vq_ablation": table(_HEAD, _rows(found))}
    return give(options, made, [each.figure for each in found])


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_ablation", main)
