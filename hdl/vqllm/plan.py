"""``python -m hdl.vqllm.plan SHAPE``: the fastest engine for a quantized matrix within a budget.

SHAPE is a named configuration, and ``vq.FIELD=VALUE`` changes it. ``FIELD=VALUE`` changes a field
of the budget. The command prints the plan, its engine, what it takes, and the expected cycles of
the best plan of each other choice. Cycles are expected from the histogram of look-ups, not from
their order.

The generator has accepted the configuration of each plan that is printed. Without such a plan that
fits: one line with the resource that is short, and by how much, or what is refused; status 2.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import math
import sys
from pathlib import Path

import numpy as np

from golden import command
from golden.config import ConfigError
from golden.vqllm import timing
from golden.vqllm.config import NAMED, Budget, MatrixShape, Plan, VqShape, Work
from hdl.arguments import add_page, check_page, whole, write_page
from hdl.vqllm.plan_search import (
    Estimate,
    Planner,
    Shortage,
    Space,
    split_optimum,
    split_traffic,
)

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "vqllm-planner.md"
EXAMPLES = {
    "gemv": "gptvq2 --rows 4096 --columns 4096",
    "tables": "aqlm2x8 --rows 11008 --columns 4096 multipliers=32 data_bits=256",
    "gemm": "aqlm3 --operation gemm --rows 1536 --columns 576 --tokens 16 multipliers=128",
    "attention": "cq4 --operation attention --columns 128 --tokens 4096 --batch 4 --heads 8",
}

_SIZES = ("rows", "columns", "tokens", "batch", "heads")
# What each operation needs, and what it may have
_OPERATIONS = {
    "gemv": ({"rows", "columns"}, {"batch"}),
    "gemm": ({"rows", "columns", "tokens"}, set()),
    "attention": ({"columns", "tokens"}, {"batch", "heads"}),
}


def histogram(file: Path) -> np.ndarray:
    """Look-ups of each entry, a list of tiles of stages of entries. ConfigError: not that."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "must be JSON"
        raise ConfigError(f"{file}: {reason}") from None
    wanted = ConfigError(f"{file}: must be tiles of stages of whole numbers from 0 on")
    if not isinstance(found, list) or not all(isinstance(tile, list) for tile in found):
        raise wanted
    lengths = {len(stage) for tile in found for stage in tile if isinstance(stage, list)}
    entries = [n for tile in found for stage in tile if isinstance(stage, list) for n in stage]
    stages = {len(tile) for tile in found}
    if len(lengths) != 1 or len(stages) != 1 or not entries:
        raise wanted
    if not all(type(n) is int and 0 <= n < 1 << 53 for n in entries):
        raise wanted
    counts = np.array(entries, dtype=float)
    if counts.size != len(found) * stages.copy().pop() * lengths.copy().pop():
        raise wanted
    return counts.reshape(len(found), stages.pop(), lengths.pop())


def work_of(options: argparse.Namespace, vq: VqShape) -> Work:
    """ConfigError: an option is missing, out of range, or of another operation."""
    given = {name for name in _SIZES if getattr(options, name) is not None}
    needs, may = _OPERATIONS[options.operation]
    for name in sorted(given - needs - may):
        raise ConfigError(f"--{name} does not apply to {options.operation}")
    for name in sorted(needs - given):
        raise ConfigError(f"--{name} must be given for {options.operation}")
    attends = options.operation == "attention"
    rows = options.tokens if attends else options.rows
    vectors = options.tokens if options.operation == "gemm" else options.batch or 1
    matrix = MatrixShape(rows=rows, columns=options.columns, vq=vq)
    return Work(
        matrix=matrix, operation=options.operation, vectors=vectors, heads=options.heads or 1
    )


