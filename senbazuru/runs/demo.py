"""``python -m senbazuru.runs.demo``: two layers of SmolLM2-135M on the Verilated lane, bit for bit.

Golden quantizes q_proj and down_proj of one decoder layer with activations of a built-in text.
They run as jobs of 32 columns on ``kllm_pe_lane`` at Table I's size under cocotb. Every output
is compared with golden's.
"""

import argparse
import concurrent.futures
import contextlib
import json
import sys
import warnings
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from golden import command
from golden.command import elapsed
from golden.llm import text
from hdl.arguments import whole
from hdl.kllm.lane.config import COUNTERS, KllmPeLaneConfig

if TYPE_CHECKING:
    import torch

    from golden.kllm.vectors.jobs import Job
    from synth.modules import MappedDesign
    from tb.simulate.run import Model

LAYER = 15
LINEARS = ("self_attn.q_proj", "mlp.down_proj")
CALIBRATION_TOKENS = 256


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.demo", description=__doc__)
    parser.add_argument("--tokens", type=whole(1, 64), default=8, help="evaluation tokens, 1..64")
    parser.add_argument("--counter", default="select", choices=COUNTERS)
    parser.add_argument("--no-area", action="store_true", help="skip synthesis")
    options = parser.parse_args(arguments)
    return report(options)


def layer_jobs(quantized, weight, columns: int) -> "list[Job]":
    """Jobs of a whole linear layer: for every token, every group of ``columns`` outputs."""
    from golden.kllm.vectors.jobs import Job  # torch, only now

    index_b, s_b = weight.index.long().numpy(), weight.scale.numpy()
    jobs = []
    for t in range(len(quantized.scale)):
        for start in range(0, index_b.shape[1], columns):
            group = slice(start, start + columns)
            jobs.append(
                Job(
                    values=quantized.index[t].long().numpy(),
                    outlier=quantized.outlier[t].numpy(),
                    x=quantized.words[t].numpy(),
                    s_a=int(quantized.scale[t]),
                    index_b=index_b[:, group],
                    s_b=s_b[group],
                )
            )
    return jobs


