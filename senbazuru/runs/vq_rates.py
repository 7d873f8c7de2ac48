"""``senbazuru.runs.vq_rates``: cycles of vq_gemv next to their bound and golden's prediction.

Matrices of SmolLM2's FFN sizes with random skewed codes, each a job alone. All results and statuses
are compared with golden. ``--page`` rewrites the table of docs/vqllm-rates.md.
"""

import argparse
import json

import numpy as np
from rich.console import Console

from golden import command
from golden.command import elapsed
from golden.vqllm.config import MatrixShape
from golden.vqllm.format import Plan
from golden.vqllm.timing import gemv_cycles
from hdl.arguments import add_page, check_page, whole, write_page
from hdl.vqllm.gemv.config import VqGemvConfig
from hdl.vqllm.gemv.gemv import VqGemv
from hdl.vqllm.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, owned, predicted, save
from senbazuru.runs.vq import SPAN
from tb.simulate.run import ROOT, build_model, run_model
from tb.vqllm.support.fill import fill_of, path_of

PAGE = ROOT / "docs" / "vqllm-rates.md"
CONFIGS = [name for name in BLOCKS["vq_gemv"].configs if not name.startswith("small")]
BLOCK = "vq_gemv"
SIZES = ((1536, 576), (576, 1536))  # rows and columns of SmolLM2's FFN


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_rates", description=__doc__)
    parser.add_argument("--config", action="append", choices=CONFIGS, help="by default all")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["vq_gemv"])
    with owned(parser, options.json):
        return report(options, options.config or CONFIGS)


def cases_of(config: VqGemvConfig) -> list[tuple[tuple[int, int], Plan]]:
    """Each size and split, as many entries on chip as there is room for."""
    cache = config.core.cache
    return [
        (size, Plan(registers=cache.registers, shared=cache.shared, split=1 << n))
        for size in SIZES
        for n in range(config.cores.bit_length())
    ]


def measured(
    config: VqGemvConfig, latency: int, seed: int = 1
) -> tuple[list[Figure], list[dict], dict[str, float]]:
    """Figures, bounds by resource, and cycles and seconds of the simulation."""
    from golden.vqllm.bounds import job_bounds, part_work  # torch, only now
    from golden.vqllm.vectors.engine import engine_job, random_x
    from golden.vqllm.vectors.matrices import random_matrix

    rng, core = np.random.default_rng(seed), config.core
    model = build_model(VqGemv(config), long_run=True)
    figures, limits, simulated = [], [], {"cycles": 0.0, "seconds": 0.0}
    for size, plan in cases_of(config):
        shape = MatrixShape(rows=size[0], columns=size[1], vq=core.cache.vq)
        matrix = random_matrix(rng, shape, 0, config.scaled)
        job = engine_job(config, matrix, plan, random_x(rng, 1, size[1]))
        params = {"jobs": [job.params()], "latency": latency}
        work = run_model(model, "tb.vqllm.tb_engine_replay", config=config, params=params)
        made = json.loads((work / "replay.json").read_text())
        for key in simulated:
            simulated[key] += made["simulated"][key]
        banks = core.cache.banks
        bounds = job_bounds(matrix, config.image, plan, banks, config.lanes)
        foreseen = gemv_cycles(
            part_work(matrix, config.image, plan, banks), path_of(config, latency),
            rows=size[0], split=plan.split, lanes=config.lanes,
        )  # fmt: skip
        limits.append(bounds)
        figures.append(
            Figure(
                command="senbazuru.runs.vq_rates",
                block=BLOCK,
                configuration=described(config),
                parameters={
                    "rows": size[0], "columns": size[1], "split": plan.split,
                    "memory_latency": latency,
                },
                span=SPAN,
                cycles=made["jobs"][0]["cycles"],
                bound=max(bounds.values()) + fill_of(config, plan.shared, latency),
                **predicted(gemv_cycles, round(foreseen)),
            )
        )  # fmt: skip
    return figures, limits, simulated


def report(options: argparse.Namespace, names: list[str]) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    console = Console()
    say = elapsed(lambda line: console.print(line, highlight=False))
    head = (
        "configuration", "matrix", "split", "memory", "look-ups", "products", "reduction",
        "bound + fill", "cycles", "ratio", "predicted",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    figures: list[Figure] = []
    for name in names:
        say(name)
        config = BLOCKS[BLOCK].configs[name]
        assert isinstance(config, VqGemvConfig)
        found, limits, simulated = measured(config, options.latency)
        figures += found
        for figure, bounds in zip(found, limits, strict=True):
            ratio = figure.cycles / (figure.bound or 1)
            size = f"{figure.parameters['rows']} x {figure.parameters['columns']}"
            cells = (
                name, size, figure.parameters["split"], *bounds.values(), figure.bound,
                figure.cycles, f"{ratio:.3f}", f"{(figure.predicted or 0) / figure.cycles:.3f}",
            )  # fmt: skip
            lines.append(f"| {' | '.join(map(str, cells))} |")
            say(lines[-1])
        rate = simulated["cycles"] / simulated["seconds"]
        say(f"{simulated['cycles']:.0f} cycles simulated, {rate:.0f} per second")
    text = "\n".join(lines)
    console.print(text, highlight=False, soft_wrap=True)
    write_page(options.page, {"vq_gemv": f"{text}\n"})
    save(options.json, figures)
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_rates", main)