def split_rows(work: Work, plan: Plan) -> list[dict]:
    """The traffic in bits that the paper balances, at each split that a plan's cores allow."""
    outputs = work.matrix.rows * work.vectors
    outputs *= timing.sum_bits(work.matrix.vq, work.matrix.columns)
    codebooks = timing.loaded_bits(work, dataclasses.replace(plan, split=1))
    best = split_optimum(outputs, codebooks)
    found = []
    for split in sorted({*(n for n in range(1, plan.cores + 1) if plan.cores % n == 0), best}):
        allowed = plan.cores % split == 0
        found.append({
            "split": split,
            "traffic": split_traffic(outputs, codebooks, split),
            "moved": timing.moved_bits(work, dataclasses.replace(plan, split=split))
            if allowed else None,
            "optimum": split == best,
            "root": math.sqrt(codebooks / outputs),
        })  # fmt: skip
    return found


def alternatives(planner: Planner, space: Space, chosen: Plan) -> dict[str, Estimate | str]:
    """The best plans of other choices; a text says why there is none."""
    entries = planner.work.matrix.vq.stored
    deq = {"method": "dequantize"}
    chip = {"shared": space.shared[-1]}
    choices: dict[str, dict] = {
        "all look-ups from memory": {**deq, "registers": 0, "shared": space.shared[0]},
        "all entries in SRAM": {**deq, "registers": 0, **chip},
        "registers and SRAM": {**deq, **chip, "registers": tuple(n for n in space.registers if n)},
        "split 1": {"split": 1},
        "split above 1": {"split": tuple(n for n in space.split if n > 1)},
        "one core": {"cores": 1},
        "no exchange of layouts": {**deq, "fusion": "none"},
        "exchange network": {**deq, "fusion": "exchange"},
        "layout buffer": {**deq, "fusion": "buffer"},
        "dequantize": deq,
        "tables": {"method": "tables"},
    }
    if planner.work.operation == "attention":
        choices = {f"{n} groups in a pass": {"lookups": n} for n in space.lookups}
    if entries > space.shared[-1]:
        del choices["all entries in SRAM"]
    found: dict[str, Estimate | str] = {}
    for name, fields in choices.items():
        if name.startswith(("split", "one")):
            fields = {"method": chosen.method, **fields}
        try:
            found[name] = planner.best(space.fixed(**fields), space)
        except Shortage as error:
            found[name] = str(error)
    return found


def described(planner: Planner, found: Estimate, others: dict[str, Estimate | str]) -> dict:
    """All that the command knows, as JSON has it."""
    work, plan = planner.work, found.plan
    made = planner.engine(plan)
    return {
        "version": 1,
        "work": work.describe(),
        "budget": planner.budget.describe(),
        "plan": plan.describe(),
        "engine": made.text,
        "block": made.block,
        "configuration": made.config.describe(),
        "takes": dataclasses.asdict(found.resources),
        "cycles": found.cycles,
        "limit": found.limit,
        "terms": found.terms,
        "bound": timing.plan_bound(work, plan, planner.budget),
        "alternatives": {
            name: each if isinstance(each, str) else {
                "cycles": each.cycles, "limit": each.limit, "plan": each.plan.describe(),
                "engine": planner.engine(each.plan).text,
                "takes": dataclasses.asdict(each.resources),
            }
            for name, each in others.items()
        },
        "split": [] if work.operation == "attention" else split_rows(work, plan),
        "sixteen_bits": timing.dense_cycles(work, planner.budget),
    }  # fmt: skip