def _extra_outlier_cycles(outlier: "torch.Tensor", elements: int) -> int:
    """Cycles that beats with several outliers take beyond one, over all tokens."""
    import torch  # only now

    padded = torch.nn.functional.pad(outlier, (0, -outlier.shape[1] % elements))
    per_beat = padded.reshape(len(outlier), -1, elements).sum(dim=2)
    return int((per_beat - 1).clamp(min=0).sum())


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from golden.llm.capture import capture_inputs  # torch, only now
    from golden.llm.checkpoint import CheckpointError, load, tokens

    console = Console()
    say = elapsed(lambda line: console.print(line, highlight=False))
    try:
        configs = [KllmPeLaneConfig(bits_a=bits_a, counter=options.counter) for bits_a in (4, 3)]
        rows = []
        with contextlib.closing(_Background()) as background:
            say("building the lanes (a minute the first time)")
            models = [background.build(config) for config in configs]
            # The other lane has narrower indices alone.
            mapped = None if options.no_area else background.map(configs[0])
            say("loading SmolLM2-135M")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                checkpoint = load()
            names = [f"model.layers.{LAYER}.{name}" for name in LINEARS]
            seen = {}
            for part, count in (
                ("CALIBRATION", CALIBRATION_TOKENS),
                ("EVALUATION", options.tokens),
            ):
                ids = tokens(checkpoint, getattr(text, part), count)
                seen[part] = capture_inputs(checkpoint.model, ids, names)
            say(f"captured {CALIBRATION_TOKENS} calibration and {options.tokens} evaluation tokens")
            for config, model in zip(configs, models, strict=True):
                rows += _run_precision(config, model.result(), names, seen, say)
            if mapped is not None:
                say("mapping the W4A4 lane to cells")
            area = None if mapped is None else mapped.result()
    except (CheckpointError, ValueError, AssertionError) as error:
        print(f"demo: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    _print_table(console, rows, area)
    say("done")
    return 0 if all(row["equal"] == row["outputs"] for row in rows) else 1


class _Background:
    """The work that needs no simulator yet: two threads wait for the compiler and for Yosys.

    An elaboration takes no thread: the caller's does it.
    """

    def __init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(2)

    def build(self, config: KllmPeLaneConfig) -> "concurrent.futures.Future[Model]":
        """The lane of ``config``, Verilated."""
        from hdl.kllm.lane.engine import KllmPeLane
        from tb.simulate.run import build_model, emitted

        lane = KllmPeLane(config)
        emitted(lane)
        return self._pool.submit(build_model, lane, long_run=True)

    def map(self, config: KllmPeLaneConfig) -> "concurrent.futures.Future[MappedDesign]":
        """The lane of ``config``, mapped to cells."""
        from hdl.back.verilog import convert
        from hdl.kllm.lane.engine import KllmPeLane
        from synth.area import load_libraries
        from synth.modules import map_modules

        design = convert(KllmPeLane(config), "kllm_pe_lane")
        return self._pool.submit(map_modules, design, load_libraries(), jobs=1)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _precision(config: KllmPeLaneConfig) -> str:
    return f"W{config.bits_b}A{config.bits_a}"


def _run_precision(config: KllmPeLaneConfig, model, names, seen, say) -> list[dict]:
    """Quantize both layers at this lane's precision, simulate, and compare."""
    from golden.fp16.ops import bits_from_float, float_from_bits  # torch, only now
    from golden.kllm.quantize import (
        linear,
        quantize_tokens,
        quantize_weight,
        train_activation_codebook,
    )
    from golden.kllm.vectors.jobs import codebook_packet, phase_vectors
    from tb.simulate.run import run_model

    precision = _precision(config)
    vectors, rows = {}, []
    for name in names:
        evaluation = seen["EVALUATION"][name]
        weight = quantize_weight(evaluation.weight, config.bits_b)
        codebook = train_activation_codebook(
            bits_from_float(seen["CALIBRATION"][name].x), config.bits_a
        )
        quantized = quantize_tokens(bits_from_float(evaluation.x), codebook)
        jobs = layer_jobs(quantized, weight, config.columns)
        books = codebook, weight.codebook
        short = name.rsplit(".", 1)[1]
        for stream, words in phase_vectors(config, jobs, books).items():
            vectors[f"{short}.{stream}"] = words
        vectors[f"{short}.codebook"] = codebook_packet(config, *books)
        y = float_from_bits(linear(quantized, weight, config.product).y)
        reference = evaluation.x.double() @ evaluation.weight.double().t()
        length = weight.index.shape[0]
        groups = len(jobs) // len(quantized.scale)
        counting = -(-length // config.elements)
        rows.append(
            {
                "layer": f"{LAYER}.{short}",
                "phase": short,
                "precision": precision,
                "shape": f"{length}x{weight.index.shape[1]}",
                "tokens": len(quantized.scale),
                "bound": config.bound(length, len(jobs)),
                "ideal": length
                * weight.index.shape[1]
                * len(quantized.scale)
                // (config.elements * config.columns),
                "binds": "counting" if counting > config.reduce_cycles else "reducing",
                "stalls": groups * _extra_outlier_cycles(quantized.outlier, config.elements),
                "error": float((y - reference).norm() / reference.norm()),
            }
        )
    say(f"{precision}: simulating {sum(row['bound'] for row in rows)} cycles and more")
    work = run_model(
        model,
        "tb.kllm.tb_rates",
        config=config,
        vectors=vectors,
        params={"phases": [row["phase"] for row in rows]},
    )
    measured = json.loads((work / "rates.json").read_text())
    for row in rows:
        row |= measured[row["phase"]]
    return rows


def _print_table(console: Console, rows: list[dict], mapped: "MappedDesign | None") -> None:
    from synth.area import load_libraries

    table = Table(title="KLLM lane next to golden, SmolLM2-135M", box=None, pad_edge=False)
    for heading in (
        "layer", "K x N", "", "tokens", "outputs", "equal", "cycles", "bound",
        "cycles/bound", "binds", "K*N/512", "outlier stalls", "error", "cycles/s",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["layer"], row["shape"], row["precision"], str(row["tokens"]), str(row["outputs"]),
            str(row["equal"]), str(row["cycles"]), str(row["bound"]),
            f"{row['cycles'] / row['bound']:.4f}", row["binds"], str(row["ideal"]),
            str(row["stalls"]), f"{row['error']:.4f}",
            f"{row['simulated'] / row['seconds']:.0f}",
        )  # fmt: skip
    console.width = max(console.width, 150)
    console.print(table)
    console.print(
        "equal: to golden, in all bits; error: |y - y_fp32| / |y_fp32|;\n"
        "bound: docs/blocks/kllm_pe_lane.md; outlier stalls:\n"
        "cycles that beats with several outliers add to counting, hidden while reducing binds",
        highlight=False,
    )
    if mapped is not None:
        cost = mapped.total()
        console.print(
            f"lane area, W4A4: {cost.um2 / 1e6:.3f} mm2 in {load_libraries().library.name}, "
            f"{cost.um2 / mapped.nand2_um2 / 1000:.0f} kGE, {cost.flip_flops} flip-flops; "
            f"{cost.ram_bits} bits of memory next to it",
            highlight=False,
        )


if __name__ == "__main__":
    command.run("senbazuru.runs.demo", main)
