"""``python -m senbazuru.runs.vq_tables``: an engine that dequantizes next to one of tables.

Products by formula, errors by golden, areas by synth, and cycles in the Verilated engines. All
results are compared with golden. ``--page`` rewrites the tables of docs/vqllm-tables.md.
"""

import argparse
import dataclasses
import json
import math
from typing import TYPE_CHECKING

import numpy as np

from golden import command
from golden.fp16.format import FP16
from golden.markers import table
from golden.vqllm.config import NAMED, MatrixShape
from golden.vqllm.timing import table_cycles
from hdl.arguments import add_page, check_page
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.core import VqGemvCore, VqGemvCoreConfig
from hdl.vqllm.row.finish import VqRowFinish, VqRowFinishConfig
from hdl.vqllm.table.config import VqTableGemvConfig
from hdl.vqllm.table.gemv import VqTableGemv
from senbazuru.runs.cycles import Figure, add_option, described, give, owned, predicted
from synth.area import load_libraries, synthesize
from tb.simulate.run import ROOT, simulate

if TYPE_CHECKING:
    import torch

    from golden.vqllm.matrix import VqMatrix

PAGE = ROOT / "docs" / "vqllm-tables.md"
SECTIONS = ("vq_table_products", "vq_table_errors", "vq_table_areas", "vq_table_cycles")
MATRICES = ((11008, 4096), (1536, 576))  # of LLaMA-7B and of SmolLM2-135M
_VECTORS = 16  # of an error
ERROR_SHAPE = (256, 576)
_SPAN = "from the first word of any stream to the last result"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_tables", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, SECTIONS)
    with owned(parser, options.json):
        return report(options)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Both engines with as many look-ups per cycle, and the matrices that they multiply."""

    core: VqGemvCoreConfig
    tables: VqTableGemvConfig
    sizes: tuple[tuple[int, int], ...]  # rows, columns


def _pair(name: str, lookups: int, lanes: int, rows: int, sizes) -> Pair:
    vq = NAMED[name]
    banks = 1 << (lookups - 1).bit_length()
    cache = VqCodebookCacheConfig(vq=vq, lookups=lookups, shared=vq.entries, banks=banks)
    return Pair(
        VqGemvCoreConfig(cache=cache, rows=rows),
        VqTableGemvConfig(vq=vq, lookups=lookups, lanes=lanes, rows=rows),
        sizes,
    )


PAIRS = {
    "aqlm2x8": _pair("aqlm2x8", 8, 4, 4096, ((64, 576), (512, 576), (1536, 576))),
    "gptvq2": _pair("gptvq2", 16, 16, 256, ((256, 576),)),
}
AREAS = ("aqlm2x8", "gptvq2")  # each takes minutes


def _products() -> str:
    rows = []
    for name in ("aqlm2x8", "aqlm3", "gptvq2"):
        vq = NAMED[name]
        for outputs, inputs in MATRICES:
            shape = MatrixShape(rows=outputs, columns=inputs, vq=vq)
            made = shape.grid[0] * vq.stages * vq.entries * inputs
            added = outputs * shape.vectors * vq.stages
            # Both sides of the tables of as many vectors as aqlm2x8's beat has: 32 elements.
            bits = 2 * (32 // vq.size) * vq.stages * vq.entries * FP16.bits
            both = outputs * inputs
            rows.append([
                name, f"{outputs} x {inputs}", f"{both:,}", f"{made:,}", f"{both / made:.2f}",
                f"{added:,}", f"{bits:,}",
            ])  # fmt: skip
    head = [
        "codes", "matrix", "products, dequantizing", "products, tables", "ratio",
        "additions, tables", "bits of tables",
    ]  # fmt: skip
    return table(head, rows)


def _errors() -> str:
    """Squared error over the squares of the exact products of the same codes."""
    import torch  # only now

    from golden.fp16.ops import bits_from_float, float_from_bits
    from golden.vqllm.product import by_dequantizing, by_tables
    from golden.vqllm.vectors.matrices import random_matrix

    rng, rows = np.random.default_rng(1), []
    for name in ("aqlm2x8", "aqlm3", "gptvq2"):
        vq = NAMED[name]
        shape = MatrixShape(rows=ERROR_SHAPE[0], columns=ERROR_SHAPE[1], vq=vq)
        matrix = random_matrix(rng, shape, 0, scaled=False)
        x = bits_from_float(torch.tensor(rng.normal(0, 1, (_VECTORS, shape.columns))))
        exact = float_from_bits(x, FP16) @ _exact(matrix).T
        found = [
            float_from_bits(bits_from_float(exact), FP16),
            float_from_bits(by_dequantizing(x, matrix)[0], FP16),
            float_from_bits(by_tables(x, matrix)[0], FP16),
        ]
        squares = exact.square().sum()
        rows.append([name, *(f"{float((y - exact).square().sum() / squares):.2e}" for y in found)])
    head = ["codes", "rounding of y alone", "dequantizing", "tables"]
    return table(head, rows)


def _exact(matrix: "VqMatrix") -> "torch.Tensor":
    """The sums of the entries, not rounded."""
    import torch  # only now

    from golden.fp16.ops import float_from_bits

    shape = matrix.shape
    weights = torch.empty(shape.rows, shape.vectors, shape.vq.size, dtype=torch.float64)
    for number, tile in enumerate(shape.tiles):
        entries = float_from_bits(matrix.entries_of(number, tile), FP16)
        weights[tile.rows, tile.vectors] = entries.sum(-2)
    return weights.flatten(1)


def _areas() -> str:
    libraries, rows = load_libraries(), []
    for name in AREAS:
        pair = PAIRS[name]
        finish = VqRowFinish(VqRowFinishConfig(sums=pair.core.sums))
        core = {"vq_gemv_core": VqGemvCore(pair.core), "vq_row_finish": finish}
        tables = {"vq_table_gemv": VqTableGemv(pair.tables)}
        built = pair.tables.lanes * pair.tables.vq.size
        for blocks, multipliers in ((core, pair.core.sums.macs), (tables, built)):
            areas = [synthesize(block, each, libraries) for each, block in blocks.items()]
            rows.append([
                name, " + ".join(f"`{each}`" for each in blocks), multipliers,
                f"{sum(area.kge for area in areas):,.1f}",
                f"{sum(area.flip_flops for area in areas):,}",
                f"{sum(area.macro_bits for area in areas):,}",
            ])  # fmt: skip
    return table(["codes", "engine", "multipliers", "kGE", "flip-flops", "RAM bits"], rows)


def _cycles() -> tuple[str, list[Figure]]:
    import torch  # only now

    from golden.fp16.ops import bits_from_float
    from golden.vqllm.vectors.matrices import random_matrix
    from tb.vqllm.support.core_words import core_params
    from tb.vqllm.support.tables import table_params

    rng, rows, figures = np.random.default_rng(2), [], []
    for name, pair in PAIRS.items():
        for outputs, inputs in pair.sizes:
            shape = MatrixShape(rows=outputs, columns=inputs, vq=pair.tables.vq)
            matrix = random_matrix(rng, shape, 0, scaled=False)
            matrix.codes.copy_(torch.tensor(rng.integers(0, shape.vq.entries, matrix.codes.shape)))
            x = bits_from_float(torch.tensor(rng.normal(0, 1, (1, inputs)))).numpy()
            params, expected = table_params(pair.tables, rng, matrix, x)
            core = core_params(pair.core, rng, matrix, x)
            spent = []
            for block, given in ((VqGemvCore(pair.core), core), (VqTableGemv(pair.tables), params)):
                work = simulate(block, "tb.vqllm.tb_engine_rates", params=given)
                spent.append(json.loads((work / "rates.json").read_text()))
                is_tables = given is params
                figures.append(
                    Figure(
                        command="senbazuru.runs.vq_tables",
                        block="vq_table_gemv" if is_tables else "vq_gemv_core",
                        configuration=described(block.config),
                        parameters={"rows": outputs, "columns": inputs},
                        span=_SPAN,
                        cycles=spent[-1],
                        **(predicted(table_cycles, expected) if is_tables else {}),
                    )
                )
            beats = outputs * math.ceil(shape.vectors / pair.tables.vectors)
            rows.append([
                name, f"{outputs} x {inputs}", f"{beats:,}", *(f"{each:,}" for each in spent),
                f"{expected:,}", f"{spent[0] / spent[1]:.2f}",
            ])  # fmt: skip
    head = [
        "codes", "matrix", "beats", "cycles, vq_gemv_core", "cycles, vq_table_gemv",
        "predicted", "ratio",
    ]  # fmt: skip
    return table(head, rows), figures


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    cycles, figures = _cycles()
    made = {
        "vq_table_products": _products(), "vq_table_errors": _errors(),
        "vq_table_areas": _areas(), "vq_table_cycles": cycles,
    }  # fmt: skip
    return give(options, made, figures)


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_tables", main)
