"""``python -m senbazuru.runs.vq_batch``: gemv, gemm and 16-bit weights at 1 to 64 tokens.

Cycles by formula of golden.vqllm.crossover, and cycles in the Verilated engines. All
results are compared with golden. ``--page`` rewrites the tables of docs/vqllm-batch.md.
"""

import argparse
import dataclasses
import json

import numpy as np

from golden import command
from golden.markers import table
from golden.vqllm.config import NAMED, MatrixShape
from golden.vqllm.crossover import (
    Engine,
    gemm_cycles,
    gemv_cycles,
    least_tokens,
    plain_cycles,
    slowest,
)
from hdl.arguments import add_page, check_page
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.core import VqGemvCore, VqGemvCoreConfig
from hdl.vqllm.gemv.gemm import VqGemm, VqGemmConfig
from senbazuru.runs.cycles import Figure, add_option, described, give, owned
from tb.simulate.run import ROOT, build_model, run_model

PAGE = ROOT / "docs" / "vqllm-batch.md"
SECTIONS = ("vq_batch_bounds", "vq_batch_crossings", "vq_batch_cycles")
TOKENS = (1, 2, 4, 8, 16, 32, 64)
MATRIX = (11008, 4096)  # of LLaMA-7B
# Multipliers, tokens side by side, bits of the memory port
ENGINES = ((32, 1, 64), (32, 1, 128), (32, 1, 512), (128, 4, 64), (256, 1, 512), (256, 8, 512))
MEASURED = (24, 576)  # rows, columns
RUNS = (1, 2, 4, 16, 64)  # tokens of the measured gemm
PASSES = (1, 2, 4)  # tokens of the measured gemv
_SPAN = "from the first word of any stream to the last result"
CACHE = VqCodebookCacheConfig(vq=NAMED["aqlm2x8"], lookups=8, registers=8, shared=256, banks=8)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_batch", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, SECTIONS)
    with owned(parser, options.json):
        return report(options)


def _core() -> VqGemvCoreConfig:
    return VqGemvCoreConfig(cache=CACHE, columns=MEASURED[1], rows=MEASURED[0])


def _gemm() -> VqGemmConfig:
    return VqGemmConfig(cache=CACHE, columns=MEASURED[1], rows=MEASURED[0])


def _bounds(look: float) -> str:
    shape, engine = _shape(MATRIX), Engine(macs=32, port_bits=64, look_cycles=look)
    rows = []
    for tokens in TOKENS:
        found = [
            slowest(cycles(shape, engine, tokens))
            for cycles in (gemv_cycles, gemm_cycles, plain_cycles)
        ]
        gemv, gemm, plain = (cycles for _, cycles in found)
        rows.append([
            tokens, *(f"{cycles:,} ({name})" for name, cycles in found),
            f"{plain / gemv:.2f}", f"{plain / gemm:.2f}",
        ])  # fmt: skip
    head = ["tokens", "gemv", "gemm", "16-bit weights", "gain of gemv", "gain of gemm"]
    return table(head, rows)


def _crossings(look: float) -> str:
    shape, rows = _shape(MATRIX), []
    for multipliers, batch, port in ENGINES:
        engine = Engine(macs=multipliers // batch, batch=batch, port_bits=port, look_cycles=look)
        plain, gemm = (
            slowest(cycles(shape, engine, 1))[1] for cycles in (plain_cycles, gemm_cycles)
        )
        wins = (
            lambda gemv, gemm, plain: gemm < gemv,
            lambda gemv, gemm, plain: plain < gemv,
            lambda gemv, gemm, plain: plain <= gemm,
        )
        found = (least_tokens(shape, engine, each) for each in wins)
        rows.append([
            multipliers, batch, port, f"{plain / gemm:.2f}",
            *("never" if each is None else each for each in found),
        ])  # fmt: skip
    head = [
        "multipliers", "side by side", "port bits", "gain at 1 token", "gemm below gemv from",
        "16 bits below gemv from", "16 bits equal to gemm from",
    ]  # fmt: skip
    return table(head, rows)


def _shape(size: tuple[int, int]) -> MatrixShape:
    return MatrixShape(rows=size[0], columns=size[1], vq=CACHE.vq)


def _cycles(matrix, looks: int) -> tuple[str, list[Figure]]:
    import torch  # only now

    from golden.fp16.ops import bits_from_float
    from tb.vqllm.support.core_words import core_params

    shape = matrix.shape
    core, gemm = _core(), _gemm()
    engine = Engine(macs=core.sums.macs, look_cycles=looks / _beats(core, shape))
    rng, rows, figures = np.random.default_rng(4), [], []
    loads = CACHE.load_beats(CACHE.shared)
    for name, block, sink, runs, formula in (
        ("vq_gemv_core", VqGemvCore(core), "sum", PASSES, gemv_cycles),
        ("vq_gemm", VqGemm(gemm), "y", RUNS, gemm_cycles),
    ):
        model = build_model(block, long_run=True)
        for tokens in runs:
            x = bits_from_float(torch.tensor(rng.normal(0, 1, (tokens, shape.columns)))).numpy()
            params = core_params(block.config, rng, matrix, x, sink)
            work = run_model(model, "tb.vqllm.tb_engine_rates", config=block.config, params=params)
            spent = json.loads((work / "rates.json").read_text())
            # The bench gives codes as fast as they are taken: no bound of memory.
            parts = formula(shape, engine, tokens)
            bound = loads + max(parts["look-ups"], parts["products"])
            rows.append([
                f"`{name}`", tokens, f"{parts['look-ups']:,}", f"{parts['products']:,}",
                f"{bound:,}", f"{spent:,}", f"{spent / bound:.3f}",
            ])  # fmt: skip
            figures.append(
                Figure(
                    command="senbazuru.runs.vq_batch",
                    block=name,
                    configuration=described(block.config),
                    parameters={"rows": shape.rows, "columns": shape.columns, "tokens": tokens},
                    span=_SPAN,
                    cycles=spent,
                    bound=bound,
                )
            )
    head = ["engine", "tokens", "look-ups", "products", "bound with the load", "cycles", "ratio"]
    return table(head, rows), figures


def _beats(core: VqGemvCoreConfig, shape: MatrixShape) -> int:
    return shape.rows * -(-shape.vectors // core.vectors)


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    import torch  # only now

    from golden.vqllm.vectors.matrices import random_matrix
    from tb.vqllm.support.core_words import look_cycles

    rng = np.random.default_rng(3)
    matrix = random_matrix(rng, _shape(MEASURED), 0, scaled=False)
    codes = rng.integers(0, CACHE.vq.entries, matrix.codes.shape)
    matrix = dataclasses.replace(matrix, codes=torch.tensor(codes))
    looks = look_cycles(_core(), matrix)
    look = looks / _beats(_core(), matrix.shape)
    cycles, figures = _cycles(matrix, looks)
    made = {
        "vq_batch_bounds": f"Look-ups take {look:.2f} cycles a beat.\n\n{_bounds(look)}",
        "vq_batch_crossings": _crossings(look), "vq_batch_cycles": cycles,
    }  # fmt: skip
    return give(options, made, figures)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_batch", main)
