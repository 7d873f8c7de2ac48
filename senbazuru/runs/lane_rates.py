"""``senbazuru.runs.lane_rates``: cycles of the lane, its bound, and the speed of the tools.

Every output is also compared with golden. A benchmark: no test asserts its times.
``--page`` rewrites the table of docs/rates.md.
"""

import argparse
import json
import time

import numpy as np
from rich.console import Console

from golden import command
from golden.kllm.timing import LaneJob, lane_cycles, lane_steps
from hdl.arguments import add_page, check_page, write_page
from hdl.back.verilog import convert
from hdl.kllm.lane.array import KllmLaneArray, KllmLaneArrayConfig
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.engine import KllmPeLane
from senbazuru.runs.cycles import Figure, add_option, described, owned, predicted, save
from tb.simulate.run import ROOT, build_model, run_model

PAGE = ROOT / "docs" / "rates.md"
LENGTHS = (64, 128, 256, 576, 1024, 1536, 2048, 4096, 8192, 11008)
OUTPUTS = (32, 64, 96, 128)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.lane_rates", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["rates"])
    with owned(parser, options.json):
        return report(options)


def _sweep(config: KllmPeLaneConfig, console: Console) -> tuple[list[tuple], list[Figure], float]:
    """(rows, figures, cycles per second) of all lengths and widths, with 0 and 1 % of outliers."""
    # torch, only now
    from golden.kllm.vectors.jobs import codebook_packet, phase_vectors, random_codebook, random_job

    rng = np.random.default_rng(1)
    vectors, phases = {}, []
    books = random_codebook(rng, config.bits_a), random_codebook(rng, config.bits_b)
    for length in LENGTHS:
        for outputs in OUTPUTS:
            for share in (0.0, 0.005):
                name = f"{length}_{outputs}_{share}"
                outliers = 2 * max(1, round(share * length)) if share else 0
                jobs = [
                    random_job(rng, config, length, outliers=outliers)
                    for _ in range(outputs // config.columns)
                ]
                for stream, words in phase_vectors(config, jobs, books).items():
                    vectors[f"{name}.{stream}"] = words
                vectors[f"{name}.codebook"] = codebook_packet(config, *books)
                phases.append((name, length, outputs, outliers))
    start = time.perf_counter()
    model = build_model(KllmPeLane(config), long_run=True)
    console.print(f"  model ready after {time.perf_counter() - start:.0f} s", highlight=False)
    work = run_model(
        model,
        "tb.kllm.tb_rates",
        config=config,
        vectors=vectors,
        params={"phases": [phase[0] for phase in phases]},
    )
    measured = json.loads((work / "rates.json").read_text())
    rows, figures = [], []
    for name, length, outputs, outliers in phases:
        bound = config.bound(length, outputs // config.columns)
        found = measured[name]
        rows.append((length, outputs, outliers, bound, found["reduced"], found["cycles"]))
        # Golden counts equal jobs; here each job has its own outliers.
        job = LaneJob(steps=lane_steps(length, config.elements), outputs=config.columns)
        golden = 1 + lane_cycles(config.cycles, job, outputs // config.columns)
        figures.append(
            Figure(
                command="senbazuru.runs.lane_rates",
                block="kllm_pe_lane",
                configuration=described(config),
                parameters={"length": length, "outputs": outputs, "outliers": outliers},
                span="from the first beat to the last output, both included",
                cycles=found["cycles"],
                bound=bound,
                **({} if outliers else predicted(lane_cycles, golden)),
            )
        )
    simulated = sum(found["simulated"] for found in measured.values())
    return rows, figures, simulated / sum(found["seconds"] for found in measured.values())


def _emission() -> list[tuple[str, float, int]]:
    figures = []
    for name, block in (
        ("kllm_pe_lane", KllmPeLane(KllmPeLaneConfig())),
        ("kllm_lane_array, 16 lanes", KllmLaneArray(KllmLaneArrayConfig())),
    ):
        start = time.perf_counter()
        design = convert(block, "top")
        figures.append((name, time.perf_counter() - start, len(design.verilog)))
    return figures


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    console = Console()
    lines: list[str] = []
    figures: list[Figure] = []
    for title, config in (
        ("W4A4", KllmPeLaneConfig()),
        ("W4A3", KllmPeLaneConfig(bits_a=3)),
    ):
        console.print(f"{title}: {len(LENGTHS) * len(OUTPUTS) * 2} runs", highlight=False)
        rows, found, speed = _sweep(config, console)
        figures += found
        reduced = [row[4] / row[3] for row in rows]
        total = [row[5] / row[3] for row in rows]
        over = sum(ratio > 1.05 for ratio in total)
        lines += [
            f"### {title}",
            "",
            f"- To the last sum: {max(reduced):.4f} x bound at most, {np.mean(reduced):.4f} mean.",
            f"- To the last output: {max(total):.4f} x bound at most, {np.mean(total):.4f} mean.",
            f"- Above 1.05 to the last output: {over} of {len(total)} runs.",
            f"- Co-simulation: {speed:.0f} cycles per second.",
            "",
            "| K | N | outliers | bound | last sum | ratio | last output | ratio | K*N/512 |",
            "| ---: " * 9 + "|",
            *(
                f"| {k} | {n} | {o} | {b} | {r} | {r / b:.4f} | {c} | {c / b:.4f} "
                f"| {k * n // 512} |"
                for k, n, o, b, r, c in rows
            ),
            "",
        ]
    emitted = _emission()
    lines += [
        "### Emission",
        "",
        "| block | seconds | Verilog MB |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {seconds:.1f} | {size / 1e6:.2f} |" for name, seconds, size in emitted),
        "",
        f"Sixteen lanes cost {emitted[1][1] / emitted[0][1]:.2f} times one.",
        "",
    ]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    write_page(options.page, {"rates": "\n".join(lines)})
    save(options.json, figures)
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.lane_rates", main)