def text(found: dict) -> str:
    """The same for people, as tables of Markdown."""
    work, plan, bound = found["work"], found["plan"], found["bound"]
    matrix = work["matrix"]
    size = f"{matrix['rows']} x {matrix['columns']}, vectors: {work['vectors']}"
    if work["operation"] == "attention":
        size = f"{matrix['rows']} tokens, heads of {matrix['columns']}, queries: {work['vectors']}"
    lines = [f"{work['operation']}: {size}", ""]
    lines += ["| plan | |", "|---|---:|"]
    lines += [f"| {name} | {value} |" for name, value in plan.items() if value not in (0, "none")]
    lines += ["", f"Engine: {found['engine']}."]
    lines += ["", "| resource | plan | budget |", "|---|---:|---:|"]
    lines += [
        f"| {name} | {value:,} | {found['budget'][name]:,} |"
        for name, value in found["takes"].items()
    ]
    lines += ["", "| expected cycles | plan | bound |", "|---|---:|---:|"]
    for name, value in found["terms"].items():
        least = f"{math.ceil(bound[name]):,}" if name in bound else ""
        mark = " (decides)" if name == found["limit"] else ""
        lines.append(f"| {name}{mark} | {math.ceil(value):,} | {least} |")
    lines.append(
        f"| largest, and fill | {found['cycles']:,} | {math.ceil(max(bound.values())):,} |"
    )
    lines += ["", "| best plan with | cycles | to the choice | limit | engine |"]
    lines += ["|---|---:|---:|---|---|"]
    for name, each in found["alternatives"].items():
        if isinstance(each, str):
            lines.append(f"| {name} | | | {each} | |")
        else:
            ratio = each["cycles"] / found["cycles"]
            lines.append(
                f"| {name} | {each['cycles']:,} | {ratio:.2f} | {each['limit']} "
                f"| {each['engine']} |"
            )
    ratio = found["sixteen_bits"] / found["cycles"]
    lines.append(f"| weights of 16 bits | {found['sixteen_bits']:,} | {ratio:.2f} | | |")
    if found["split"]:
        root = found["split"][0]["root"]
        lines += ["", f"Split: the paper's square root is {root:.2f}.", ""]
        lines += ["| split | split * outputs + codebooks / split, bits | moved by the plan, bits |"]
        lines += ["|---:|---:|---:|"]
        for each in found["split"]:
            moved = "not a divisor of cores" if each["moved"] is None else f"{each['moved']:,}"
            mark = " (optimum)" if each["optimum"] else ""
            lines.append(f"| {each['split']}{mark} | {round(each['traffic']):,} | {moved} |")
    return "\n".join(lines)


def _examples(page: Path) -> None:
    """Write the examples of the page."""
    made = {}
    for name, arguments in EXAMPLES.items():
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main(arguments.split())
        line = f"    python -m hdl.vqllm.plan {arguments}"
        made[f"plan_{name}"] = f"{line}\n\n{printed.getvalue()}"
    write_page(page, made)


def _parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m hdl.vqllm.plan", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("shape", metavar="SHAPE", nargs="?", help=f"one of {', '.join(NAMED)}")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE", help="of the budget, or vq.*")
    parser.add_argument("--operation", choices=tuple(_OPERATIONS), default="gemv")
    for name, meaning in (
        ("rows", "outputs of the matrix"),
        ("columns", "inputs of the matrix, or channels of a head"),
        ("tokens", "vectors of a gemm, or cached tokens of attention"),
        ("batch", "vectors of a gemv, or queries of a KV head (1)"),
        ("heads", "KV heads of attention (1)"),
    ):
        parser.add_argument(f"--{name}", type=whole(1, 1 << 20), metavar="N", help=meaning)
    parser.add_argument(
        "--histogram", type=Path, metavar="FILE", help="look-ups of each entry as JSON (all equal)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    add_page(parser, PAGE)
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    if options.page is not None:
        if len(sys.argv if arguments is None else ["", *arguments]) > 2:
            parser.error("--page takes no other argument")
        check_page(parser, options.page, [f"plan_{name}" for name in EXAMPLES])
        _examples(options.page)
        return 0
    if options.shape not in NAMED:
        given = "" if options.shape is None else f", not {options.shape}"
        parser.error(f"SHAPE must be one of {', '.join(NAMED)}{given}")
    of_shape = [each.removeprefix("vq.") for each in options.fields if each.startswith("vq.")]
    of_budget = [each for each in options.fields if not each.startswith("vq.")]
    try:
        work = work_of(options, VqShape.parse(NAMED[options.shape], of_shape))
        counts = None if options.histogram is None else histogram(options.histogram)
        budget = Budget.parse(Budget(), of_budget)
        try:
            planner = Planner(work, budget, counts)
        except ConfigError as error:
            raise ConfigError(f"{options.histogram}: {error}") from None
        space = Space.of(work)
        found = planner.best(space)
    except ConfigError as error:
        parser.error(str(error))
    except Shortage as error:
        parser.error(f"no plan fits: {error}")
    made = described(planner, found, alternatives(planner, space, found.plan))
    print(json.dumps(made, indent=1) if options.json else text(made))
    return 0


if __name__ == "__main__":
    command.run("hdl.vqllm.plan", main)
